"""The ladder's plain-Triton steps keep the whole contract, on the GPU or in Triton's interpreter.

The probe runs them in a process of its own. Its own check is shown red by two faults planted before the kernel.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROBE = Path(__file__).with_name("kernels_probe.py")
GPU = torch.cuda.is_available()
PLAIN = ("step1_naive", "step4_dot", "step5_pipeline_triton", "step7_persistent_triton")
GLUON = ("step2_shared", "step3_register", "step5_pipeline")
BY_DESCRIPTOR = ("step5_pipeline", "step5_pipeline_triton", "step7_persistent_triton")


def probe(fault, *names):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {} if GPU else {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, PROBE, fault, *names], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def report():
    return probe("", *PLAIN, *(GLUON if GPU else ()))


@pytest.mark.parametrize("name", [*PLAIN, *GLUON])
def test_a_step_keeps_the_contract(name, report):
    if name in GLUON and not GPU:
        pytest.skip("Gluon has no interpreter: this step is judged on a GPU")
    assert report[name]["cases"] > 30
    assert report[name]["wrong"] == []


@pytest.mark.parametrize("fault", ["drops the last k", "skips a row"])
def test_the_probe_sees_a_fault(fault):
    found = probe(fault, "step4_dot")["step4_dot"]
    assert len(found["wrong"]) > found["cases"] // 4


@pytest.mark.parametrize("name", BY_DESCRIPTOR)
@pytest.mark.parametrize(
    ("a", "reason"),
    [
        (torch.zeros(16, 20, dtype=torch.float16), "20 elements along its contiguous dimension"),
        (torch.zeros(16, 20, dtype=torch.float16)[:, :16], "stride of 20 elements"),
        (torch.zeros(32, 32, dtype=torch.float16)[::2, ::2], "no contiguous dimension"),
        (torch.zeros(16 * 16 + 1, dtype=torch.float16)[1:].view(16, 16), "no multiple of 16 bytes"),
        (torch.zeros(16, 16), "float32"),
    ],
)
def test_outside_the_domain_is_an_error(name, a, reason):
    module = importlib.import_module(f"rooftest_kernels.gemm.{name}")
    b = torch.zeros(a.shape[1], 16, dtype=a.dtype)
    with pytest.raises(ValueError, match=reason):
        module.matmul(a, b, out=torch.zeros(16, 16, dtype=a.dtype))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"b": torch.zeros(5, 3)}, r"b has shape \(5, 3\)"),
        ({"out": torch.zeros(3, 2)}, "out has shape"),
        ({"bias": torch.zeros(2)}, "bias has shape"),
        ({"beta": 1.0}, "c0 is needed"),
        ({"b": torch.zeros(4, 3).half()}, "two tensors of one dtype"),
        ({"a": torch.zeros(4)}, "dimensions"),
    ],
)
def test_operands_that_do_not_fit_are_an_error(change, reason):
    module = importlib.import_module("rooftest_kernels.gemm.step4_dot")
    call = {"a": torch.zeros(2, 4), "b": torch.zeros(4, 3), "out": torch.zeros(2, 3)} | change
    with pytest.raises(ValueError, match=reason):
        module.matmul(**call)


@pytest.mark.parametrize("before", [True, False])
def test_cublas_puts_the_flags_back(before):
    flags = importlib.import_module("rooftest_kernels.gemm.torch_matmul").flags

    def now():
        names = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction", "fp32_precision")
        return [getattr(torch.backends.cuda.matmul, name) for name in names]

    def fail_inside():
        with flags(reduced=not before, tf32=not before):
            assert now() == [not before, not before, "ieee" if before else "tf32"]
            raise RuntimeError("in the middle")

    with flags(reduced=before, tf32=before):
        found = now()
        with pytest.raises(RuntimeError, match="in the middle"):
            fail_inside()
        assert now() == found
