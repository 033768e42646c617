"""How often the gate sees a slow-down, and how often it alarms without one: from recorded A/A pairs, by resampling.

A trial takes 8 of a series' pairs at random, 3 as its screen and 5 to confirm, makes their head slower by a known
share, and estimates sigma from the other pairs only: no pair is in both, or the spread would have seen what it is to
judge. Then it is judged by `rule.judge` itself. Trials share pairs, so many of them say how well the resampling is
resolved and not how well the pairs stand for the GPU: a class of series therefore also counts `independent`, the
disjoint trials that its pairs hold, and its interval is that of so many.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scipy.stats import beta

from rooftest.errors import UsageError
from rooftest.gate import rule
from rooftest.gate.spread import spread
from rooftest.stats import lag1

VERSION = 1
SLOWS = (0.0, 0.005, 0.01, 0.02, 0.05)
BUDGETS = (0.01, 0.02, 0.05)
TRIALS = 200
FEWEST_TRIALS, FEWEST_PAIRS = 60, 30
TAKEN = sum(rule.STAGES.values())
"""Pairs of one trial."""


def interval(hits: float, trials: float) -> tuple[float, float]:
    """Return the 95 % interval of a probability after `hits` in `trials` (Clopper and Pearson, by the beta law)."""
    low = float(beta.ppf(0.025, hits, trials - hits + 1)) if hits > 0 else 0.0
    high = float(beta.ppf(0.975, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high


@dataclass(frozen=True)
class Rate:
    """What became of the trials with one slow-down at one budget."""

    slow: float
    budget: float
    trials: int
    independent: int
    """Trials without a common pair that the recorded pairs hold."""
    fail: int
    ambiguous: int
    unarmed: int

    @property
    def rate(self) -> float:
        """The share that FAILed: detection, or false alarms where nothing was slower. UNARMED ones count as not."""
        return self.fail / self.trials

    def ci95(self, trials: float | None = None) -> tuple[float, float]:
        """Return the rate's 95 % interval, as of so many trials (default: all)."""
        trials = trials or self.trials
        return interval(self.rate * trials, trials)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        pairs = self.ci95(self.independent)
        return {**vars(self), "rate": self.rate, "ci95": list(self.ci95()), "ci95_independent": list(pairs)}


def slower(pair: Mapping[str, Any], slow: float) -> dict[str, Any]:
    """Return the pair with its head slower by a share, in seconds and in cycles."""
    head = pair["head"]
    scaled = {key: head[key] and head[key] * (1 + slow) for key in ("time_s", "cycles")}
    return {**pair, "head": {**head, **scaled}}


def rates(
    pairs: Sequence[Mapping[str, Any]], estimator: str = "time", trials: int = TRIALS, seed: str = ""
) -> list[Rate]:
    """Return the rates of one series, for every slow-down and budget.

    With fewer than 38 pairs fewer than 30 are left for sigma. The rule is then held with the t quantile of as many as
    there are, which is wider, and arms all the same. Raises UsageError below 30 pairs or 60 trials.
    """
    usable = [pair for pair in pairs if rule.log_ratio(pair, estimator) is not None]
    if len(usable) < FEWEST_PAIRS:
        raise UsageError(f"{len(usable)} valid A/A pairs by {estimator}; resampling needs {FEWEST_PAIRS}.")
    if trials < FEWEST_TRIALS:
        raise UsageError(f"{trials} trials; a rate needs {FEWEST_TRIALS}.")
    chance = random.Random(seed)  # noqa: S311  a simulation, to be repeated
    needed = min(rule.NU, len(usable) - TAKEN - 1)
    slowed = {slow: [slower(pair, slow) for pair in usable] for slow in SLOWS}
    names = [name for name, k in rule.STAGES.items() for _ in range(k)]
    found: dict[tuple[float, float], Counter[str]] = {(s, b): Counter() for s in SLOWS for b in BUDGETS}
    for _ in range(trials):
        taken = chance.sample(range(len(usable)), TAKEN)
        known = spread(rule.log_ratios((p for n, p in enumerate(usable) if n not in taken), estimator), needed)
        for budget in BUDGETS:
            # The timer's uncertainty is the protocol's, not an estimate, so it may be read of the judged pairs.
            resolved = rule.resolution(usable[n] for n in taken)
            limits = rule.limits(budget, known.sigma, known.nu, resolved, known.reason, needed)
            for slow in SLOWS:
                judged = [{**slowed[slow][n], "stage": name} for n, name in zip(taken, names, strict=True)]
                found[slow, budget][rule.judge(judged, limits, estimator).verdict] += 1
    independent = len(usable) // TAKEN
    return [
        Rate(slow, budget, trials, independent, got["FAIL"], got["AMBIGUOUS"], got["UNARMED"])
        for (slow, budget), got in found.items()
    ]


def pooled(parts: Sequence[Sequence[Rate]]) -> list[Rate]:
    """Return the rates of several series as one."""
    return [
        Rate(
            same[0].slow, same[0].budget, sum(r.trials for r in same), sum(r.independent for r in same),
            sum(r.fail for r in same), sum(r.ambiguous for r in same), sum(r.unarmed for r in same),
        )
        for same in zip(*parts, strict=True)
    ]  # fmt: skip


def power_of(recorded: Mapping[str, Any], estimator: str = "time", trials: int = TRIALS) -> dict[str, Any]:
    """Return the rates of recorded pairs as JSON-able data: by series, and by class (memory- or compute-bound).

    `recorded` is {"series": {name: {"bound": "memory" or "compute", "pairs": [...]}}, "identity": {...}}. Raises
    UsageError for a series with too few pairs, naming it.
    """
    series: dict[str, Any] = {}
    parts: dict[str, list[list[Rate]]] = {}
    for name, told in recorded["series"].items():
        try:
            got = rates(told["pairs"], estimator, trials, name)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None
        parts.setdefault(told["bound"], []).append(got)
        ratios = rule.log_ratios(told["pairs"], estimator)
        known = spread(ratios)
        series[name] = {
            "bound": told["bound"], "pairs": len(ratios), "left_out": len(told["pairs"]) - len(ratios),
            "sigma": known.sigma, "upper": known.upper, "detectable": known.detectable, "wild": known.wild,
            "reason": known.reason, "lag1": lag1(ratios), "rates": [rate.as_dict() for rate in got],
        }  # fmt: skip
    classes = {
        bound: {"series": len(got), "rates": [rate.as_dict() for rate in pooled(got)]} for bound, got in parts.items()
    }
    held = {
        "alpha": rule.ALPHA,
        "power": rule.POWER,
        "stages": rule.STAGES,
        "nu": rule.NU,
        "factor": rule.factor(rule.NU),
    }
    return {
        "power_version": VERSION, "created": datetime.now(UTC).isoformat(timespec="seconds"), "estimator": estimator,
        "identity": recorded.get("identity"), "rule": held, "classes": classes, "series": series,
    }  # fmt: skip


# --- tables --------------------------------------------------------------------------------------------------------


def _cell(got: Mapping[str, Any], interval_of: str) -> str:
    if got["unarmed"] == got["trials"]:
        return "UNARMED"
    low, high = got[interval_of]
    partly = f", armed {1 - got['unarmed'] / got['trials']:.0%}" if got["unarmed"] else ""
    return f"{got['rate']:.1%} [{low:.1%}, {high:.1%}]{partly}"


def table(data: Mapping[str, Any]) -> list[list[str]]:
    """Return header and rows of cells: classes first, then series; one row a slow-down, FAIL rates by budget."""
    out = [["what", "pairs", "sigma", "detects", "slow-down", *(f"FAIL at {budget:.0%}" for budget in BUDGETS)]]

    def add(name: str, about: Sequence[str], found: Sequence[Mapping[str, Any]], interval_of: str) -> None:
        for index, slow in enumerate(SLOWS):
            first = [name, *about] if index == 0 else [""] * 4
            cells = [_cell(got, interval_of) for got in found if math.isclose(got["slow"], slow, abs_tol=1e-12)]
            out.append([*first, f"{slow:.1%}" if slow else "none", *cells])

    for bound, got in data["classes"].items():
        independent = got["rates"][0]["independent"]
        about = [f"{independent} trials", "", ""]
        add(f"{bound}-bound, {got['series']} series", about, got["rates"], "ci95_independent")
    for name, got in data["series"].items():
        about = [str(got["pairs"]), f"{got['sigma']:.2%}", f"{got['detectable']:.2%}"]
        add(name, about, got["rates"], "ci95")
    return out


def text(data: Mapping[str, Any]) -> str:
    """Return the table for a terminal."""
    rows = table(data)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", NOTE]) + "\n"


def markdown(data: Mapping[str, Any]) -> str:
    """Return the table as Markdown."""
    header, *rows = table(data)
    lines = [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join([*lines, "", NOTE]) + "\n"


NOTE = """\
FAIL rate [95 % interval] of trials of 3 + 5 pairs, the sigma of each from the other pairs of its series. A class's
interval is that of trials without a common pair; a series' is that of all its trials, which share pairs.
detects: the smallest slow-down that delta = 0 sees with 90 % power. slow-down none: false alarms."""
