"""The ladder's kernels are compiled a few times, not once an example: what decides is counted without a GPU.

The examples that the suite draws for one (dtype, layout) at the ci profile are given to the real `matmul`, always with
one configuration. Each launch is stopped where Triton would look for a compiled kernel, with the key it would look for.
"""

import importlib
import inspect
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
from hypothesis import given, seed
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import jit

from rooftest import problem, profiles, strategies
from rooftest.process import Signature
from rooftest.rows import read_rows

ROWS = read_rows(Path(__file__).parents[1] / "pyproject.toml")
RUNGS = ("contract", "exact", "law", "bound")
# How many forms of its kernel the host can choose from in layout nn, for one dtype, configuration and type of index.
FORMS = {
    "step1_naive": 1,
    "step2_shared": 1,
    "step3_register": 3,  # 16 bytes a load, with and without the addends; one element a load
    "step4_dot": 6,  # as step 3, and the last one with a stride of 1 and without, of A and of B
    "step5_pipeline": 3,  # of C: 16 bytes a store, with and without the addends; one element a store
    "step5_pipeline_triton": 3,
    "step7_persistent_triton": 3,
    "step6_specialised": 2,  # with and without the addends
    "step7_persistent": 2,
    "blackwell": 2,
    "step8_overlapped": 4,  # as step 7, of C and of C transposed
}


def keys(row, monkeypatch, dtype, layout):
    """The keys that the examples of one dtype and layout look for, by the module and name of the kernel."""
    module, _, function = row.call.partition(":")
    matmul = getattr(importlib.import_module(module), function)
    config = next(iter(importlib.import_module(module).CONFIGS))
    parameters = inspect.signature(matmul).parameters
    required = tuple(n for n, p in parameters.items() if p.default is p.empty)
    bench = SimpleNamespace(
        row=row, spec=row.spec, signature=Signature(tuple(parameters), required, (), returns=False), device="cuda:0"
    )
    backend = CUDABackend(GPUTarget("cuda", 90, 32))
    found = defaultdict(list)

    def run(kernel, *args, grid, warmup, **kwargs):  # instead of JITFunction.run, whose first step this is
        bind = jit.create_function_from_signature(kernel.signature, kernel.params, backend)
        _, specialization, options = bind(*args, **kwargs)
        found[kernel.fn.__module__, kernel.fn.__name__].append(f"{specialization} {options}")

    def example(case):
        laid = problem.lay_out(row.spec, case)
        memory = torch.empty(laid.span_bytes, dtype=torch.uint8)
        tensors = {row.args.get(p.name, p.name): p.view(memory) for p in laid.placements}
        matmul(**tensors, **case.params, config=config)

    monkeypatch.setattr(jit.JITFunction, "run", run)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    profiles.register()
    for rung in RUNGS:
        drawn = given(strategies.cases(bench, rung, dtype, layout))(example)
        seed(0)(profiles.chosen("ci", Path("unused"))(drawn))()
    return found


def own(found, row):
    """The keys of the row's own kernel, not of those that it hands a part of its domain to."""
    (seen,) = (seen for (module, _), seen in found.items() if module == row.call.partition(":")[0])
    return seen


@pytest.mark.parametrize("name", FORMS)
def test_a_kernel_is_compiled_once_a_form(name, monkeypatch):
    seen = own(keys(ROWS[name], monkeypatch, "float16", "nn"), ROWS[name])
    assert len(seen) > FORMS[name]  # launches enough to tell
    assert len(set(seen)) <= FORMS[name]


def test_the_count_sees_a_kernel_that_triton_specialises(monkeypatch):
    module = importlib.import_module("rooftest_kernels.gemm.step4_dot")
    monkeypatch.setattr(module, "gemm_dot", triton.jit(module.gemm_dot.fn))
    seen = own(keys(ROWS["step4_dot"], monkeypatch, "float16", "nn"), ROWS["step4_dot"])
    assert len(set(seen)) > 5 * FORMS["step4_dot"]
