import pytest

from rooftest import energy
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


def test_both_ways_see_the_same_power_and_the_uncertainty_is_stated():
    got = measured(sample_noise=0.02, energy_late=0.5)
    assert got.valid, got.reason
    assert got.samples_w == pytest.approx(600, rel=0.01)
    assert got.u_gross_j / got.gross_j == pytest.approx(got.u_mean_w / got.mean_w)
    assert 0.002 < got.u_mean_w / got.mean_w < 0.02
    assert got.u_net_j > got.u_gross_j
    assert abs(got.mean_w - 600) < 2 * got.u_mean_w


@pytest.mark.parametrize("late", [0.0, 0.3, 0.9])
def test_a_late_step_of_the_counter_stays_within_what_is_stated(late):
    got = measured(energy_late=late)
    assert abs(got.mean_w - 600) < 2 * got.u_mean_w


def test_a_sensor_that_looks_a_quarter_of_the_time_is_found_out():
    whole, part = (measured(power_swing_w=100, sensor_share=share) for share in (1.0, 0.25))
    assert whole.valid, whole.reason
    assert not part.valid
    assert part.samples_w == pytest.approx(700, rel=0.01)
    assert "power samples 699 W disagree by 16.7%, more than 5%" in part.reason
    assert (part.gross_j, part.net_j, part.u_gross_j) == (None, None, None)


def test_samples_that_were_lost_are_not_averaged(monkeypatch):
    monkeypatch.setattr(energy, "DRAIN_S", 4.0)  # the buffer holds 2.4 s
    got = measured()
    assert got.samples_w is None
    assert "power samples were lost" in got.reason


def test_a_counter_alone_is_withheld():
    device = Simulated()
    device.power_samples = lambda _: []
    got = measure_energy(device.kernel("k", CALL_S), CALL_S, device, device, Plan(energy_trials=2))
    assert not got.valid
    assert "nothing to hold the energy counter against" in got.reason


def short(call_s, **knobs):
    device = Simulated(Knobs(energy_step_s=0.01, **knobs))
    return measure_energy(
        device.kernel("k", call_s), call_s, device, device, Plan(energy_trials=2, energy_window_s=0.5)
    )


def test_a_call_too_short_to_keep_the_device_busy_is_withheld():
    got = short(8e-6)
    assert got.busy == pytest.approx(8 / 8.8, rel=0.01)
    assert "worked in 91% of the time only" in got.reason


def test_slow_launches_are_replayed_from_a_graph_and_withheld_where_that_fails(monkeypatch):
    assert short(40e-6, launch_s=60e-6).valid

    def refuse(self, enqueue):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Simulated, "graph", refuse)
    assert "worked in 66% of the time only" in short(40e-6, launch_s=60e-6).reason


def test_one_trial_is_none():
    device = Simulated()
    got = measure_energy(device.kernel("k", CALL_S), CALL_S, device, device, Plan(energy_trials=1))
    assert got.reason == "one trial only"


def test_a_gpu_that_nvml_loses_in_a_window_says_so():
    assert measured(nvml_lost_after_s=9.0).reason == "the energy counter stopped: GPU is lost"


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


def moved(device, least_bytes=0.0, moved_bytes_=3e9):
    begun = device.host_s
    got = moved_bytes(device.kernel("k", CALL_S, moved_bytes=moved_bytes_), CALL_S, device, device, 2.0, least_bytes)
    return got, device.host_s - begun


def test_bytes_moved_need_no_longer_window_than_it_takes_their_mean_to_settle():
    got, took_s = moved(Simulated())
    assert got["bytes"] == pytest.approx(3e9, rel=0.005)
    assert got["u_bytes"] < 0.01 * got["bytes"]
    assert took_s < 1.3


class Unsteady(Simulated):
    """Counters that read every second part a fifth too high."""

    def traffic_rate(self, first, second):
        self.parts = getattr(self, "parts", 0) + 1
        return super().traffic_rate(first, second) * (1 + 0.2 * (self.parts % 2)) + 1e6 * self.parts


def test_bytes_that_do_not_settle_take_the_whole_window_and_say_how_far_off_they_may_be():
    got, took_s = moved(Unsteady())
    assert got["u_bytes"] > 0.01 * got["bytes"]
    assert took_s > 2.2


def test_what_stays_in_the_cache_settles_by_the_bytes_that_the_call_would_need():
    got, took_s = moved(Unsteady(), least_bytes=1e9, moved_bytes_=0.0)
    assert got["bytes"] < 1e-5 * 1e9
    assert took_s < 1.3
    assert moved(Unsteady(), moved_bytes_=0.0)[1] > 2.2


def test_no_counters_no_bytes_and_a_reason():
    class Old(Simulated):
        traffic_reason = "this GPU has no GPM counters"

    device = Old()
    got = moved_bytes(device.kernel("k", CALL_S), CALL_S, device, device, 0.5)
    assert got == {"bytes": None, "reason": "this GPU has no GPM counters"}
