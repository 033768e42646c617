"""What a call costs beside device time: launches, first calls, memory."""

import types
from pathlib import Path

import pytest
import torch
import triton
from triton.runtime.autotuner import Autotuner

from rooftest import costs
from rooftest.closures import timed
from rooftest.kernel import Kernel
from rooftest.simulated import Knobs, Simulated
from rooftest.spec import load

SPEC = load("gemm")
REQUEST = {
    "op": "gemm", "row": "test", "workload": {"M": 3, "N": 5, "K": 7}, "dtype": "float32", "layout": "nn",
    "simulated": {"product_s": 2e-4}, "plan": {"warmup_s": 0.01},
}  # fmt: skip


@pytest.fixture
def first(monkeypatch):
    monkeypatch.setattr(triton.knobs.compilation, "listener", None)
    monkeypatch.setattr(Autotuner, "_bench", lambda tuner, seconds: seconds)
    return costs.First()


def compiled(seconds, *, hit):
    times = types.SimpleNamespace(total=seconds * 1e6)  # Triton counts microseconds
    triton.knobs.compilation.listener(src=None, metadata={}, metadata_group={}, times=times, cache_hit=hit)


def test_the_host_time_of_a_launch_is_no_device_time():
    device = Simulated(Knobs(launch_s=7e-6))
    assert costs.host_s(device.kernel("k", 1e-3), device) == pytest.approx(8e-6, abs=1.1e-6)  # a reading takes 1 us


def test_a_slow_call_is_launched_a_few_times_only():
    device = Simulated()
    launched = []
    call = device.kernel("k", 0.1)
    costs.host_s(lambda: (launched.append(1), call()), device)
    assert len(launched) == costs.FEWEST


def test_the_first_call_on_such_tensors_says_what_triton_did_for_it(first):
    a, other = torch.empty(2, 3), torch.empty(3, 2)
    compiled(9.0, hit=False)  # of a call before
    with first.watch([a], lambda: None):
        compiled(0.5, hit=False)
        compiled(0.25, hit=False)
        compiled(0.001, hit=True)
        assert Autotuner._bench(None, 5) == 5
    with first.watch([a], lambda: None):
        compiled(3.0, hit=False)
    with first.watch([other], lambda: None):
        pass
    told, again = first.told[costs.kind([a])], first.told[costs.kind([other])]
    assert (told["compile_s"], told["compiled"], told["cached"]) == (0.75, 2, 1)
    assert 0 < told["tuning_s"] < told["call_s"]
    assert (again["compile_s"], again["compiled"], again["cached"], again["tuning_s"]) == (0, 0, 0, 0)


def test_a_measurement_tells_first_call_memory_and_where_its_time_went(first):
    row = {"call": "process_kernels.py:matmul", "root": str(Path(__file__).parent), "prepare": None, "configs": None}
    got = timed(Kernel(row, {"c": "out"}, ("c",), SPEC.laid_out), "cpu", REQUEST, None, first)
    assert got["status"] == "ok", got["reasons"]
    assert got["first"]["call_s"] > 0
    assert got["memory"] == {"peak_bytes": None, "workspace_bytes": None, "reason": "cpu has no allocator that tells"}
    assert set(got["wall"]) >= {"prepare_s", "warmup_s", "sample_s", "host_s"}
    assert got["calls"]["test"]["timing"]["host_s"] > 0


class Allocator:
    """torch's allocator and the driver, of which a call takes what it is told to."""

    def __init__(self, monkeypatch, stats=True):
        self.current = self.peak = self.outside = 0
        self.stats = stats
        for name in ("memory_stats", "mem_get_info", "memory_reserved", "reset_peak_memory_stats", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def take(self, size):
        self.current += size
        self.peak = max(self.peak, self.current)

    def memory_stats(self):
        now = {"requested_bytes.all.current": self.current, "requested_bytes.all.peak": self.peak}
        return now if self.stats else {}

    def mem_get_info(self):
        return 10**9 - self.outside, 10**9

    def memory_reserved(self):
        return 0

    def reset_peak_memory_stats(self):
        self.peak = self.current

    def synchronize(self):
        pass


def told(device, monkeypatch):
    def call():
        device.take(1000)  # a workspace, given back
        device.take(-1000)
        device.take(64)  # what it returns

    given = [torch.empty(4, 4), torch.empty(4)]
    return costs.memory(call, [*given, given[0][1:]], "cuda:0", lambda: device.take(-64))


def test_workspace_is_what_is_beyond_inputs_and_outputs(monkeypatch):
    device = Allocator(monkeypatch)
    device.take(10**6)  # what the process holds already
    assert told(device, monkeypatch) == {"peak_bytes": 64 + 16 + 1000, "workspace_bytes": 1000 - 64, "reason": ""}
    assert device.current == 10**6


def test_memory_without_statistics_is_null_with_the_reason(monkeypatch):
    got = told(Allocator(monkeypatch, stats=False), monkeypatch)
    assert got["workspace_bytes"] is None
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in got["reason"]


def test_memory_that_is_kept_outside_torch_is_null_with_the_reason(monkeypatch):
    device = Allocator(monkeypatch)
    real = device.take

    def leak(size):
        real(size)
        device.outside += 512 if size == 1000 else 0

    device.take = leak
    got = told(device, monkeypatch)
    assert got["peak_bytes"] is None
    assert got["reason"] == "a call keeps 512 bytes that it took outside torch's allocator"
