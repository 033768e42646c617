"""The gate's decision, as pure statistics: pairs of fresh processes in, a verdict out.

A pair times both arms once, each in a process of its own; l = ln(head / base) of their medians. The noise that matters
lies between processes, not between samples of one process, so the pair is the unit, and its standard deviation sigma
comes from A/A pairs of the same series on the same GPU (`spread.py`): five pairs alone know too little of it
(t(0.999, 4) = 7.2). Screen with 3 pairs; where that alarms, confirm with 5 fresh ones; both by the same rule,

    mean(l) > max(ln(1 + delta) + t(1 - alpha, nu) sigma / sqrt(K), what the timer resolves)

Ratios and slow-downs are relative (0.02 is 2 %), logarithms natural, times in seconds. The shape of a pair, and of its
arms, is `$defs/pair` of rooftest/schema/spread.v1.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import chi2
from scipy.stats import t as student

from rooftest.errors import UsageError

STAGES = {"screen": 3, "confirm": 5}
"""Pairs of each stage. Screening is what every changed row costs; few rows ever need the second."""
ALPHA = 0.01
"""Of each stage, at no change and delta = 0. Both stages use the one estimate of sigma, so they do not multiply to
1e-4: at nu = 29 both alarm with probability 1.8e-4 (`power(0, 0, 1, 29)`), 5 % for 300 unchanged rows. Any delta above
zero makes that negligible."""
POWER, AIM = 0.9, 0.99
"""Probability with which a slow-down of the budget is to end as FAIL: below POWER the gate is UNARMED, and delta leaves
it AIM where the spread allows. Were delta as large as POWER allows, one in ten regressions of the size of the budget
would pass on the quietest GPU too, for a false alarm rate that is negligible already at any delta above zero."""
NU = 29
"""Degrees of freedom from which on sigma is known well enough: its 90 % interval is then 0.83 to 1.28 of it, and
t(0.99, 29) = 2.46 is 6 % above the normal's 2.33."""
ESTIMATORS = ("time", "cycles", "peer")
"""time: seconds; cycles: seconds times the SM clock held; peer: seconds over those of the peer timed beside it."""


# --- one pair ------------------------------------------------------------------------------------------------------


def quantity(arm: Mapping[str, Any], estimator: str = "time") -> float | None:
    """Return what is compared of an arm (s, cycles, or a ratio); None where it is not known or not above zero."""
    if estimator not in ESTIMATORS:
        raise UsageError(f"no estimator {estimator!r}; there are: {', '.join(ESTIMATORS)}.")
    value = arm.get("cycles" if estimator == "cycles" else "time_s")
    over = arm.get("peer_s") if estimator == "peer" else 1.0
    if value is None or over is None or not (0 < value < math.inf and 0 < over < math.inf):
        return None
    return float(value) / float(over)


def log_ratio(pair: Mapping[str, Any], estimator: str = "time") -> float | None:
    """Return ln(head / base) of a pair, from its arms; None where it is not valid or the estimator is not known."""
    if not pair["valid"]:
        return None
    base, head = quantity(pair["base"], estimator), quantity(pair["head"], estimator)
    return None if base is None or head is None else math.log(head / base)


def log_ratios(pairs: Iterable[Mapping[str, Any]], estimator: str = "time") -> list[float]:
    """Return the log ratios of those pairs that have one."""
    return [found for pair in pairs if (found := log_ratio(pair, estimator)) is not None]


def resolution(pairs: Iterable[Mapping[str, Any]]) -> float:
    """Return the log ratio that the timers resolve: sqrt(u_base^2 + u_head^2), relative, the largest of the pairs.

    The timers' uncertainty is mostly systematic (the offset of a pair of events), so more pairs do not lessen it.
    """

    def relative(arm: Mapping[str, Any]) -> float:
        return float((arm.get("u_timer_s") or 0.0) / arm["time_s"])

    counted = [pair for pair in pairs if log_ratio(pair) is not None]
    return max((math.hypot(relative(p["base"]), relative(p["head"])) for p in counted), default=0.0)


# --- what the rule can see -----------------------------------------------------------------------------------------


def stage_limit(log_delta: Any, sigma: Any, nu: float, k: int, resolved: float = 0.0) -> Any:
    """Return the mean log ratio above which a stage of k pairs alarms; numbers or numpy arrays."""
    return np.maximum(log_delta + _t(1 - ALPHA, nu) * sigma / math.sqrt(k), resolved)


def power(log_slow: float, log_delta: float, sigma: float, nu: float, resolved: float = 0.0) -> float:
    """Return the probability that both stages alarm at a slow-down of ln(1 + x) = log_slow.

    mean(l) of K pairs is normal about log_slow with sigma / sqrt(K). The rule uses an estimate s sigma instead, the
    same in both stages, with nu s^2 ~ chi2(nu); so, with the stages independent given s,

        power = E over s of the product over K = 3, 5 of Phi(sqrt(K) (log_slow - limit_K(s)) / sigma)
    """
    s = _scales(nu)
    sigma = max(sigma, 1e-12)  # a sigma of zero is a step, not a division by zero
    both = np.ones_like(s)
    for k in STAGES.values():
        limit = stage_limit(log_delta, s * sigma, nu, k, resolved)
        both = both * ndtr(math.sqrt(k) * (log_slow - limit) / sigma)
    return float(both.mean())


@lru_cache(maxsize=256)
def _t(probability: float, nu: float) -> float:
    """Return Student's quantile."""
    return float(student.ppf(probability, nu))


@lru_cache(maxsize=64)
def _scales(nu: float) -> Any:
    """Return sqrt(chi2(nu) / nu) at the middles of 1000 equal slices of its probability: a mean over it integrates."""
    return np.sqrt(chi2.ppf((np.arange(1000) + 0.5) / 1000, nu) / nu)


def detectable(log_delta: float, sigma: float, nu: float, resolved: float = 0.0, wanted: float = POWER) -> float:
    """Return the log slow-down that ends as FAIL with the probability wanted: the root of `power`."""
    # Both stages' limits are below this, and 10 standard deviations and more above them lies every probability.
    worst = log_delta + resolved + 20 * sigma * _t(1 - ALPHA, nu) + 1e-9
    return float(brentq(lambda x: power(x, log_delta, sigma, nu, resolved) - wanted, 0.0, worst, xtol=1e-10))


@lru_cache(maxsize=256)
def factor(nu: float, wanted: float = POWER) -> float:
    """Return c with: a slow-down of delta + c sigma is seen with the probability wanted.

    For a sigma that is known, Phi(sqrt(3) c - z) Phi(sqrt(5) c - z) = 0.9 with z = z(0.99) = 2.33 gives c = 2.11; for
    one from nu = 29, t(0.99, 29) = 2.46 in its place and the mean over the estimate give 2.21. (2.29, with which this
    rule was first written down, has a power of 92 %.) With few degrees of freedom it grows: 2.45 at 10, 2.95 at 5. For
    a power of 0.99 it is 2.82 at 29.
    """
    return detectable(0.0, 1.0, nu, wanted=wanted)


@dataclass(frozen=True)
class Limits:
    """What a comparison can decide; all relative."""

    budget: float
    """The slow-down that is to be seen with probability POWER."""
    sigma: float | None
    """Standard deviation of a pair's log ratio."""
    nu: int
    """Degrees of freedom of sigma."""
    resolution: float
    """Log ratio that the timers resolve."""
    delta: float
    """Slow-down that is allowed: ln(1 + delta) = max(0, ln(1 + budget) - c sigma), with the c of AIM."""
    mde: float | None
    """Smallest slow-down that is seen with probability POWER; above the budget the comparison is UNARMED."""
    reason: str
    """Why the gate is UNARMED; empty where it is armed."""

    @property
    def armed(self) -> bool:
        """Whether a slow-down can FAIL."""
        return not self.reason


def limits(
    budget: float, sigma: float | None, nu: int, resolved: float = 0.0, why: str = "", needed: int = NU
) -> Limits:
    """Return what a comparison with this budget can decide.

    `sigma` and `nu` come from A/A pairs (sigma None: none are known), `resolved` from `resolution`, `why` says why the
    spread store has no usable sigma. UNARMED where there is a `why`, where nu is below `needed`, and where the smallest
    slow-down that is seen is above the budget: a gate that would let it through is not to look like one that holds.

    Raises UsageError for a budget that is no share between 0 and 1.
    """
    if not 0 < budget < 1:
        raise UsageError(f"a budget of {budget:g} is no share between 0 and 1: write 2% or 0.02.")
    if sigma is None or nu < 1:
        return Limits(budget, None, 0, resolved, 0.0, None, why or "no A/A pairs of this series on this GPU")
    asked = math.log1p(budget)
    log_delta = max(0.0, asked - factor(nu, AIM) * sigma)
    # Where the timer never binds, the root is known: everything scales with sigma.
    never = resolved <= log_delta
    seen = log_delta + factor(nu) * sigma if never else detectable(log_delta, sigma, nu, resolved)
    if not why and nu < needed:
        why = f"{nu + 1} A/A pairs of this series on this GPU, {needed + 1} are needed"
    if not why and seen > asked * (1 + 1e-6):  # beyond the rounding of the root
        why = f"the smallest slow-down it can see is {math.expm1(seen):.2%}, the budget {budget:.2%}"
    return Limits(budget, sigma, nu, resolved, math.expm1(log_delta), math.expm1(seen), why)


# --- the decision --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """One stage: k valid pairs, their mean log ratio, the limit it is held against (None: no sigma known)."""

    name: str
    k: int
    mean: float | None
    limit: float | None
    alarm: bool

    @property
    def complete(self) -> bool:
        """Whether as many pairs are valid as the stage needs."""
        return self.k >= STAGES[self.name]


def stage(name: str, pairs: Sequence[Mapping[str, Any]], known: Limits, estimator: str = "time") -> Stage:
    """Return a stage's decision, from those of the pairs that are of it ("stage" is its name) and valid.

    A stage with too few valid pairs, or one of an UNARMED comparison, does not alarm.
    """
    ratios = log_ratios((pair for pair in pairs if pair["stage"] == name), estimator)
    k, mean = len(ratios), fmean(ratios) if ratios else None
    if mean is None or known.sigma is None:
        return Stage(name, k, mean, None, alarm=False)
    limit = float(stage_limit(math.log1p(known.delta), known.sigma, known.nu, k, known.resolution))
    return Stage(name, k, mean, limit, alarm=known.armed and k >= STAGES[name] and mean > limit)


@dataclass(frozen=True)
class Judgement:
    """The verdict on one comparison."""

    verdict: str
    """PASS, FAIL, AMBIGUOUS, INVALID or UNARMED."""
    reason: str
    """One line for people; empty for a plain PASS."""
    change: float | None
    """head / base - 1 from all valid pairs. After an alarm it leans upward, as the screen's pairs were chosen by it."""
    ci95: tuple[float, float] | None
    """95 % interval of the change, by sigma where it is known, else by the pairs' own spread."""
    improved: bool
    """Faster by more than what would be seen as a slow-down at delta = 0."""
    stages: tuple[Stage, ...]


def judge(pairs: Sequence[Mapping[str, Any]], known: Limits, estimator: str = "time") -> Judgement:
    """Return the verdict on pairs of the stages screen and, where that alarmed, confirm.

    Fails closed: a screen with too few valid pairs is INVALID, and so is one that alarms and is not confirmed or
    refuted by enough of them. UNARMED says that nothing could have failed; change and interval are still reported.
    """
    screen = stage("screen", pairs, known, estimator)
    change, ci95, improved = _change(log_ratios(pairs, estimator), known)

    def verdict(word: str, reason: str, *stages: Stage) -> Judgement:
        return Judgement(word, reason, change, ci95, improved, stages)

    if not screen.complete:
        return verdict("INVALID", _lacks(screen, pairs), screen)
    if not known.armed:
        return verdict("UNARMED", known.reason, screen)
    if not screen.alarm:
        faster = "faster beyond what chance allows" if improved else ""
        return verdict("PASS", faster, screen)
    confirm = stage("confirm", pairs, known, estimator)
    if not confirm.complete:
        return verdict("INVALID", f"the screen alarmed, but {_lacks(confirm, pairs)}", screen, confirm)
    if confirm.alarm:
        return verdict("FAIL", f"slower by {change:.2%}, {known.delta:.2%} is allowed", screen, confirm)
    return verdict("AMBIGUOUS", "the screen alarmed, fresh pairs did not", screen, confirm)


def _lacks(found: Stage, pairs: Sequence[Mapping[str, Any]]) -> str:
    """Say how many valid pairs a stage has, and what the others suffer from."""
    reasons = dict.fromkeys(r for p in pairs if p["stage"] == found.name and not p["valid"] for r in p["reasons"])
    told = f": {'; '.join(list(reasons)[:2])}" if reasons else ""
    return f"{found.name} has {found.k} of {STAGES[found.name]} valid pairs{told}"


def _change(ratios: Sequence[float], known: Limits) -> tuple[float | None, tuple[float, float] | None, bool]:
    """Return the relative change, its 95 % interval, and whether it is an improvement."""
    n = len(ratios)
    if n == 0:
        return None, None, False
    mean = fmean(ratios)
    if known.sigma is not None:
        half = _t(0.975, known.nu) * known.sigma / math.sqrt(n)
    elif n > 1:
        half = _t(0.975, n - 1) * stdev(ratios) / math.sqrt(n)
    else:
        return math.expm1(mean), None, False
    improved = known.armed and known.sigma is not None and -mean > factor(known.nu) * known.sigma + known.resolution
    return math.expm1(mean), (math.expm1(mean - half), math.expm1(mean + half)), improved
