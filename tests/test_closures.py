from pathlib import Path

import pytest
import torch

from rooftest.closures import closures, tensors, timed, work
from rooftest.kernel import Fault, Kernel
from rooftest.spec import load

SPEC = load("gemm")
REQUEST = {
    "op": "gemm", "row": "test", "workload": {"M": 3, "N": 5, "K": 7}, "dtype": "bfloat16", "layout": "nt",
    "reference": {"name": "peer", "call": "process_kernels.py:returning", "root": str(Path(__file__).parent)},
}  # fmt: skip


def kernel(function):
    row = {
        "call": f"process_kernels.py:{function}",
        "root": str(Path(__file__).parent),
        "prepare": None,
        "configs": None,
    }
    return Kernel(row, {"c": "out"}, ("c",), SPEC.laid_out)


def test_both_calls_launch_on_the_same_inputs():
    calls = closures(kernel("matmul"), SPEC, "cpu", REQUEST, tensors(SPEC, "cpu", REQUEST))
    assert list(calls) == ["test", "peer"]
    ours = calls["test"].call
    ours.outputs["c"].fill_(torch.nan)
    assert calls["test"]() == []
    ((result, output),) = calls["peer"]()
    assert torch.equal(ours.outputs["c"], result)
    assert output is not ours.outputs["c"]


def test_inputs_lie_in_the_layout_and_are_not_zero():
    made = tensors(SPEC, "cpu", REQUEST)
    assert {n: (tuple(t.shape), t.stride()) for n, t in made.items()} == {"a": ((3, 7), (7, 1)), "b": ((7, 5), (1, 7))}
    assert all(t.ne(0).all() and t.dtype == torch.bfloat16 for t in made.values())


def test_inputs_follow_the_seed():
    first, again, other = (tensors(SPEC, "cpu", REQUEST | {"seed": s})["a"] for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_work_is_that_of_the_specification():
    assert vars(work(SPEC, REQUEST)) == {
        "flop": 2 * 3 * 5 * 7,
        "read_bytes": 2 * (3 * 7 + 7 * 5),
        "write_bytes": 2 * 3 * 5,
        "precision": "bfloat16",
    }


def test_params_reach_the_kernel_and_one_that_it_lacks_is_refused():
    inputs, scaled = tensors(SPEC, "cpu", REQUEST), REQUEST | {"params": {"alpha": 2.0}}
    calls = closures(kernel("matmul"), SPEC, "cpu", scaled | {"reference": None}, inputs)
    assert calls["test"].call.kwargs["alpha"] == 2.0
    with pytest.raises(Fault, match="takes no alpha"):
        closures(kernel("matmul"), SPEC, "cpu", scaled, inputs)


def test_there_is_no_timing_on_the_cpu():
    with pytest.raises(Fault, match="there is no timing on cpu"):
        timed(kernel("matmul"), "cpu", REQUEST)
