"""The gate's rule: its false alarms and detections, by simulation, are those it promises; wrong rules are seen."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, chi2, ttest_ind
from scipy.stats import t as student

from rooftest.errors import UsageError
from rooftest.gate import rule
from rooftest.simulated import Knobs

sys.path.insert(0, str(Path(__file__).parent))

from gate_pairs import PLAN, TIME_S, drawn, measured, plain

SIGMA, TRIALS = 0.003, 20_000


def within(count, trials, probability):
    """Whether a count is one that chance gives once in a million, either side, or more often."""
    return binom.ppf(5e-7, trials, probability) <= count <= binom.isf(5e-7, trials, probability)


def rate(decide, slow, sigma=SIGMA, known=30, trials=TRIALS, seed=1):
    """How often a rule says FAIL, its sigma from `known` A/A pairs: decide(sigma_hat, nu, screen, confirm)."""
    rng = np.random.default_rng(seed)
    estimate = np.sqrt(np.mean(rng.normal(0, sigma, (trials, known)) ** 2, axis=1))
    pairs = rng.normal(math.log1p(slow), sigma, (trials, 8))
    return int(np.sum(decide(estimate, known - 1, pairs[:, :3].mean(1), pairs[:, 3:].mean(1))))


def the_rule(budget):
    def decide(sigma, nu, screen, confirm):
        log_delta = np.maximum(0, math.log1p(budget) - rule.factor(nu, rule.AIM) * sigma)
        armed = rule.factor(nu) * sigma <= math.log1p(budget)
        first = screen > rule.stage_limit(log_delta, sigma, nu, 3)
        return armed & first & (confirm > rule.stage_limit(log_delta, sigma, nu, 5))

    return decide


def no_delta(sigma, nu, screen, confirm):
    """Both stages, at the smallest delta: what the false alarms and the factor are stated for."""
    return (screen > rule.stage_limit(0.0, sigma, nu, 3)) & (confirm > rule.stage_limit(0.0, sigma, nu, 5))


# --- what the rule promises -----------------------------------------------------------------------------------------


def test_the_factor_is_derived_from_both_stages():
    for nu, expected in ((10**7, 2.109), (29, 2.213), (10, 2.451)):
        assert rule.factor(nu) == pytest.approx(expected, abs=5e-4)
    assert rule.power(rule.factor(29), 0.0, 1.0, 29) == pytest.approx(0.9)
    assert rule.power(2.29, 0.0, 1.0, 29) == pytest.approx(0.922, abs=5e-4)
    assert rule.factor(29, rule.AIM) == pytest.approx(2.824, abs=5e-4)


def test_the_root_scales_with_sigma_where_the_timer_does_not_bind():
    for log_delta, sigma in ((0.0, 0.01), (0.01, 0.003), (0.01, 1e-9)):
        assert rule.detectable(log_delta, sigma, 29) == pytest.approx(log_delta + rule.factor(29) * sigma, abs=1e-9)


def test_the_integral_over_the_estimate_is_what_a_simulation_gives():
    # nu = 29 here and thirty squares about zero in the rate: a degree of freedom more, at most 0.4 % more power.
    for x in (0.0, 0.5, 1.0, 2.0):
        expected = rule.power(x, 0.0, 1.0, 29)
        found = rate(no_delta, math.expm1(x), sigma=1.0) / TRIALS
        assert found == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / TRIALS) + 0.004)


@pytest.mark.parametrize("budget", [0.01, 0.02, 0.05])
def test_a_slow_down_of_the_budget_fails_as_often_as_aimed_at_where_the_spread_allows(budget):
    assert within(rate(the_rule(budget), budget), TRIALS, rule.AIM)


@pytest.mark.parametrize("budget", [0.01, 0.02, 0.05])
def test_a_gate_that_is_just_armed_still_sees_nine_in_ten(budget):
    sigma = math.log1p(budget) / rule.factor(29)
    assert rule.limits(budget, sigma * 0.9999, 29).armed
    assert not rule.limits(budget, sigma * 1.0001, 29).armed
    found = rate(no_delta, budget, sigma) / TRIALS
    assert found == pytest.approx(rule.POWER, abs=5 * 0.3 / TRIALS**0.5 + 0.004)  # squares about zero: as above


def test_at_no_change_a_budget_of_two_percent_never_fails():
    # sigma 0.3 %: delta is 1.1 %, so a false alarm needs means of 3 and 5 pairs above 1.5 %, nine standard deviations.
    assert rate(the_rule(0.02), 0.0, trials=200_000) == 0


def test_at_no_change_and_no_delta_one_in_six_thousand_fails():
    assert rule.power(0.0, 0.0, 1.0, 29) == pytest.approx(1.77e-4, rel=0.02)
    assert within(rate(no_delta, 0.0, trials=200_000), 200_000, rule.power(0.0, 0.0, 1.0, 29))


def test_a_slow_down_of_delta_is_allowed():
    delta = rule.limits(0.02, SIGMA, 29).delta
    assert delta == pytest.approx(0.0114, abs=1e-4)
    assert rate(the_rule(0.02), delta) < 0.001 * TRIALS


# --- wrong rules are seen -------------------------------------------------------------------------------------------


def test_a_t_test_on_the_samples_of_two_processes_alarms_at_every_other_unchanged_kernel():
    """Samples of one process know nothing of the next: the more of them, the surer and the more often wrong."""
    rng, trials = np.random.default_rng(2), 1000
    process = rng.normal(0, 0.003, (2, trials, 1))
    base, head = TIME_S * np.exp(process + rng.normal(0, 0.01, (2, trials, 200)))
    alarms = int(np.sum(ttest_ind(head, base, axis=1, alternative="greater").pvalue < rule.ALPHA))
    assert not within(alarms, trials, rule.ALPHA)
    assert alarms > 0.25 * trials


def test_a_rule_that_ignores_delta_fails_what_the_budget_allows():
    assert rate(no_delta, rule.limits(0.02, SIGMA, 29).delta) > 0.99 * TRIALS


def test_a_normal_quantile_on_a_sigma_of_five_pairs_alarms_too_often():
    decide = lambda s, nu, a, b: (a > 2.326 * s / 3**0.5) & (b > 2.326 * s / 5**0.5)  # noqa: E731
    assert not within(rate(decide, 0.0, known=5, trials=100_000), 100_000, rule.power(0.0, 0.0, 1.0, 29))
    # The rule itself does not arm with them, whatever they say.
    assert not rule.limits(0.05, 1e-6, 4).armed


def test_one_stage_alone_alarms_fifty_times_as_often():
    decide = lambda s, nu, a, b: a > rule.stage_limit(0.0, s, nu, 3)  # noqa: E731
    assert rate(decide, 0.0) > 50 * rule.power(0.0, 0.0, 1.0, 29) * TRIALS / 2


# --- what it says ---------------------------------------------------------------------------------------------------

ARMED = rule.limits(0.02, SIGMA, 29)


def judged(screen, confirm=(), known=ARMED, **more):
    return rule.judge(plain(screen, "screen", **more) + plain(confirm, "confirm", **more), known)


def test_each_verdict_has_its_case():
    slow, same = math.log(1.03), 0.0
    assert judged([same] * 3).verdict == "PASS"
    assert judged([slow] * 3, [slow] * 5).verdict == "FAIL"
    assert judged([slow] * 3, [same] * 5).verdict == "AMBIGUOUS"
    assert judged([slow] * 3, [slow] * 4).verdict == "INVALID"
    assert judged([slow] * 3).verdict == "INVALID"
    assert judged([same] * 2).verdict == "INVALID"
    assert judged([]).verdict == "INVALID"
    assert judged([slow] * 3, known=rule.limits(0.02, 0.02, 29)).verdict == "UNARMED"
    assert judged([slow] * 3, known=rule.limits(0.02, None, 0)).verdict == "UNARMED"
    assert judged([slow] * 3, known=rule.limits(0.02, SIGMA, 28)).verdict == "UNARMED"


def test_the_scalar_rule_is_the_vectorised_one():
    rng = np.random.default_rng(3)
    for row in rng.normal(0.017, SIGMA, (200, 8)):
        expected = the_rule(0.02)(np.array(SIGMA), 29, row[:3].mean(), row[3:].mean())
        assert (judged(row[:3], row[3:]).verdict == "FAIL") == expected


def test_an_invalid_pair_does_not_count_and_its_reason_is_told():
    pairs = plain([0.0, 0.0, 0.0])
    pairs[1] |= {"valid": False, "reasons": ["the hardware slowed down for heat"]}
    got = rule.judge(pairs, ARMED)
    assert got.verdict == "INVALID"
    assert got.reason == "screen has 2 of 3 valid pairs: the hardware slowed down for heat"


@pytest.mark.parametrize("time_s", [None, 0.0, -1e-6, math.nan, math.inf])
def test_an_arm_without_a_time_makes_no_ratio(time_s):
    pairs = plain([0.0, 0.0, 0.0])
    pairs[0]["head"]["time_s"] = time_s
    assert rule.judge(pairs, ARMED).verdict == "INVALID"


def test_less_than_the_timer_resolves_is_no_slow_down():
    """3 % of 10 us are 0.3 us, less than the 0.5 us of each arm's events."""
    short = {"time_s": 10e-6, "u_timer_s": 0.5e-6}
    slow = [math.log(1.03)] * 5
    resolved = rule.resolution(plain(slow, **short))
    assert resolved == pytest.approx(0.07, rel=0.02)
    unarmed = rule.limits(0.02, SIGMA, 29, resolved)
    assert not unarmed.armed
    assert unarmed.mde > 0.07
    assert not rule.stage("screen", plain(slow[:3], **short), replace(ARMED, resolution=resolved)).alarm
    assert rule.stage("screen", plain(slow[:3], **short), ARMED).alarm


def test_a_change_comes_with_its_interval_and_an_improvement_is_told():
    got = judged([-0.05, -0.051, -0.049])
    assert got.change == pytest.approx(math.expm1(-0.05))
    half = student.ppf(0.975, 29) * SIGMA / 3**0.5
    assert got.ci95 == pytest.approx((math.expm1(-0.05 - half), math.expm1(-0.05 + half)))
    assert (got.verdict, got.improved) == ("PASS", True)
    assert "faster" in got.reason
    assert not judged([-0.006] * 3).improved  # below 2.21 sigma
    alone = rule.judge(plain([0.01, 0.02, 0.03]), rule.limits(0.02, None, 0))
    assert alone.ci95[0] < 0.02 < alone.ci95[1]


def test_an_unarmed_comparison_says_the_smallest_slow_down_it_can_see():
    known = rule.limits(0.01, 0.01, 40)
    assert not known.armed
    assert known.mde == pytest.approx(math.expm1(rule.factor(40) * 0.01))
    assert known.reason == "the smallest slow-down it can see is 2.21%, the budget 1.00%"
    armed = rule.limits(0.05, 0.01, 40)
    assert armed.mde == pytest.approx(math.expm1(math.log1p(armed.delta) + rule.factor(40) * 0.01))
    assert armed.mde < 0.05


def test_a_budget_that_is_no_share_is_refused():
    for budget in (0, -0.01, 1, 2, math.nan):
        with pytest.raises(UsageError, match="write 2%"):
            rule.limits(budget, SIGMA, 29)


def test_an_unknown_estimator_is_refused():
    with pytest.raises(UsageError, match="time, cycles, peer"):
        rule.log_ratios(plain([0.0]), "wall")


def test_the_page_on_the_gate_has_the_numbers_of_the_rule():
    page = (Path(__file__).parents[1] / "docs" / "gate.md").read_text()
    rows = {cells[1].strip(): cells[2:-1] for line in page.splitlines() if len(cells := line.split("|")) == 9}
    sigmas = [float(cell.strip(" %")) / 100 for cell in rows["sigma of a pair"]]
    for sigma, seen, delta in zip(
        sigmas, rows["smallest slow-down seen (delta = 0)"], rows["delta at a budget of 2 %"], strict=True
    ):
        known = rule.limits(0.02, sigma, rule.NU)
        assert float(seen.strip(" %")) == pytest.approx(100 * math.expm1(rule.factor(rule.NU) * sigma), rel=0.02)
        told = f"{known.delta:.1%}".replace("%", " %") if known.armed else "UNARMED"
        assert delta.strip() == told
    assert f"delta + {rule.factor(29):.2f} sigma" in " ".join(page.split())
    assert f"delta = B - {rule.factor(29, rule.AIM):.2f} sigma" in " ".join(page.split())
    assert round(1 / rule.power(0.0, 0.0, 1.0, 29), -2) == 5700


# --- through the simulated device -----------------------------------------------------------------------------------


def test_processes_differ_as_told_and_samples_do_not_lessen_it():
    noisy = rule.log_ratios(measured(60, Knobs(process_noise=0.01)))
    quiet = rule.log_ratios(measured(60))
    # A pair has two processes: variance 2 x 0.01^2; quiet: two medians of 30 samples, 2 x (pi / 2 / 30) x 0.002^2.
    for got, sd in ((noisy, 0.01 * 2**0.5), (quiet, (math.pi / 30) ** 0.5 * 0.002)):
        low, high = chi2.ppf([5e-7, 1 - 5e-7], 60)
        assert low < sum(x * x for x in got) / sd**2 < high
    assert PLAN.looks[0] == 30


def test_the_light_model_agrees_with_full_measurements():
    for knobs, slow in ((Knobs(process_noise=0.005), 0.0), (Knobs(process_noise=0.003, noise=0.01), 0.02)):
        full = np.array(rule.log_ratios(measured(80, knobs, slow, seed=3)))
        light = drawn((4000,), knobs, slow, seed=4)
        assert abs(full.mean() - light.mean()) < 5 * light.std() / 80**0.5
        low, high = chi2.ppf([5e-7, 1 - 5e-7], 79)
        # More than 30 samples are taken where the interval asks for it, so full may spread less by the medians' share.
        floor = 2 * knobs.process_noise**2 / light.var()
        assert low * floor < 79 * full.var(ddof=1) / light.var() < high


def test_a_clock_that_differs_between_processes_is_seen_in_seconds_and_not_in_cycles_or_beside_a_peer():
    pairs = measured(20, Knobs(clock_noise=0.02))
    spread = {name: np.std(rule.log_ratios(pairs, name)) for name in rule.ESTIMATORS}
    assert spread["time"] > 0.015
    assert spread["cycles"] < 0.002
    assert spread["peer"] < 0.002


def test_drift_of_the_card_cancels_over_a_b_b_a_and_the_light_model_has_it_too():
    # 0.1 % an arm, and as much noise: with less, samples of a process depend so much that the timer takes 800 of them.
    knobs, arm_s = Knobs(drift_per_s=0.02, noise=1e-3), 0.056  # busy seconds of an arm with 30 samples
    full, light = rule.log_ratios(measured(40, knobs)), drawn((500, 40), knobs, arm_s=arm_s)
    for later in (full[::2], light[:, ::2]):
        assert np.mean(later) > 4e-4  # the head, timed later, looks slower; and faster in the next pair
    for earlier in (full[1::2], light[:, 1::2]):
        assert np.mean(earlier) < -4e-4
    assert abs(np.mean(full)) < 2e-4
    assert abs(np.mean(light)) < 1e-5


def test_rates_hold_on_a_card_that_drifts():
    """Sigma, about zero, holds the drift that pairs in A B B A order see, so nothing alarms by it."""
    knobs, arm_s, trials = Knobs(process_noise=0.002, drift_per_s=0.02), 0.1, 20_000
    known, unchanged = (drawn((trials, n), knobs, seed=n, arm_s=arm_s) for n in (30, 8))
    sigma = np.sqrt(np.mean(known**2, 1))

    def fails(pairs):
        return int(np.sum(the_rule(0.02)(sigma, 29, pairs[:, :3].mean(1), pairs[:, 3:].mean(1))))

    assert fails(unchanged) == 0
    # Less than AIM by what the drift of an odd number of pairs takes: 0.2 % / 3 of the screen's, one way and the other.
    assert fails(unchanged + math.log1p(0.02)) > rule.POWER * trials
    # Were every head timed second, the drift would be taken for a slow-down of 0.2 %: with delta = 0 many would fail.
    order = np.where(np.arange(8) % 2, -2, 0) * math.log1p(0.02 * arm_s)
    always = unchanged - order
    calm = np.sqrt(np.mean(drawn((trials, 30), Knobs(process_noise=0.002), seed=1) ** 2, 1))

    def alarms(pairs):
        return int(np.sum(no_delta(calm, 29, pairs[:, :3].mean(1), pairs[:, 3:].mean(1))))

    assert alarms(always) > 5 * alarms(unchanged)


def test_whole_gates_through_the_simulated_device():
    """25 unchanged kernels and 25 that are 2.5 % slower: none fails, and as many as the rule promises."""
    knobs = Knobs(process_noise=0.002)
    known = measured(40, knobs, seed=20)
    sigma = float(np.sqrt(np.mean(np.square(rule.log_ratios(known)))))
    limits = rule.limits(0.02, sigma, 39, rule.resolution(known))
    fails = {}
    for slow in (0.0, 0.025):
        judged = []
        for gate in range(25):
            pairs = measured(3, knobs, slow, 1000 + gate, "screen")
            if rule.stage("screen", pairs, limits).alarm:
                pairs += measured(5, knobs, slow, 2000 + gate, "confirm")
            judged.append(rule.judge(pairs, limits).verdict)
        fails[slow] = judged.count("FAIL")
        power = rule.power(math.log1p(slow), math.log1p(limits.delta), sigma, 39)
        assert within(fails[slow], 25, power)
    assert fails[0.0] == 0
    assert fails[0.025] > 22


def test_a_card_that_throttles_for_heat_makes_the_comparison_invalid():
    got = rule.judge(measured(3, Knobs(hw_thermal_per_s=0.5), stage="screen"), ARMED)
    assert got.verdict == "INVALID"
    assert "heat" in got.reason


def test_a_simulated_gate_fails_a_slow_kernel_and_passes_an_unchanged_one():
    knobs = Knobs(process_noise=0.002)
    known = measured(30, knobs, seed=10)
    sigma = np.sqrt(np.mean(np.square(rule.log_ratios(known))))
    limits = rule.limits(0.02, float(sigma), 29, rule.resolution(known))
    assert limits.armed
    for slow, verdict in ((0.0, "PASS"), (0.03, "FAIL"), (-0.03, "PASS")):
        pairs = measured(3, knobs, slow, 11, "screen") + measured(5, knobs, slow, 12, "confirm")
        got = rule.judge(pairs, limits)
        assert got.verdict == verdict
        assert got.improved == (slow < 0)
