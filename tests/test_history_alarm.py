"""The rates and delays that rooftest/history/alarm.py promises, against simulation (seeded, so they can't flake)."""

import math

import numpy as np
import pytest
from ruptures import KernelCPD
from scipy.stats import binom, norm

from rooftest.history import alarm
from rooftest.history.alarm import BASELINE, points, watch

YEAR = 365
SIGMA = 0.01
PROMISED = YEAR / 17_000
"""Series with a false alarm in a year. With a known baseline the mean is 18,800 nights to one (k = 0.5, h = 8)."""


def noise(series, nights, seed):
    return -9 + SIGMA * np.random.default_rng(seed).normal(size=(series, nights))


def stepped(sigmas, series=200, before=90, after=60, seed=1):
    made = noise(series, before + after, seed)
    made[:, before:] += sigmas * SIGMA
    return made


def falsely(series=1500, seed=0):
    """How many clean series have an alarm in the year after their baseline."""
    return sum(bool(watch(log_s).alarms) for log_s in noise(series, BASELINE + YEAR, seed))


def most(series=1500):
    """More than this many would happen once in 1e9 such tests at the promised rate."""
    return binom.isf(1e-9, series, PROMISED)


def test_a_clean_series_has_a_false_alarm_in_a_year_no_more_often_than_promised():
    assert 0 < falsely() <= most()


def test_a_baseline_of_30_nights_taken_for_exact_would_alarm_far_more_often(monkeypatch):
    monkeypatch.setattr(alarm, "UNSURE", 0.0)
    assert falsely() > most()


@pytest.mark.parametrize(("sigmas", "mean", "latest"), [(2, 9, 30), (3, 5, 12), (10, 3, 3)])
def test_a_slow_down_is_raised_within_the_nights_that_are_promised(sigmas, mean, latest):
    delays = [found.alarms[0].raised - 90 + 1 for found in map(watch, stepped(sigmas)) if found.alarms]
    assert len(delays) == 200
    assert np.mean(delays) <= mean
    assert max(delays) <= latest


def test_a_slow_down_is_raised_once_and_sized():
    for log_s in stepped(4, series=50):
        (change,) = watch(log_s).changes
        assert change.slower
        assert math.log(change.ratio) == pytest.approx(4 * SIGMA, abs=SIGMA)


def test_a_slow_down_of_3_sigma_is_dated_to_within_two_nights():
    dates = [found.alarms[-1].dated for found in map(watch, stepped(3))]
    near = sum(date is not None and abs(date - 90) <= 2 for date in dates)
    assert near >= binom.isf(1 - 1e-9, 200, 0.97)  # 97 % are, five nights later


def test_a_large_slow_down_is_dated_to_the_night():
    found = [{change.dated for change in watch(log_s).alarms} - {None} for log_s in stepped(25, series=500)]
    assert found == [{90}] * 500


def test_a_wild_night_does_not_move_the_date():
    for log_s in stepped(5, series=100):
        log_s[80] += 50 * SIGMA
        assert watch(log_s).alarms[-1].dated == pytest.approx(90, abs=2)


def test_nights_without_a_change_are_dated_no_change():
    assert sum(bool(points(z)) for z in np.random.default_rng(2).normal(size=(500, 120))) <= binom.isf(1e-9, 500, 1e-4)


def test_change_points_are_those_of_ruptures():
    rng = np.random.default_rng(7)
    found = []
    for _ in range(300):
        z = rng.normal(size=rng.integers(4, 200))
        for _ in range(rng.integers(4)):
            z[rng.integers(len(z)) :] += rng.normal(0, 4)
        penalty = norm.isf(alarm.FALSE_DATE / len(z) / 2) ** 2
        theirs = KernelCPD(kernel="linear", min_size=2).fit(z.reshape(-1, 1)).predict(pen=penalty)
        assert points(z) == theirs[:-1]
        found.append(len(theirs) - 1)
    assert set(found) >= {0, 1, 2, 3}


def test_a_penalty_that_forgets_how_many_places_there_are_dates_changes_that_are_none(monkeypatch):
    monkeypatch.setattr(alarm, "FALSE_DATE", 0.5)
    clean = np.random.default_rng(2).normal(size=(500, 120))
    assert sum(bool(points(z)) for z in clean) > binom.isf(1e-9, 500, 1e-4)


def test_what_is_smaller_than_two_sigma_is_raised_but_not_dated():
    found = [watch(log_s).alarms for log_s in stepped(1, series=60, after=200)]
    raised = [alarms[0] for alarms in found if alarms]
    assert len(raised) > 50
    assert sum(change.dated is not None for change in raised) <= 6
    assert all(change.first == change.since for change in raised if change.dated is None)


def test_one_wild_night_raises_nothing_and_three_do(monkeypatch):
    (log_s,) = noise(1, 120, 3)
    for nights, alarms in ((1, 0), (2, 0), (3, 1)):
        wild = log_s.copy()
        wild[60 : 60 + nights] += 50 * SIGMA
        assert len(watch(wild).alarms) == alarms
    monkeypatch.setattr(alarm, "WILD", math.inf)
    wild = log_s.copy()
    wild[60] += 50 * SIGMA
    assert watch(wild).alarms


def test_a_slow_drift_is_raised_because_the_baseline_stays_where_it_was():
    drift = 0.05 * SIGMA * np.arange(200)  # each night far within the noise
    assert all(watch(log_s + drift).alarms for log_s in noise(20, 200, 4))


def test_an_improvement_moves_the_baseline_so_that_losing_it_again_is_raised(monkeypatch):
    made = noise(20, 200, 5)
    made[:, 70:130] -= 5 * SIGMA
    for log_s in made:
        better, worse, *_ = watch(log_s).changes
        assert (better.slower, worse.slower) == (False, True)
        assert (better.dated, worse.dated) == (pytest.approx(70, abs=1), pytest.approx(130, abs=1))
    monkeypatch.setattr(alarm, "_first", lambda z, k, first=alarm._first: first(np.maximum(z, 0), k))  # never faster
    assert not any(watch(log_s).alarms for log_s in made[:, :150])


@pytest.mark.parametrize("nights", [0, 1, 2, BASELINE - 1])
def test_a_series_shorter_than_a_baseline_is_not_watched(nights):
    found = watch(np.linspace(-9, -8, nights))
    assert (found.changes, found.sigma) == ((), None)
    assert math.isnan(found.mean) == (nights == 0)


def test_a_series_without_any_noise_is_watched_too():
    log_s = np.full(100, -9.0)
    assert watch(log_s).changes == ()
    log_s[50:] += 0.01
    (change,) = watch(log_s).alarms
    assert (change.dated, change.ratio) == (50, pytest.approx(math.exp(0.01)))


def test_a_million_nights_are_watched():
    (log_s,) = noise(1, 1_000_000, 6)
    log_s[500_000:] += 5 * SIGMA
    assert any(change.dated == 500_000 for change in watch(log_s).alarms)
