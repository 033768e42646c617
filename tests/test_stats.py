# ruff: noqa: S311  seeded generators make the samples

import random
import statistics

import pytest

from rooftest.stats import lag1, median_interval, ranks, ratio_interval, settled


def normal(n, seed):
    rng = random.Random(seed)
    return [rng.gauss(100, 1) for _ in range(n)]


def autoregressive(n, seed, rho=0.5):
    rng, out, now = random.Random(seed), [], 0.0
    for _ in range(n + 50):
        now = rho * now + rng.gauss(0, 1)
        out.append(100 + now)
    return out[50:]


def test_ranks_are_the_tables():
    # Conover, Practical Nonparametric Statistics: of 10 the 2nd and 9th (97.9 %), of 20 the 6th and 15th (95.9 %).
    assert ranks(10, 0.05) == (2, 9)
    assert ranks(20, 0.05) == (6, 15)
    assert ranks(5, 0.05) is None  # [min, max] of five misses the median in 2 of 32 cases
    assert ranks(6, 0.05) == (1, 6)


def test_ranks_of_many_samples_do_not_overflow():
    low, high = ranks(5000, 0.05)
    assert low + high == 5001
    assert 2425 <= low <= 2435  # (5000 - 1.96 sqrt(5000)) / 2 = 2430.7


@pytest.mark.parametrize("n", [30, 100, 400])
def test_the_interval_holds_the_median_as_often_as_it_says(n):
    held = sum(i.low <= 100 <= i.high for i in (median_interval(normal(n, s)) for s in range(1000)))
    assert held >= 940  # 950 expected at least, standard deviation 7


def test_correlated_samples_get_a_wider_interval():
    intervals = [median_interval(autoregressive(200, s)) for s in range(400)]
    corrected = sum(i.low <= 100 <= i.high for i in intervals) / 400
    plain = 0
    for seed in range(400):
        ordered = sorted(autoregressive(200, seed))
        low, high = ranks(200, 0.05)
        plain += ordered[low - 1] <= 100 <= ordered[high - 1]
    assert corrected >= 0.93
    assert plain / 400 < 0.85  # what the interval would be without the correction: the check can fail


def test_lag1_of_ranks_is_not_hidden_by_one_outlier():
    samples = autoregressive(300, 1, rho=0.8)
    clean = lag1(samples)
    samples[150] = 1e9
    assert lag1(samples) == pytest.approx(clean, abs=0.05)
    assert lag1([1.0] * 20) == 0
    assert lag1([1.0, 2.0]) == 0


def test_settled_asks_for_the_target_or_the_tick():
    samples = normal(100, 3)  # half-width about 0.2
    assert settled(samples, 0.005, 0, 0.05)
    assert not settled(samples, 0.0005, 0, 0.05)
    assert settled(samples, 0.0005, 0.5, 0.05)
    assert not settled([1.0, 1.0], 0.005, 0, 0.05)  # two equal samples say nothing


def test_paired_ratios_lose_the_drift_that_both_share():
    rng = random.Random(5)
    drift = [1 + 0.1 * i / 100 for i in range(100)]
    a = [d * rng.gauss(2, 0.002) for d in drift]
    b = [d * rng.gauss(1, 0.001) for d in drift]
    got = ratio_interval(a, b)
    assert got.median == pytest.approx(2, rel=1e-3)
    assert got.high - got.low < 0.01
    assert statistics.stdev(a) / 2 > 0.02
