"""The process boundary on a GPU: what a crash of the device costs, and that each mode catches what it is there for."""

import os
import signal
import threading
from inspect import signature
from pathlib import Path

import pytest
import torch

from rooftest.arena import Arena, Placement
from rooftest.kernel import find
from rooftest.process import KernelError, KernelProcess
from rooftest.rows import parse_row

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

HERE = Path(__file__).parent
N = 64
POISON = {"__poison__": 0xFF}
ONE = tuple(Placement(name, "float32", (N, N), (N, 1), i * N * N * 4) for i, name in enumerate("abc"))
TWO = (*ONE, *(Placement(p.name, p.dtype, p.shape, p.stride, p.offset_bytes + 2**20) for p in ONE))


@pytest.fixture(scope="module")
def arena():
    arena = Arena("cuda:0", 4 * 2**20)
    yield arena
    arena.close()


@pytest.fixture
def start(arena):
    started = []

    def start(function, time_limit_s=60.0, **keys):
        arena.bytes.fill_(0xFF)
        for placement in TWO:
            if placement.name != "c":
                placement.view(arena.bytes).normal_()
        table = {"op": "gemm", "call": f"cuda_kernels.py:{function}", **keys}
        if "out" in signature(find(f"cuda_kernels.py:{function}", str(HERE))).parameters:
            table.setdefault("args", {"c": "out"})
        row = parse_row(f"test.{function}", table, "test", str(HERE))
        started.append(KernelProcess(row, "cuda:0", arena, time_limit_s))
        return started[-1]

    yield start
    for each in started:
        each.close()


def views(arena, placements=ONE):
    return [p.view(arena.bytes) for p in placements]


@pytest.mark.parametrize("function", ["add", "returning"])
@pytest.mark.parametrize("mode", ["plain", "stream", "streams", "graph", "nosync", "launches"])
def test_a_good_kernel_is_right_in_every_mode(start, arena, function, mode):
    kernel = start(function)
    placements = TWO if mode in ("streams", "graph") else ONE
    before = arena.bytes.clone()
    reply = kernel.call(placements, POISON, mode=mode)
    for i in range(0, len(placements), 3):
        a, b, c = views(arena, placements[i : i + 3])
        assert torch.equal(c, a + b)
        c.copy_(placements[i + 2].view(before))
    assert torch.equal(arena.bytes.view(torch.int64), before.view(torch.int64))
    assert reply.launches == (1 if mode == "launches" else None), reply.note


def test_launches_are_counted(start):
    assert start("twice").call(ONE, POISON, mode="launches").launches == 2


def test_poison_shows_what_was_not_written(start, arena):
    start("partly").call(ONE, POISON)
    a, b, c = views(arena)
    assert c[0].isnan().all()
    assert torch.equal(c[1:], a[1:] + b[1:])


def test_a_kernel_off_the_current_stream_is_wrong(start, arena):
    kernel = start("default_stream")
    kernel.call(ONE, POISON)
    a, b, c = views(arena)
    assert torch.equal(c, a + b)
    kernel.call(ONE, POISON, mode="stream")
    assert not torch.equal(c, a + b)


def test_scratch_shared_by_two_streams_is_wrong(start, arena):
    kernel = start("shared_scratch")
    kernel.call(ONE, POISON)
    a, b, c = views(arena)
    assert torch.equal(c, a + b)
    kernel.call(TWO, POISON, mode="streams")
    one, two = views(arena, TWO[:3]), views(arena, TWO[3:])
    assert not all(torch.equal(c, a + b) for a, b, c in (one, two))


def test_a_kernel_that_is_absent_from_the_graph_is_wrong(start, arena):
    start("absent_from_graphs").call(TWO, POISON, mode="graph")
    assert views(arena)[2].isnan().all()


@pytest.mark.parametrize("function", ["waits", "reads_back"])
def test_waiting_for_the_device_is_seen(start, arena, function):
    kernel = start(function)
    with pytest.raises(KernelError, match=r"^synchronises: "):
        kernel.call(ONE, POISON, mode="nosync")
    kernel.call(ONE, POISON)
    a, b, c = views(arena)
    assert torch.equal(c, a + b)


def test_a_capture_that_fails_is_told_and_survived(start, arena):
    kernel = start("reads_back")
    with pytest.raises(KernelError) as caught:
        kernel.call(TWO, POISON, mode="graph")
    assert "\n" not in str(caught.value)
    kernel.call(ONE, POISON)
    a, b, c = views(arena)
    assert torch.equal(c, a + b)


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        ("illegal", "crash: an illegal memory access was encountered"),
        ("misaligned", "crash: misaligned address"),
        ("asserts", "crash: device-side assert triggered"),
        ("traps", "crash: unspecified launch failure"),
        ("spins", "time limit: no answer in 3 s"),
        ("hangs", "time limit: no answer in 3 s"),
        ("host_hangs", "time limit: no answer in 3 s"),
        ("greedy", "out of memory: "),
    ],
)
def test_a_death_on_the_device_is_one_line_and_harms_nobody(start, arena, function, cause):
    kernel = start(function, time_limit_s=1.0)
    kernel.describe()
    with pytest.raises(KernelError) as caught:
        kernel.call(ONE, POISON)
    print(caught.value)
    assert str(caught.value).startswith(cause)
    assert "\n" not in str(caught.value)
    good = start("add")
    good.call(ONE, POISON)
    a, b, c = views(arena)
    assert torch.equal(c, a + b)


def test_a_kill_from_outside_while_the_device_is_busy_harms_nobody(start, arena):
    kernel = start("hangs")
    kernel.describe()
    threading.Timer(1.0, os.kill, (kernel._child.pid, signal.SIGKILL)).start()
    with pytest.raises(KernelError, match=r"^crash: killed by signal 9"):
        kernel.call(ONE, POISON)
    start("add").call(ONE, POISON)
    a, b, c = views(arena)
    assert torch.equal(c, a + b)


def test_device_memory_that_an_exception_holds_is_let_go(start):
    kernel = start("holds_memory")  # a quarter of the device
    for _ in range(6):
        with pytest.raises(KernelError, match=r"^exception: ValueError: big"):
            kernel.call(ONE, POISON)
    assert kernel.starts == 1


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        ("sets_stream", "current CUDA stream is "),
        ("seeds", "seed of torch on CUDA is 7, was 0"),
        ("sets_library", "preferred BLAS library is "),
        pytest.param(
            "sets_device",
            "current CUDA device is 1, was 0",
            marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
        ),
    ],
)
def test_a_state_of_cuda_left_changed_is_told(start, function, cause):
    with pytest.raises(KernelError) as caught:
        start(function).call(ONE, POISON)
    assert str(caught.value).startswith(f"changed global state: {cause}")


@pytest.mark.parametrize("mode", ["plain", "stream", "launches"])
def test_a_kernel_that_puts_back_what_it_changes_is_right(start, arena, mode):
    kernel = start("restores")
    for _ in range(2):
        kernel.call(ONE, POISON, mode=mode)
    a, b, c = views(arena)
    assert torch.equal(c, a + b)


def test_measure(start):
    reference = {"name": "peer", "call": "cuda_kernels.py:matmul", "args": {"c": "out"}, "root": str(HERE)}
    record = start("matmul").measure(
        {
            "workload": {"M": 512, "N": 512, "K": 512},
            "dtype": "bfloat16",
            "layout": "nt",
            "reference": reference,
            "plan": {"cap_s": 1.0},
        }
    )
    assert set(record["calls"]) == {"test.matmul", "peer"}, record["reasons"]
