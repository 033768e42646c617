"""What the tests of the process boundary share: one small product in an arena, and kernels started on it."""

from inspect import signature
from pathlib import Path

import pytest
import torch

from rooftest.arena import Arena, Placement
from rooftest.kernel import find
from rooftest.process import KernelError, KernelProcess
from rooftest.rows import parse_row

HERE = Path(__file__).parent
M, N, K = 3, 5, 7
POISON = {"__poison__": 0xFF}
PLACEMENTS = (
    Placement("a", "float32", (M, K), (K, 1), 256),
    Placement("b", "float32", (K, N), (1, K), 1024),  # transposed
    Placement("c", "float32", (M, N), (2 * N, 2), 2048),  # every other element
)


def row_of(function, **keys):
    table = {"op": "gemm", "call": f"process_kernels.py:{function}", "args": {"c": "out"}, "devices": ["cpu"]}
    if "out" not in signature(find(f"process_kernels.py:{function}", str(HERE))).parameters:
        table["args"] = {}
    return parse_row(f"test.{function}", {**table, **keys}, "test", str(HERE))


@pytest.fixture(scope="module")
def arena():
    arena = Arena("cpu", 4096)
    yield arena
    arena.close()


@pytest.fixture
def start(arena):
    started = []

    def start(function, time_limit_s=60.0, **keys):
        arena.bytes.fill_(0xFF)
        for placement in PLACEMENTS[:2]:
            placement.view(arena.bytes).copy_(torch.randint(-9, 10, placement.shape))  # every product and sum is exact
        started.append(KernelProcess(row_of(function, **keys), "cpu", arena, time_limit_s))
        return started[-1]

    yield start
    for each in started:
        each.close()


def views(arena):
    return [p.view(arena.bytes) for p in PLACEMENTS]


def cause_of(kernel):
    with pytest.raises(KernelError) as caught:
        kernel.call(PLACEMENTS, POISON)
    assert "\n" not in str(caught.value)
    assert caught.value.lives == (kernel._child is not None)
    return str(caught.value)
