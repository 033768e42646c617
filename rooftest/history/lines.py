"""A history in lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from rooftest.errors import UsageError
from rooftest.history.alarm import BASELINE, Change
from rooftest.history.base import History
from rooftest.history.cause import Cause, causes
from rooftest.history.series import Cut, Segment, cuts, latest, standing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 30  # nights of a sparkline
MANY = 20  # alarms, or changes of covariates, told in full; the rest is counted


def overview(history: History, found: Sequence[Segment], pattern: str | None = None) -> list[str]:
    """Return the lines of `rooftest history`: alarms that stand, changes of covariates, every series by GPU, notes.

    `found`: the segments of the pattern, if there is one; earlier segments and alarms are then told too. Raises
    UsageError for a pattern that fits nothing.
    """
    if pattern and not found:
        raise UsageError(f"no series of {history.place.text} is called {pattern!r}; without --series all are listed")
    if not found:
        return [f"{history.place.text}: no times yet; `pytest suites/` on a GPU records some", *history.notes]
    alarms = [(s, c) for s in found for c in s.watch.alarms] if pattern else standing(found)
    out = [_head(history, found), *_alarms(alarms, causes(history, alarms[:MANY])), *_cuts(cuts(found))]
    shown: dict[str, list[Segment]] = {}
    for segment in found if pattern else latest(found):
        shown.setdefault(segment.series, []).append(segment)
    for name, mine in shown.items():
        out += [name, *(f"  {text}" for text in map(segment_line, mine))]
    return [*out, *history.notes]


def _head(history: History, found: Sequence[Segment]) -> str:
    [(runs, first, last)] = history.ask("SELECT count(*), min(created), max(created) FROM runs")
    series, gpus = ({f(s) for s in found} for f in (lambda s: s.series, lambda s: s.covariates["uuid"]))
    return (
        f"{history.place.text}: {_many(runs, 'run')} from {first:%Y-%m-%d} to {last:%Y-%m-%d}, {len(series)} series on "
        f"{_many(len(gpus), 'GPU')}"
    )


def _alarms(alarms: Sequence[tuple[Segment, Change]], why: Sequence[Cause]) -> list[str]:
    if not alarms:
        return ["nothing became slower, as far as it is watched"]
    out = [f"{_many(len(alarms), 'alarm')}, the newest first:"]
    for (segment, change), cause in zip(alarms, why, strict=False):
        out += [f"  {text}" for text in alarm_lines(segment, change, cause)]
    return [*out, *_rest(len(alarms) - len(why))]


def alarm_lines(segment: Segment, change: Change, cause: Cause) -> list[str]:
    """Return what an alarm says: what and since when, the revisions, what else changed, and how to measure it again."""
    sure = "since" if change.dated is not None else "since about"
    old, new = cause.revisions
    revisions = f"revisions {old or 'unknown'} (good) .. {new or 'unknown'} (slower)"
    if old and old == new:
        revisions = f"revision {old} on both sides: the kernel's repository did not change"
    dates = f"{sure} {segment.day(change.first)} (raised {segment.day(change.raised)})"
    return [
        f"{segment.series} on {gpu(segment.gpu, segment.covariates['uuid'])}: {signed(change.ratio - 1)} {dates}",
        f"  {revisions}; {_differ(cause.differ) or 'no version or setting changed with it'}",
        f"  measure again: {cause.command or 'no revision is recorded to compare with (rooftest older than this?)'}",
    ]


def _cuts(found: Sequence[Cut]) -> list[str]:
    """Changes of covariates, one line for all series that they cut on a day."""
    days: dict[tuple[object, ...], list[float]] = {}
    for cut in found:
        days.setdefault((cut.day, cut.gpu, _differ(cut.differ)), []).append(cut.ratio)
    if not days:
        return []
    out = ["series that start anew, because something else than the kernel changed (described, not judged):"]
    for (day, uuid, differ), ratios in list(days.items())[::-1][:MANY]:
        low, high = min(ratios) - 1, max(ratios) - 1
        spread = signed(low) if len(ratios) == 1 else f"{signed(low)} to {signed(high)}"
        out.append(f"  {day} {str(uuid)[:12]}: {differ}; {len(ratios)} series, times {spread}")
    return [*out, *_rest(len(days) - MANY)]


def segment_line(segment: Segment) -> str:
    """Return a line: GPU and covariates, nights, last time, change since when, the last nights as bars."""
    known, watched = segment.covariates, segment.watch.sigma
    first, last = segment.day(0), segment.day(-1)
    nights = f"{_many(len(segment.days), 'night')} {first}..{last:%m-%d}" if first != last else f"{first}"
    state = f"night's sigma {watched:.2%}" if watched is not None else (
        f"not watched before {BASELINE} nights (has {len(segment.days) - segment.watch.start})"
    )  # fmt: skip
    return (
        f"{gpu(segment.gpu, known['uuid'])} driver {known['driver']}, {known['timer']}, {known['clock']}, "
        f"{known['harness']}: {nights}, last {seconds(segment.last_s)} {signed(segment.change)} since {segment.since} "
        f"{bars(segment.days, segment.log_s)} {state}"
    )


def bars(days: NDArray[np.int64], log_s: NDArray[np.float64]) -> str:
    """Return the last nights as bars from the fastest to the slowest of them; a gap of more than a week is a space."""
    import numpy as np

    days, values = days[-WIDTH:], log_s[-WIDTH:]
    low, high = float(values.min()), float(values.max())
    steps = np.zeros(len(values)) if high == low else (values - low) / (high - low) * (len(BARS) - 1)
    drawn = np.array(list(BARS))[np.rint(steps).astype(int)]
    gaps = np.flatnonzero(np.diff(days) > timedelta(weeks=1).days) + 1
    return "".join(np.insert(drawn, gaps, " ").tolist())


def gpu(name: str, uuid: str) -> str:
    """Return a GPU in words: its model and the first eight digits of its UUID."""
    return f"{name.removeprefix('NVIDIA ')} {uuid.removeprefix('GPU-')[:8]}"


def seconds(time_s: float) -> str:
    """Return a time with its unit, four digits."""
    unit, scale = next((u for u in (("us", 1e6), ("ms", 1e3)) if time_s * u[1] < 1000), ("s", 1.0))
    return f"{time_s * scale:.4g} {unit}"


def signed(share: float) -> str:
    """Return a change in per cent; one that rounds to nothing has the sign +."""
    return f"{round(share, 3) + 0.0:+.1%}"


def _differ(differ: dict[str, tuple[str, str]]) -> str:
    return ", ".join(f"{word} {old} -> {new}" for word, (old, new) in differ.items())


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _rest(n: int) -> Iterable[str]:
    return [f"  and {n} more: narrow them with --series=GLOB"] if n > 0 else []
