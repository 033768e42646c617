import pytest

from rooftest.energy import measure_energy
from rooftest.plan import Plan
from rooftest.simulated import Knobs, Simulated
from rooftest.traffic import moved_bytes

CALL_S = 1e-3


def measured(**knobs):
    device = Simulated(Knobs(**knobs))
    return measure_energy(device.kernel("k", CALL_S), CALL_S, device, device, Plan(energy_trials=3))


def test_joules_are_power_times_the_period():
    got = measured(power_busy_w=500, power_idle_w=100)
    assert got.valid, got.reason
    assert got.mean_w == pytest.approx(500, rel=0.01)
    assert got.gross_j == pytest.approx(500 * got.period_s, rel=0.01)
    assert got.net_j == pytest.approx(400 * got.period_s, rel=0.01)
    assert got.step_s == pytest.approx(0.1, rel=0.02)
    assert got.u_max == pytest.approx(0.1 / got.window_s, rel=0.02)


def test_a_slower_counter_gets_a_longer_window():
    assert measured(energy_step_s=0.2).window_s >= 9.9


def test_a_counter_that_disagrees_with_the_instant_power_is_withheld():
    device = Simulated()
    device.power_now_w = lambda: 450.0
    got = measure_energy(device.kernel("k", CALL_S), CALL_S, device, device, Plan(energy_trials=2))
    assert not got.valid
    assert got.gross_j is None
    assert "disagree" in got.reason


def test_trials_that_scatter_are_withheld():
    device = Simulated()
    truth = device.energy_j
    device.energy_j = lambda: truth() * (1 + 0.001 * int(10 * device.host_s))  # leakage grows
    device.power_now_w = lambda: None
    got = measure_energy(device.kernel("k", CALL_S), CALL_S, device, device, Plan(energy_trials=3))
    assert not got.valid
    assert "scatter" in got.reason


def test_a_counter_that_is_missing_or_stands_still_is_said():
    device = Simulated()
    device.energy_j = lambda: None
    assert "no energy counter" in measure_energy(lambda: None, CALL_S, device, device, Plan()).reason
    device.energy_j = lambda: 5.0
    assert "stands still" in measure_energy(lambda: None, CALL_S, device, device, Plan()).reason


def test_bytes_moved_are_found_in_the_steady_state():
    device = Simulated()
    got = moved_bytes(device.kernel("k", CALL_S, moved_bytes=3e9), CALL_S, device, device, 0.5)
    assert got["bytes"] == pytest.approx(3e9, rel=0.005)
    assert got["power_w"] == pytest.approx(600)


def test_no_counters_no_bytes_and_a_reason():
    class Old(Simulated):
        traffic_reason = "this GPU has no GPM counters"

    device = Old()
    got = moved_bytes(device.kernel("k", CALL_S), CALL_S, device, device, 0.5)
    assert got == {"bytes": None, "reason": "this GPU has no GPM counters"}
