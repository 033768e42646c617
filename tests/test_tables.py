"""The lines and tables at the end of a run, from records alone."""

from rooftest import tables


def skipped(kernel, reason):
    return {"status": "skipped", "kernel": kernel, "reason": reason}


def test_kernels_left_out_for_the_same_reason_share_a_line():
    records = [skipped(k, "runs on cuda only, this is cpu") for k in ("step2", "step3", "step2")]
    records += [skipped(k, "no CUDA device: timing is left out") for k in ("step2", "step3", "step4", "step4")]
    records += [skipped("step4", "claims none of: deterministic")]
    assert tables.left_out(records) == [
        "left out, 4 tests: no CUDA device: timing is left out",
        "left out, 3 tests: runs on cuda only, this is cpu (step2, step3)",
        "left out, 1 test: claims none of: deterministic (step4)",
    ]
