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


def test_a_stranger_makes_it_invalid_and_no_window_is_spent_on_it():
    got = run(Simulated(foreign=[1]), Plan(warmup_s=0.01, bytes_moved=True, energy=True))
    assert got["status"] == "invalid"
    assert got["reasons"] == ["other processes use the GPU: 1"]
    why = "not measured, as the time is invalid: other processes use the GPU: 1"
    entry = got["calls"]["kernel"]
    assert (entry["moved"]["bytes"], entry["moved"]["reason"]) == (None, why)
    assert (entry["energy"]["valid"], entry["energy"]["reason"]) == (False, why)
    assert not {"traffic_s", "energy_s"} - set(got["wall"])
    assert got["wall"]["energy_s"] < 0.01


def test_a_slice_of_mig_is_invalid_with_its_reason():
    got = run(Simulated(mig=True), Plan(warmup_s=0.01, energy=True))
    assert got["reasons"] == ["MIG is on: the slice's bandwidth, L2 and power are not the GPU's"]
    assert "MIG is on" in got["calls"]["kernel"]["energy"]["reason"]


def test_a_counter_that_may_not_be_read_is_unknown_and_the_time_stands():
    got = run(Simulated(Knobs(nvml_denied=("hw_thermal_s", "pids"))))
    assert got["status"] == "ok"
    assert got["validity"]["unknown"] == [
        "hw_thermal_s: Insufficient Permissions",
        "pids: Insufficient Permissions",
    ]


def test_a_gpu_that_nvml_loses_meanwhile_makes_the_time_invalid_and_loses_no_sample():
    got = run(Simulated(Knobs(nvml_lost_after_s=0.05)))
    assert got["status"] == "invalid"
    assert got["reasons"] == ["NVML lost the GPU during the measurement (hw_thermal_s: GPU is lost)"]
    assert len(got["calls"]["kernel"]["samples_s"]) >= 30
    assert got["calls"]["kernel"]["timing"]["median_s"] == pytest.approx(5e-4, rel=0.005)


@pytest.mark.parametrize(("after_s", "what"), [(0.9, "moved"), (3.0, "energy")])
def test_a_gpu_that_nvml_loses_in_a_window_costs_that_window_only(after_s, what):
    plan = Plan(warmup_s=0.01, bytes_moved=what == "moved", energy=what == "energy", window_s=1.0)
    got = run(Simulated(Knobs(nvml_lost_after_s=after_s)), plan)
    assert got["status"] == "ok"
    assert got["calls"]["kernel"]["timing"]["median_s"] == pytest.approx(5e-4, rel=0.005)
    assert got["calls"]["kernel"][what]["reason"].endswith("GPU is lost")


def test_a_stranger_who_comes_in_an_energy_window_takes_the_joules():
    class Visited(Simulated):
        def state(self):
            self.foreign = [1] if self.host_s > 5 else []
            return super().state()

    got = run(Visited(), Plan(warmup_s=0.01, energy=True))
    energy = got["calls"]["kernel"]["energy"]
    assert got["status"] == "ok"
    assert (energy["gross_j"], energy["reason"]) == (None, "other processes use the GPU: 1")


def test_where_the_time_went_is_told():
    got = run(Simulated(), Plan(warmup_s=0.01, bytes_moved=True, window_s=0.3))
    assert set(got["wall"]) == {"warmup_s", "sample_s", "host_s", "traffic_s"}
    assert got["wall"]["traffic_s"] == pytest.approx(0.3 + 2 * 0.25, abs=0.1)  # the lead, and parts to the window's end
    assert got["wall"]["warmup_s"] + got["wall"]["sample_s"] >= got["health"]["window_s"]


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
