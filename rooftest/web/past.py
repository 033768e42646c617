"""What a store knows of a page's GPU: series by night with their change points, alarms, since when a test fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from rooftest.web.marks import duration
from rooftest.web.scale import Scale, around

if TYPE_CHECKING:
    from rooftest.history.alarm import Change
    from rooftest.history.base import History
    from rooftest.history.series import Segment

NIGHTS, DRAWN = 400, 400
"""Nights drawn of a series, and series of a GPU, those that became slower first: a chart is 300 to 1200 pixels wide,
and at 8 letters a night all of them are 1.3 MB."""
UNITS = 5_000  # a path's coordinates are whole numbers of this, about 0.2 pixels


@dataclass(frozen=True)
class Turn:
    """A change point: where, what it says, and whether it is for the worse."""

    x: float
    text: str
    slower: bool


@dataclass(frozen=True)
class Line:
    """One series over time, in percent of the chart; `paths` in units of 1/5000."""

    series: str
    paths: list[str]
    xs: list[tuple[float, str]]
    ys: list[tuple[float, str]]
    turns: list[Turn]
    cuts: list[tuple[float, str]]
    """Where covariates changed: nothing is compared across."""
    watched: str
    """By how many nights it is watched, or how many are missing."""
    alarm: bool


@dataclass(frozen=True)
class Alarm:
    """A series that became slower and still is."""

    series: str
    ratio: float
    since: date
    lines: list[str]


@dataclass(frozen=True)
class Unwatched:
    """A series whose baseline is not full."""

    series: str
    nights: int
    """Nights of the baseline so far."""
    since: date


@dataclass(frozen=True)
class Past:
    """What a store says of one GPU."""

    place: str
    lines: list[Line]
    more: int
    """Series that are not drawn."""
    alarms: list[Alarm]
    unwatched: list[Unwatched]
    needed: int
    """Nights of a baseline."""
    red: dict[str, tuple[datetime, bool]]
    """Tests that FAIL now: since when, and whether they were seen right before."""
    notes: list[str]


def opened(place: str) -> History:
    """The store, opened once for all GPUs of a page: its runs take most of the time.

    Raises UsageError where there is no such store, or a library of the extra [report] is missing.
    """
    from rooftest.history import base

    return base.History(place)


def read(held: History, uuid: str | None) -> Past:
    """What a store knows of a GPU by its UUID."""
    from rooftest.history import lines
    from rooftest.history import series as over
    from rooftest.history.alarm import BASELINE
    from rooftest.history.cause import causes

    mine = [s for s in over.segments(held) if s.covariates["uuid"] == uuid]
    standing = over.standing(mine)
    alarms = [
        Alarm(s.series, c.ratio - 1, s.day(c.first), lines.alarm_lines(s, c, cause))
        for (s, c), cause in zip(standing, causes(held, standing), strict=True)
    ]
    loud = {alarm.series for alarm in alarms}
    by_name: dict[str, list[Segment]] = {}
    for segment in mine:
        by_name.setdefault(segment.series, []).append(segment)
    cuts: dict[str, list[Any]] = {}
    for cut in over.cuts(mine):
        cuts.setdefault(cut.series, []).append(cut)
    names = sorted(by_name, key=lambda name: (name not in loud, name))
    drawn = [_line(name, by_name[name], cuts.get(name, ()), alarm=name in loud) for name in names[:DRAWN]]
    unwatched = [Unwatched(s.series, _nights(s), s.since) for s in over.latest(mine) if s.watch.sigma is None]
    return Past(
        held.place.text, drawn, len(names) - len(drawn), alarms, unwatched, BASELINE, _red(held, uuid), held.notes
    )  # fmt: skip


def _red(held: Any, uuid: str | None) -> dict[str, tuple[datetime, bool]]:
    """The first FAIL after the last PASS of each test whose last verdict is FAIL."""
    found = held.ask(
        "WITH mine AS (SELECT id, created, verdict FROM records "
        "WHERE uuid IS NOT DISTINCT FROM ? AND kind != 'run' AND verdict IN ('PASS', 'FAIL')), "
        "good AS (SELECT id, max(created) AS g FROM mine WHERE verdict = 'PASS' GROUP BY id) "
        "SELECT id, min(created), any_value(g) FROM mine LEFT JOIN good USING (id) "
        "WHERE verdict = 'FAIL' AND (g IS NULL OR created > g) GROUP BY id",
        uuid,
    )
    return {name: (since, good is not None) for name, since, good in found}


def _line(name: str, segments: Sequence[Segment], cuts: Sequence[Any], *, alarm: bool) -> Line:
    import numpy as np

    from rooftest.history.alarm import BASELINE

    days = [float(d) for s in segments for d in (s.days[0], s.days[-1])]
    x = around(days, margin=0.02)
    times = [float(np.exp(v)) for s in segments for v in (s.log_s.min(), s.log_s.max())]
    y = around(times, margin=0.12)
    last = segments[-1]
    step = -(-sum(len(s.days) for s in segments) // NIGHTS)
    watched = f"watched since {last.since}"
    if last.watch.sigma is None:
        watched = f"{_nights(last)} of {BASELINE} nights of a baseline"
    return Line(
        name,
        [_path(s, x, y, step) for s in segments],
        [(x.at(day), f"{date.fromordinal(day + EPOCH)}") for day in (int(min(days)), int(max(days)))],
        [(100 - y.at(t), duration(t)) for t in y.ticks()],
        [_turn(s, c, x) for s in segments for c in s.watch.changes],
        [(x.at(cut.day.toordinal() - EPOCH), _cut(cut)) for cut in cuts],
        watched,
        alarm,
    )


def _nights(segment: Segment) -> int:
    """How many nights the present baseline has."""
    return len(segment.days) - segment.watch.start


EPOCH = date(1970, 1, 1).toordinal()


def _path(segment: Segment, x: Scale, y: Scale, step: int) -> str:
    """Every n-th night as one line, each point relative to the one before, which takes the fewest letters."""
    import numpy as np

    days, times = segment.days[::step], np.exp(segment.log_s[::step])
    across = np.rint((days - x.low) / (x.high - x.low) * UNITS).astype(int)
    down = np.rint((y.high - times) / (y.high - y.low) * UNITS).astype(int)
    steps = zip(np.diff(across), np.diff(down), strict=True)
    return f"M{across[0]} {down[0]}" + ("l" + " ".join(f"{a} {b}" for a, b in steps) if len(days) > 1 else "h1")


def _turn(segment: Segment, change: Change, x: Scale) -> Turn:
    sure = "since" if change.dated is not None else "since about"
    text = f"{change.ratio - 1:+.1%} {sure} {segment.day(change.first)} (raised {segment.day(change.raised)})"
    return Turn(x.at(float(segment.days[change.first])), text, change.slower)


def _cut(cut: Any) -> str:
    told = ", ".join(f"{word} {was} to {now}" for word, (was, now) in cut.differ.items())
    return f"{cut.day}: {told or 'the covariates changed'}; {cut.ratio - 1:+.1%}, not judged"
