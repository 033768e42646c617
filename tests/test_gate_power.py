"""Rates by resampling recorded pairs: no pair judges what it helped to estimate, and the rates are the rule's."""

import importlib.util
import json
import math
import sys
from collections import Counter
from pathlib import Path

import pytest
from scipy.stats import binom

from rooftest.errors import UsageError
from rooftest.gate import power, rule
from rooftest.gate.spread import spread
from rooftest.simulated import Knobs

sys.path.insert(0, str(HERE := Path(__file__).parent))

from gate_pairs import drawn, measured, plain

TRIALS = power.FEWEST_TRIALS


def recorded(n=40, sd=0.002, seed=0):
    return plain(drawn((n,), Knobs(process_noise=sd), seed=seed), "calibrate")


def of(found, slow, budget):
    return next(rate for rate in found if (rate.slow, rate.budget) == (slow, budget))


# --- what is honest about it ----------------------------------------------------------------------------------------


def watched(monkeypatch):
    """Every trial's log ratios that sigma was estimated from, and those that were judged unslowed."""
    known, judged, real = [], [], (spread, rule.judge)

    def estimate(ratios, *more):
        known.append(list(ratios))
        return real[0](known[-1], *more)

    def judge(pairs, *more):
        judged.append(rule.log_ratios(pairs))
        return real[1](pairs, *more)

    monkeypatch.setattr(power, "spread", estimate)
    monkeypatch.setattr(power.rule, "judge", judge)
    return known, judged


def test_no_pair_is_in_both_the_estimate_and_the_trial(monkeypatch):
    known, judged = watched(monkeypatch)
    pairs = recorded()
    power.rates(pairs, trials=TRIALS)
    everything = Counter(rule.log_ratios(pairs))
    assert len(known) == TRIALS
    each = len(power.SLOWS) * len(power.BUDGETS)
    for index, estimated in enumerate(known):
        unslowed = judged[index * each]
        assert (len(estimated), len(unslowed)) == (32, 8)
        assert Counter(estimated) + Counter(unslowed) == everything


def test_a_sigma_that_saw_the_trial_would_hide_its_alarm():
    """Eight wild pairs widen the sigma that they are judged by until nothing is armed."""
    calm = list(drawn((40,), Knobs(process_noise=0.001), seed=1))
    trial = [0.05] * 8
    pairs = plain(trial[:3], "screen") + plain(trial[3:], "confirm")
    honest, leaky = spread(calm), spread(calm[:32] + trial)
    assert rule.judge(pairs, rule.limits(0.02, honest.sigma, honest.nu)).verdict == "FAIL"
    assert rule.judge(pairs, rule.limits(0.02, leaky.sigma, leaky.nu, why=leaky.reason)).verdict == "UNARMED"


def test_fewer_pairs_leave_a_wider_quantile_and_still_a_rate(monkeypatch):
    known, _ = watched(monkeypatch)
    found = power.rates(recorded(30), trials=TRIALS)
    assert {len(estimated) for estimated in known} == {22}
    assert of(found, 0.02, 0.02).fail > 0.9 * TRIALS
    assert of(found, 0.0, 0.02).independent == 3


def test_too_few_pairs_or_trials_are_refused():
    with pytest.raises(UsageError, match="29 valid A/A pairs by time; resampling needs 30"):
        power.rates(recorded(29))
    with pytest.raises(UsageError, match="0 valid A/A pairs by cycles"):
        power.rates(recorded(), "cycles")
    with pytest.raises(UsageError, match="59 trials; a rate needs 60"):
        power.rates(recorded(), trials=59)
    with pytest.raises(UsageError, match="short: 5 valid"):
        power.power_of({"series": {"short": {"bound": "memory", "pairs": recorded(5)}}})


# --- the rates ------------------------------------------------------------------------------------------------------


def test_resampled_rates_are_those_that_the_rule_promises():
    """Over series, as trials of one share pairs: the bound is that of trials without a common pair."""
    found = power.pooled([power.rates(recorded(seed=seed), trials=TRIALS, seed=str(seed)) for seed in range(8)])
    for slow, budget in ((0.01, 0.01), (0.02, 0.02), (0.005, 0.01), (0.0, 0.01)):
        got, sigma = of(found, slow, budget), 0.002 * 2**0.5 * 1.03  # two processes, and their medians' share
        log_delta = max(0.0, math.log1p(budget) - rule.factor(31, rule.AIM) * sigma)
        expected = rule.power(math.log1p(slow), log_delta, sigma, 31)
        low, high = binom.ppf(5e-7, got.independent, expected), binom.isf(5e-7, got.independent, expected)
        assert low <= got.rate * got.independent <= high, (slow, budget)
    assert of(found, 0.0, 0.02).fail == of(found, 0.0, 0.05).fail == 0
    assert of(found, 0.02, 0.01).rate > 0.99


def test_a_noisy_series_is_unarmed_and_not_a_detection():
    found = power.rates(recorded(sd=0.02), trials=TRIALS)
    assert of(found, 0.05, 0.01).unarmed == TRIALS
    assert of(found, 0.05, 0.01).rate == 0


def test_full_measurements_give_rates_too_by_every_estimator():
    pairs = measured(30, Knobs(process_noise=0.001, clock_noise=0.01), seed=5)
    by = {name: power.rates(pairs, name, TRIALS) for name in rule.ESTIMATORS}
    assert of(by["time"], 0.02, 0.02).unarmed == TRIALS
    for name in ("cycles", "peer"):
        assert of(by[name], 0.02, 0.02).rate > 0.9
        assert of(by[name], 0.0, 0.02).fail == 0


def test_a_slower_head_is_slower_by_every_estimator():
    pair = measured(1, seed=6)[0]
    for name in rule.ESTIMATORS:
        assert rule.log_ratio(power.slower(pair, 0.02), name) == pytest.approx(
            rule.log_ratio(pair, name) + math.log1p(0.02)
        )


def test_the_interval_is_clopper_and_pearsons():
    assert power.interval(0, 60) == pytest.approx((0, 1 - 0.025 ** (1 / 60)))
    assert power.interval(60, 60) == pytest.approx((0.025 ** (1 / 60), 1))
    low, high = power.interval(54, 60)
    assert binom.sf(53, 60, low) == pytest.approx(0.025)
    assert binom.cdf(54, 60, high) == pytest.approx(0.025)


# --- what is written ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data():
    series = {
        "copy": {"bound": "memory", "pairs": recorded(seed=1)},
        "read": {"bound": "memory", "pairs": recorded(seed=2)},
        "gemm": {"bound": "compute", "pairs": recorded(sd=0.02, seed=3)},
    }
    return {"series": series, "identity": {"name": "simulated"}}


def test_the_table_holds_classes_and_series_and_says_what_cannot_be_seen(data):
    got = json.loads(json.dumps(power.power_of(data, trials=TRIALS), allow_nan=False))
    assert got["classes"]["memory"]["rates"][0]["independent"] == 10
    assert got["classes"]["memory"]["rates"][0]["trials"] == 2 * TRIALS
    assert got["rule"]["factor"] == pytest.approx(2.213, abs=1e-3)
    rows = [line.split("|") for line in power.markdown(got).splitlines() if line.startswith("|")]
    assert len({len(row) for row in rows}) == 1
    assert len(rows) == 2 + 5 * len(power.SLOWS)
    names = [row[1].strip() for row in rows if row[1].strip()]
    assert names == ["what", "---", "memory-bound, 2 series", "compute-bound, 1 series", "copy", "read", "gemm"]
    text = power.text(got)
    assert "UNARMED" in text
    assert "without a common pair" in text
    assert max(map(len, text.splitlines())) < 160


def test_the_script_writes_the_rates_and_the_table(data, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("gate_power", HERE / "device" / "gate_power.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    source, out = tmp_path / "pairs.json", tmp_path / "gate" / "power.json"
    source.write_text(json.dumps(data))
    script.main(str(source), str(out), "time", TRIALS)
    assert capsys.readouterr().out == power.text(json.loads(out.read_text()))
    assert out.with_suffix(".md").read_text().startswith("| what |")
    with pytest.raises(SystemExit, match="gate_power: cannot read"):
        script.main(str(tmp_path / "none.json"), str(out))
    with pytest.raises(SystemExit, match="resampling needs 30"):
        script.main(str(source), str(out), "cycles")


def test_every_committed_table_is_the_one_its_rates_make():
    for path in (HERE.parent / "results" / "gate").glob("*-power.json"):
        assert path.with_suffix(".md").read_text() == power.markdown(json.loads(path.read_text()))
