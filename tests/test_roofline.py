import pytest

from rooftest.roofline import Ceiling, Work, bound, judge

TOP = Ceiling("physical", {"bfloat16": 1e15}, 5e12, 60e6, "made up")
ROOF = Ceiling("attainable", {"bfloat16": 8e14}, 4e12, 60e6, "made up", ((0.0, 4e12), (0.5, 3e12), (1.0, 4e12)))
GEMM = Work(1e12, 1e8, 5e7, "bfloat16")  # 1 ms at the top, 1.25 ms at the roof; memory 25 us


def test_bound_is_the_larger_of_the_two():
    assert bound(GEMM, TOP).least_s == 1e12 / 1e15
    assert bound(GEMM, TOP).limiter == "compute"
    stream = Work(1e6, 4e9, 0, "bfloat16")
    assert bound(stream, TOP).least_s == 4e9 / 5e12
    assert bound(stream, TOP).limiter == "memory"


def test_writes_that_fit_into_l2_are_free_and_the_rest_is_not():
    assert bound(Work(0, 1e9, 50e6, "bfloat16"), TOP).least_s == 1e9 / 5e12
    assert bound(Work(0, 1e9, 160e6, "bfloat16"), TOP).least_s == pytest.approx(1.1e9 / 5e12)


def test_warm_l2_holds_reads_too():
    assert bound(Work(0, 40e6, 10e6, "bfloat16"), TOP, "warm").least_s == 0
    assert bound(Work(0, 100e6, 60e6, "bfloat16"), TOP, "warm").least_s == pytest.approx(100e6 / 5e12)


def test_mixed_traffic_meets_the_bandwidth_of_its_mix():
    assert ROOF.bandwidth(0) == 4e12
    assert ROOF.bandwidth(0.5) == pytest.approx(3e12)
    assert 3e12 < ROOF.bandwidth(0.25) < 4e12
    assert bound(Work(0, 1e9, 1e9 + 60e6, "bfloat16"), ROOF).least_s == pytest.approx(2e9 / 3e12)


def test_a_ceiling_without_the_precision_bounds_nothing_and_says_so():
    got = bound(Work(1, 1, 1, "float8"), TOP)
    assert got.least_s is None
    assert "float8" in got.limiter


def verdict(time_s, share=None, spread=0.001, **more):
    return judge(time_s, (time_s * (1 - spread), time_s * (1 + spread)), GEMM, TOP, ROOF, share, **more)


def test_faster_than_physics_is_invalid():
    got = verdict(0.9e-3)
    assert got.verdict == "INVALID"
    assert "faster than physics" in got.reason


def test_straddling_the_physical_bound_is_ambiguous():
    assert verdict(0.9995e-3).verdict == "AMBIGUOUS"


def test_between_the_roofs_passes_and_asks_for_a_new_ceiling():
    got = verdict(1.1e-3, share=0.99)
    assert got.verdict == "PASS"
    assert got.remeasure_ceiling


@pytest.mark.parametrize(("share", "word"), [(1.1, "PASS"), (1.2, "FAIL")])
def test_a_share_above_the_ceiling_is_judged_like_any_other(share, word):
    assert verdict(1.25e-3 / 1.15, share).verdict == word


@pytest.mark.parametrize(("share", "word"), [(None, "PASS"), (0.79, "PASS"), (0.8, "AMBIGUOUS"), (0.81, "FAIL")])
def test_the_declared_share_is_judged_with_the_interval(share, word):
    got = verdict(1.25e-3 / 0.8, share)
    assert got.verdict == word
    assert got.efficiency == pytest.approx(0.8)


def test_a_wide_interval_cannot_fail():
    assert verdict(1.25e-3 / 0.7, 0.8, spread=0.001).verdict == "FAIL"
    assert verdict(1.25e-3 / 0.7, 0.8, spread=0.2).verdict == "AMBIGUOUS"


def test_the_timers_uncertainty_widens_the_interval():
    assert verdict(1.25e-3 / 0.79, 0.8).verdict == "FAIL"
    assert verdict(1.25e-3 / 0.79, 0.8, u_timer_s=50e-6).verdict == "AMBIGUOUS"


def test_an_invalid_measurement_wins_over_everything():
    got = verdict(1.25e-3, 0.5, invalid=["the hardware slowed down for heat"])
    assert got.verdict == "INVALID"
    assert "heat" in got.reason


def test_no_time_is_invalid_and_a_share_without_a_ceiling_too():
    assert judge(None, None, GEMM, TOP, ROOF).verdict == "INVALID"
    assert judge(1e-2, (1e-2, 1e-2), GEMM, TOP, None, 0.5).verdict == "INVALID"
    assert judge(1e-2, (1e-2, 1e-2), GEMM, TOP, None).verdict == "PASS"
