import json

import pytest

from rooftest.measure import Blind, Plan, measure
from rooftest.roofline import Work
from rooftest.simulated import Knobs, Simulated

QUICK = Plan(warmup_s=0.01)
WORK = Work(1e9, 1e8, 1e7, "bfloat16")


def run(device, plan=QUICK, **more):
    calls = {"kernel": device.kernel("k", 5e-4, moved_bytes=2.2e8), "reference": device.kernel("r", 1e-3)}
    return measure(calls, plan, WORK, device, device, **more)


def test_the_result_is_json_and_holds_both_calls():
    got = json.loads(json.dumps(run(Simulated()), allow_nan=False))
    assert got["status"] == "ok"
    assert got["calls"]["kernel"]["timing"]["median_s"] == pytest.approx(5e-4, rel=0.005)
    assert got["calls"]["kernel"]["rates"]["flop_per_s"] == pytest.approx(1e9 / 5e-4, rel=0.005)
    assert got["calls"]["kernel"]["clocks"]["cycles_median"] == pytest.approx(5e-4 * 1.98e9, rel=0.01)
    assert got["ratios"]["kernel/reference"]["median"] == pytest.approx(0.5, rel=0.005)
    assert got["identity"]["name"] == "NVIDIA H200"
    assert got["calls"]["kernel"]["moved"]["reason"] == "not asked for"


def test_bytes_moved_are_set_beside_the_fewest():
    got = run(Simulated(), Plan(warmup_s=0.01, bytes_moved=True, window_s=0.3))
    assert got["calls"]["kernel"]["moved"]["over_min"] == pytest.approx(2, rel=0.01)


def test_heat_is_measured_again_and_then_invalid():
    got = run(Simulated(Knobs(hw_thermal_per_s=0.5)))
    assert got["status"] == "invalid"
    assert "heat" in got["reasons"][0]
    assert got["health"]["attempts"] == 4


def test_a_stranger_makes_it_invalid():
    assert run(Simulated(foreign=[1]))["status"] == "invalid"


def test_a_call_without_device_work_is_an_error_with_its_name():
    device = Simulated()
    got = measure({"empty": lambda: None}, QUICK, None, device, device)
    assert got["status"] == "error"
    assert "'empty'" in got["reasons"][0]


def test_timers_that_disagree_make_it_invalid():
    class Biased(Simulated):
        def elapsed_s(self, first, second):
            return super().elapsed_s(first, second) * 1.05

    got = run(Biased())
    assert got["status"] == "invalid"
    assert "events say" in got["reasons"][0]


def test_without_nvml_the_time_stands_and_what_is_unknown_is_said():
    device = Simulated()
    got = measure({"k": device.kernel("k", 5e-4)}, QUICK, None, device, Blind("NVML is not readable: no library."))
    assert got["status"] == "ok"
    assert any("no library" in line or "not read" in line for line in got["validity"]["unknown"])
    assert got["identity"]["unread"] == {"nvml": "NVML is not readable: no library."}
