"""What was possible: the least time under a ceiling, and the two-sided gate that turns a time into a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

PASS, FAIL, AMBIGUOUS, INVALID = "PASS", "FAIL", "AMBIGUOUS", "INVALID"


@dataclass(frozen=True)
class Work:
    """What one call must do: operations and the fewest bytes, from the specification."""

    flop: float
    read_bytes: float
    write_bytes: float
    precision: str
    """Which matrix rate bounds it: bfloat16, float16, tf32, float8, float32."""

    @property
    def min_bytes(self) -> float:
        """Bytes read once and written once."""
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True)
class Ceiling:
    """What a device can do, and where the numbers are from."""

    kind: str
    """physical, attainable or datasheet."""
    flop_per_s: Mapping[str, float]
    bytes_per_s: float
    l2_bytes: float
    provenance: str
    mix: tuple[tuple[float, float], ...] = ()
    """(share of writes, bytes per second) in rising order, where the bandwidth depends on it: memory that turns between
    reading and writing is slower than either alone. Empty: `bytes_per_s` whatever the share."""

    def bandwidth(self, write_share: float) -> float:
        """Return bytes per second at a share of writes, the time per byte interpolated between the measured shares."""
        for (x0, y0), (x1, y1) in pairwise(self.mix):
            if x0 <= write_share <= x1:
                t = (write_share - x0) / (x1 - x0)
                return 1 / ((1 - t) / y0 + t / y1)
        return self.bytes_per_s

    def as_dict(self) -> dict[str, Any]:
        """Return the ceiling as JSON-able data."""
        return {**asdict(self), "flop_per_s": dict(self.flop_per_s), "mix": [list(pair) for pair in self.mix]}


@dataclass(frozen=True)
class Bound:
    """The least time of some work under a ceiling, in seconds; None where the ceiling lacks a number it needs."""

    least_s: float | None
    compute_s: float | None
    memory_s: float | None
    limiter: str
    """compute, memory, or why there is none."""


def bound(work: Work, ceiling: Ceiling, l2: str = "cold") -> Bound:
    """Return max(flop / rate, device-memory bytes / bandwidth).

    Cold: every input byte is read from device memory; of the output only what L2 cannot hold must have been written
    back when the call ends: reads + max(0, writes - L2). Warm: all of it may be in L2 before, reads included, so that
    only what does not fit has to move: max(0, reads + writes - L2).
    """
    if l2 == "warm":
        moved = max(0.0, work.read_bytes + work.write_bytes - ceiling.l2_bytes)
        written = moved * work.write_bytes / work.min_bytes if moved else 0.0
    else:
        written = max(0.0, work.write_bytes - ceiling.l2_bytes)
        moved = work.read_bytes + written
    rate_bytes = ceiling.bandwidth(written / moved if moved else 0.0)
    memory = moved / rate_bytes if rate_bytes else None
    rate = ceiling.flop_per_s.get(work.precision)
    if work.flop and not rate:
        return Bound(None, None, memory, f"no {ceiling.kind} rate for {work.precision}")
    compute = work.flop / rate if rate else 0.0
    if memory is None:
        return Bound(None, compute, None, f"no {ceiling.kind} bandwidth")
    return Bound(max(compute, memory), compute, memory, "compute" if compute >= memory else "memory")


@dataclass(frozen=True)
class Verdict:
    """A judged time."""

    verdict: str
    reason: str
    efficiency: float | None
    """Least time at the attainable ceiling / measured time."""
    efficiency_interval: tuple[float, float] | None
    physical_efficiency: float | None
    limiter: str
    least_attainable_s: float | None
    least_physical_s: float | None
    remeasure_ceiling: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON-able data."""
        return asdict(self)


def judge(
    time_s: float | None,
    interval_s: tuple[float, float] | None,
    work: Work,
    physical: Ceiling | None,
    attainable: Ceiling | None,
    share: float | None = None,
    invalid: Sequence[str] = (),
    l2: str = "cold",
    u_timer_s: float = 0.0,
) -> Verdict:
    """Judge a time against both roofs.

    `share` is the efficiency that the kernel's row declares; `invalid` the reasons why the measurement does not count;
    `u_timer_s` the timer's own uncertainty, added to the interval on both sides.
    """
    top = bound(work, physical, l2) if physical else None
    roof = bound(work, attainable, l2) if attainable else None
    limiter = (roof or top or Bound(None, None, None, "no ceiling")).limiter
    least_top = top.least_s if top else None
    least_roof = roof.least_s if roof else None

    def verdict(word: str, reason: str, again: bool = False) -> Verdict:
        return Verdict(word, reason, eta, etas, eta_top, limiter, least_roof, least_top, again)

    eta, etas, eta_top = None, None, None
    if time_s is None or time_s <= 0 or interval_s is None:
        return verdict(INVALID, "; ".join(invalid) or "no time was measured")
    low, high = max(interval_s[0] - u_timer_s, 1e-12), interval_s[1] + u_timer_s
    if least_roof is not None:
        eta, etas = least_roof / time_s, (least_roof / high, least_roof / low)
    if least_top is not None:
        eta_top = least_top / time_s
    if invalid:
        return verdict(INVALID, "; ".join(invalid))
    if least_top is not None and time_s < least_top:
        what = f"{time_s * 1e6:.4g} us; the physical bound is {least_top * 1e6:.4g} us ({top.limiter if top else ''})"
        if high < least_top:
            return verdict(INVALID, f"faster than physics: {what}. The bytes model, the cache or the kernel is wrong.")
        return verdict(AMBIGUOUS, f"the interval straddles the physical bound: {what}")
    if eta is None or etas is None:
        return (
            verdict(PASS, f"efficiency unknown: {limiter}")
            if share is None
            else verdict(INVALID, f"a share of {share:.0%} is declared and cannot be judged: {limiter}")
        )
    if etas[0] > 1 and (share is None or etas[0] >= share):
        return verdict(PASS, f"{eta:.1%} of the attainable ceiling, which is to be measured again", again=True)
    if share is None:
        return verdict(PASS, f"{eta:.1%} of attainable; no share is declared")
    said = f"{eta:.1%} of attainable ({etas[0]:.1%} to {etas[1]:.1%}), declared {share:.1%}"
    if etas[1] < share:
        return verdict(FAIL, f"slower than declared: {said}")
    if etas[0] < share:
        return verdict(AMBIGUOUS, f"the interval straddles the declared share: {said}")
    return verdict(PASS, said)
