"""Clock and power over a run: what the records hold of each timing, in the order in which they were taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooftest.web.marks import title
from rooftest.web.scale import Scale, around, si

Record = Mapping[str, Any]
SAID = {
    "power_limited": "the power limit held the clock down", "thermally_limited": "heat held the clock down",
    "unlocked": "clocks were not locked", "clock_swing": "the clock swung",
}  # fmt: skip
HELD_DOWN = ("power_cap_s", "sw_thermal_s", "hw_thermal_s", "power_brake_s")


@dataclass(frozen=True)
class Reading:
    """One timing: where, from lowest to highest, and its mean."""

    x: float
    y: float
    top: float
    bottom: float
    held_down: bool
    """Whether the driver held the clock down meanwhile."""
    tip: list[str]


@dataclass(frozen=True)
class Trace:
    """One quantity, in percent of the chart."""

    title: str
    ys: list[tuple[float, str]]
    limit: tuple[float, str] | None
    readings: list[Reading]
    missing: int
    """Timings that hold no such reading."""


def traces(timed: Sequence[Record], gpu: Mapping[str, Any]) -> list[Trace]:
    """Clock and power; a quantity that no record holds has no trace."""
    clock = [_three(r, "sm_hz_mean", "sm_hz_min", "sm_hz_max") for r in timed]
    power = [None if (w := r["extra_info"].get("power_w")) is None else (w, w, w) for r in timed]
    made = [
        _trace("SM clock", "Hz", timed, clock, gpu.get("sm_max_hz"), "highest that NVML names"),
        _trace("power", "W", timed, power, gpu.get("power_limit_w"), "limit"),
    ]
    return [trace for trace in made if trace is not None]


def tags(timed: Sequence[Record]) -> list[str]:
    """What the timings are tagged with, and how many of them."""
    found = Counter(t for r in timed for t in ((r["extra_info"].get("health") or {}).get("tags") or ()))
    return [f"{n} of {len(timed)}: {SAID.get(tag, tag)}" for tag, n in found.most_common()]


def _three(record: Record, *names: str) -> tuple[float, float, float] | None:
    told = record["extra_info"].get("clocks") or {}
    mean, low, high = (told.get(name) for name in names)
    return None if not mean else (mean, low or mean, high or mean)


def _trace(
    name: str, unit: str, timed: Sequence[Record], values: Sequence[tuple[float, float, float] | None],
    limit: float | None, word: str,
) -> Trace | None:  # fmt: skip
    known = [(n, v) for n, v in enumerate(values) if v is not None]
    if not known:
        return None
    lowest = 0.0 if unit == "W" else min(low for _, (_, low, _) in known)
    y = around([lowest, *(high for _, (_, _, high) in known), *([limit] if limit else [])])
    x = Scale(-0.5, len(timed) - 0.5)
    readings = []
    for n, (mean, low, high) in known:
        held, what = _held_down(timed[n]), title(timed[n])
        between = f" ({si(low, unit)} to {si(high, unit)})" if low != high else ""
        tip = [what, f"{name} {si(mean, unit)}{between}", *(["held down meanwhile"] if held else [])]
        readings.append(Reading(x.at(n), 100 - y.at(mean), 100 - y.at(high), 100 - y.at(low), held, tip))
    line = None if not limit else (100 - y.at(limit), f"{word}: {si(limit, unit)}")
    return Trace(name, [(100 - y.at(t), si(t, unit)) for t in y.ticks()], line, readings, len(timed) - len(known))


def _held_down(record: Record) -> bool:
    told = record["extra_info"].get("clocks") or {}
    return any(told.get(name) for name in HELD_DOWN)
