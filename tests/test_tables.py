"""The lines and tables at the end of a run, from records alone."""

from rooftest import tables


def skipped(kernel, reason):
    return {"status": "skipped", "kernel": kernel, "reason": reason}


def test_kernels_left_out_for_want_of_the_same_device_share_a_line():
    records = [skipped(k, f"{k} runs on cuda only, this is cpu") for k in ("step2", "step3", "step2")]
    records += [skipped("k.cpu", "k.cpu runs on cpu, cuda only, this is interpreter")]
    records += [skipped(k, f"{k} claims none of: deterministic") for k in ("step4", "step5")]
    assert tables.left_out(records) == [
        "left out, 3 tests: need a GPU (cuda): step2, step3",
        "left out, 1 test: run on cpu, cuda only: k.cpu",
        "left out, 1 test: step4 claims none of: deterministic",
        "left out, 1 test: step5 claims none of: deterministic",
    ]
