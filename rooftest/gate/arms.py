"""Two sides of one workload on one GPU: each in a fresh process, measured in turn, never at the same time."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rooftest.gate import rule
from rooftest.process import KernelError, KernelProcess

if TYPE_CHECKING:
    from pathlib import Path

    from rooftest.gate.trees import Trees
    from rooftest.rows import Row

ORDERS = {"AB": ("base", "head", "head", "base"), "BA": ("head", "base", "base", "head")}
"""Both living processes in turn: what drifts in one direction over the four (heat) is the same on both sides."""
SAMPLES = 100
"""Of each measurement, two of each side: a median of 100 has a standard error of 1.25 / sqrt(100), an eighth of what
they scatter by. As many for both sides, always: a stop rule would take more of the side that drifts."""


class ArmError(Exception):
    """A side that could not be measured: which one, and why in one line."""

    def __init__(self, side: str, cause: KernelError) -> None:
        super().__init__(side, cause)
        self.side, self.cause = side, cause

    def __str__(self) -> str:
        return f"{self.side}: {self.cause}"


@dataclass(frozen=True)
class Arms:
    """Both sides: the row of each, and where its code lies."""

    base: Row
    head: Row
    trees: Trees
    device: str
    extensions: Path

    def process(self, side: str, *, watched: bool = False) -> KernelProcess:
        """A fresh process of one side, not yet started."""
        head, base = str(self.trees.head), str(self.trees.base)
        words: dict[str, str] = {}
        if side == "base" and head != base:
            words = {"head": head, "base": base, "extensions": str(self.extensions)}
        if watched:
            words["watch"] = base if side == "base" else head
        # Under one name: the request, the record and the answer speak of one kernel.
        row = replace(self.base, name=self.head.name) if side == "base" else self.head
        return KernelProcess(row, self.device, trees=words)


def fingerprints(arms: Arms, request: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What each side reads and launches, by side; raises ArmError."""
    found = {}
    for side in ("base", "head"):
        process = arms.process(side, watched=True)
        try:
            found[side] = process.fingerprint(dict(request))
        except KernelError as error:
            raise ArmError(side, error) from None
        finally:
            process.close()
    return found


@contextmanager
def fresh(arms: Arms) -> Iterator[dict[str, KernelProcess]]:
    """Both sides' processes, not yet started; they end with the block."""
    processes = {side: arms.process(side) for side in ("base", "head")}
    try:
        yield processes
    finally:
        for process in processes.values():
            process.close()


def pair(arms: Arms, request: Mapping[str, Any], stage: str, order: str, estimator: str = "time") -> dict[str, Any]:
    """One pair of fresh processes as plain data, see `taken`; raises ArmError."""
    with fresh(arms) as processes:
        return taken(arms, processes, request, stage, order, estimator)


def taken(
    arms: Arms,
    processes: Mapping[str, KernelProcess],
    request: Mapping[str, Any],
    stage: str,
    order: str,
    estimator: str = "time",
) -> dict[str, Any]:
    """A pair measured in two processes that are there.

    Besides what a pair holds: "identity" of the GPU, "plan", and "memory": bytes that a call takes beside inputs and
    outputs, by side. `estimator`, one of rule.ESTIMATORS: what the ratio is of; "peer" needs a request with a
    "reference". Raises ArmError.
    """
    results: dict[str, list[dict[str, Any]]] = {"base": [], "head": []}
    for side in ORDERS[order]:
        try:
            results[side].append(processes[side].measure(dict(request)))
        except KernelError as error:
            raise ArmError(side, error) from None
    sides = {side: _arm(arms.head.name, found) for side, found in results.items()}
    reasons = [f"{side}: {reason}" for side, arm in sides.items() for reason in arm["reasons"]]
    about = {key: results["head"][0][key] for key in ("identity", "plan")}
    about["memory"] = {
        f"{side}_bytes": (found[0].get("memory") or {}).get("workspace_bytes") for side, found in results.items()
    }
    made = {"stage": stage, "order": order, **sides, "valid": not reasons, "reasons": reasons}
    return {**made, "log_ratio": rule.log_ratio(made, estimator), **about}


def _arm(name: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """One side of a pair from its measurements, each weighing as much: geometric means, as ratios are compared."""
    calls = [result["calls"].get(name, {}) for result in results]
    timings = [call.get("timing") or {} for call in calls]
    clocks = [call.get("clocks") or {} for call in calls]
    others = [other.get("timing") or {} for result in results for n, other in result["calls"].items() if n != name]
    time_s = _mean([t.get("median_s") for t in timings])
    reasons = list(dict.fromkeys(reason for result in results for reason in result["reasons"]))
    if time_s is None and not reasons:
        reasons = ["no time was measured"]
    intervals = [t.get("ci95_s") for t in timings]
    tags = dict.fromkeys(tag for result in results for tag in result.get("validity", {}).get("tags", ()))
    return {
        "time_s": time_s,
        "ci95_s": [_mean([i[n] for i in intervals if i]) for n in (0, 1)] if all(intervals) else None,
        "cycles": _mean([c.get("cycles_median") for c in clocks]),
        "clock_hz": _mean([c.get("sm_hz_mean") for c in clocks]),
        "peer_s": _mean([t.get("median_s") for t in others]),
        "timer": next((t.get("timer") for t in timings if t.get("timer")), None),
        "u_timer_s": max((t.get("u_timer_s") or 0.0 for t in timings), default=0.0),
        "n": sum(t.get("n_accepted") or 0 for t in timings),
        "status": next((r["status"] for r in results if r["status"] != "ok"), "ok"),
        "reasons": reasons,
        "tags": list(tags),
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None and value > 0]
    return statistics.geometric_mean(known) if known and len(known) == len(values) else None
