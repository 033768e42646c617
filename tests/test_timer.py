import statistics

import pytest

from rooftest.cuda import Activity, TraceUnavailableError
from rooftest.errors import UsageError
from rooftest.plan import Plan
from rooftest.simulated import Knobs, Simulated
from rooftest.timer import NoDeviceWorkError, _steady, event_offset_s, time_calls
from rooftest.windows import StrayWorkError, busy_s, windows

SHORT, LONG = 20e-6, 500e-6
QUICK = Plan(warmup_s=0.01)


def timed(cold_s, plan=QUICK, warm_s=None, write_bytes=0.0, **knobs):
    device = Simulated(Knobs(**knobs))
    call = device.kernel("kernel", cold_s, warm_s, write_bytes)
    return time_calls({"kernel": call}, device, plan)["kernel"]


@pytest.mark.parametrize("how", ["cupti", "graph", "events"])
@pytest.mark.parametrize("true_s", [5e-6, SHORT, LONG])
def test_every_timer_finds_the_time_that_is_true(how, true_s):
    got = timed(true_s, Plan(warmup_s=0.01, timer=how))
    # A tick of 32 ns each end for cupti; the graph difference carries the gap between kernels, 0.8 us.
    allowed = {"cupti": 64e-9, "graph": 1e-6, "events": 0.1e-6}[how] + 0.003 * true_s
    assert got.timer == how
    assert got.median_s == pytest.approx(true_s, abs=allowed)


def test_short_kernels_are_traced_and_long_ones_stamped():
    assert timed(SHORT).timer == "cupti"
    assert timed(LONG).timer == "events"


def test_the_events_offset_is_found_and_would_be_seen_if_it_were_not_subtracted():
    device = Simulated(Knobs(event_offset_s=7e-6))
    assert event_offset_s(device) == pytest.approx(7e-6, abs=0.1e-6)
    got = timed(LONG, event_offset_s=7e-6)
    assert got.offset_s == pytest.approx(7e-6, abs=0.1e-6)
    assert got.median_s == pytest.approx(LONG, rel=0.002)
    assert got.median_s + got.offset_s > LONG * 1.01


def test_cold_and_warm_are_two_regimes():
    assert timed(SHORT, warm_s=SHORT / 2).median_s == pytest.approx(SHORT, rel=0.005)
    assert timed(SHORT, Plan(warmup_s=0.01, l2="warm"), warm_s=SHORT / 2).median_s == pytest.approx(
        SHORT / 2, rel=0.005
    )


def test_a_flush_that_writes_would_be_seen():
    assert timed(SHORT, flush_writes=False).median_s == pytest.approx(SHORT, rel=0.005)
    assert timed(SHORT, flush_writes=True).median_s > SHORT + 10e-6  # 60 MB of dirty lines at 4.2 TB/s


def test_launches_slower_than_the_kernel_do_not_lengthen_it():
    assert timed(LONG, launch_s=200e-6).median_s == pytest.approx(LONG, rel=0.002)
    assert timed(SHORT, launch_s=200e-6).median_s == pytest.approx(SHORT, rel=0.005)


def test_without_a_tracer_events_are_used_and_it_is_said():
    got = timed(SHORT, tracer="missing")
    assert got.timer == "events"
    assert "events instead" in got.notes[0]
    with pytest.raises(TraceUnavailableError):
        timed(SHORT, Plan(timer="cupti"), tracer="missing")


@pytest.mark.parametrize("kernels", [1, 2])
def test_dropped_records_are_not_taken_for_samples(kernels):
    device = Simulated(Knobs(tracer="drops"))
    call = device.kernel("kernel", SHORT / kernels)
    got = time_calls({"kernel": lambda: [call() for _ in range(kernels)]}, device, QUICK)["kernel"]
    assert got.timer == "events"
    assert "dropped" in got.notes[0]


def test_a_noisy_kernel_takes_more_samples_and_a_hopeless_one_does_not_converge():
    assert len(timed(LONG, noise=0.002).samples_s) == 30
    noisy = timed(LONG, noise=0.01)
    assert noisy.converged
    assert len(noisy.samples_s) > 30
    hopeless = timed(LONG, noise=0.3)
    assert not hopeless.converged
    assert len(hopeless.samples_s) == 800


def test_the_cap_ends_sampling():
    got = timed(LONG, Plan(warmup_s=0.01, cap_s=0.05), noise=0.3)
    assert not got.converged
    assert 1 <= len(got.samples_s) < 100


def test_burst_keeps_the_power_limit_out_and_sustained_lets_it_in():
    # The limit acts after 50 ms without a gap and slows everything by a fifth.
    burst = timed(LONG, throttle_factor=1.2)
    assert burst.median_s == pytest.approx(LONG, rel=0.003)
    sustained = timed(LONG, Plan(regime="sustained", window_s=0.5), throttle_factor=1.2)
    assert sustained.median_s == pytest.approx(1.2 * LONG, rel=0.003)
    assert min(sustained.call_hz) < 0.9 * min(burst.call_hz)


def test_the_clock_is_read_in_bursts_like_those_that_were_sampled():
    # The limit acts after 1 ms, within a burst: a clock read of single calls between gaps would not know.
    got = timed(LONG, throttle_factor=1.2, throttle_after_s=1e-3)
    assert got.median_s == pytest.approx(1.2 * LONG, rel=0.003)
    assert got.median_s * statistics.median(got.call_hz) == pytest.approx(LONG * Knobs().sm_hz, rel=0.01)


def test_a_call_that_scatters_from_burst_to_burst_ends_its_warm_up():
    # Medians of two calls of 5 % scatter agree within 0.5 % in one burst of twenty or so: 2 s of warm-up for this seed.
    device = Simulated(Knobs(noise=0.05), 1)
    calls = {name: device.kernel(name, 1e-3) for name in ("k", "peer")}
    assert time_calls(calls, device, Plan(cap_s=0.1))["k"].warmup_s < 0.3


def test_halves_of_eight_bursts_tell_drift_from_scatter():
    scatter = [1.00, 1.02, 0.99, 1.01, 1.00, 1.02, 0.99, 1.01]
    assert not _steady(scatter[:7], 0.005)  # too few, and the last two differ
    assert _steady([*scatter[:7], 1.02], 0.005)
    assert not _steady([m * (1 + 0.01 * i) for i, m in enumerate(scatter)], 0.005)
    assert _steady([5.0, 1.0, 1.0], 0.005)


def test_calls_far_longer_than_a_burst_wait_no_longer_than_it_takes():
    device = Simulated(Knobs())
    begun = device.host_s
    time_calls({"k": device.kernel("k", 0.14), "peer": device.kernel("p", 1e-3)}, device, QUICK)
    assert device.host_s - begun < 10  # simulated; with gaps of twice the call it took 19 s


@pytest.mark.parametrize("call_s", [SHORT, LONG])
def test_slow_launches_do_not_pass_for_a_long_call(call_s):
    assert timed(call_s, launch_s=150e-6).timer == timed(call_s).timer


def test_interleaving_takes_drift_out_of_the_ratio():
    device = Simulated(Knobs(drift_per_s=2.0))
    calls = {"kernel": device.kernel("a", LONG), "reference": device.kernel("b", LONG)}
    got = time_calls(calls, device, QUICK)
    first = got["kernel"].samples_s
    assert first[-1] > 1.01 * first[0]  # the drift is there
    assert got["kernel"].median_s / got["reference"].median_s == pytest.approx(1, rel=0.002)


def test_events_and_cupti_are_compared_on_the_same_executions():
    got = timed(LONG)
    assert got.crosscheck["events_s"] == pytest.approx(got.crosscheck["cupti_s"], abs=0.2e-6)


@pytest.mark.parametrize("traced", [5.0, 20.0])
def test_launches_that_tracing_slows_leave_no_gap_between_two_events(traced):
    got = timed(LONG, launch_s=100e-6, traced=traced)
    assert got.crosscheck["events_s"] == pytest.approx(got.crosscheck["cupti_s"], abs=0.2e-6)


def test_a_call_that_enqueues_nothing_is_an_error():
    with pytest.raises(NoDeviceWorkError, match="no device work"):
        time_calls({"nothing": lambda: None}, Simulated(), QUICK)


FOUND = [
    Activity("spin_kernel", 0, 1), Activity("rooftest_flush", 1, 2), Activity("a", 2, 4), Activity("b", 3, 5),
    Activity("rooftest_done", 5, 5.5), Activity("Memcpy DtoD", 5.5, 6), Activity("rooftest_flush", 6, 7),
    Activity("a", 7, 8), Activity("rooftest_done", 8, 9), Activity("rooftest_clock", 9, 10),
]  # fmt: skip


def test_windows_belong_to_calls_and_what_overlaps_counts_once():
    first, second = windows(FOUND, 2)
    assert busy_s(first) == 3
    assert [a.name for a in second] == ["a"]
    with pytest.raises(TraceUnavailableError):
        windows(FOUND, 3)


@pytest.mark.parametrize("name", ["rooftest_done", "rooftest_flush", "rooftest_mark"])
def test_a_kernel_under_a_name_of_ours_hides_nothing(name):
    with pytest.raises(TraceUnavailableError):
        windows([*FOUND[:3], Activity(name, 4, 5), *FOUND[4:]], 2)


def test_a_kernel_called_like_our_clock_counts():
    first, _ = windows([*FOUND[:3], Activity("rooftest_clock", 4, 5), *FOUND[4:]], 2)
    assert busy_s(first) == 3


@pytest.mark.parametrize(
    "stray",
    [
        pytest.param(Activity("aside", 0.5, 0.9, stream=1), id="before the caller's stream starts"),
        pytest.param(Activity("aside", 4.5, 7, stream=1), id="beyond the end of the call"),
        pytest.param(Activity("aside", 5.2, 7, stream=1), id="between two calls"),
    ],
)
def test_work_on_a_stream_that_the_callers_does_not_wait_for_is_found(stray):
    found = sorted([*FOUND, stray], key=lambda a: a.start_s)
    with pytest.raises(StrayWorkError, match="aside ran on a stream of its own"):
        windows(found, 2)


def test_work_between_two_calls_is_found():
    with pytest.raises(StrayWorkError, match="late ran between two calls"):
        windows([*FOUND[:5], Activity("late(int)", 5.5, 6), *FOUND[5:]], 2)


def test_work_on_another_stream_that_the_callers_waits_for_counts():
    first, _ = windows([*FOUND[:3], Activity("aside", 3, 5, stream=1), *FOUND[4:]], 2)
    assert busy_s(first) == 3


def test_a_plan_refuses_words_that_mean_nothing():
    with pytest.raises(UsageError, match="cold, warm"):
        Plan(l2="tepid")
