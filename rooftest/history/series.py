"""Series over time: a series' name carried over renames, its times cut by covariates, a median for each night."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from operator import itemgetter
from statistics import median
from typing import TYPE_CHECKING

from rooftest.history import flat
from rooftest.history.alarm import Change, Watch, watch
from rooftest.history.base import History
from rooftest.history.parts import need

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ZERO = datetime(1970, 1, 1)  # noqa: DTZ001 - times in a store are UTC without a zone
NEVER = datetime(9999, 1, 1)  # noqa: DTZ001
SPAN = 100_000 * 86400
"""Seconds that are told apart within a segment, from 1970: 273 years."""
BESIDE = 5
"""Nights whose median stands for either side of a cut."""


@dataclass(frozen=True)
class Segment:
    """The times of one series under the same covariates, by night (day in UTC). Only these may be compared."""

    series: str
    """What it is called now."""
    keys: tuple[int, ...]
    """The `key` of its rows (flat.key), one for each name that it has had."""
    cut: str
    """The covariates in one text; see flat.covariates."""
    gpu: str
    """The GPU's name."""
    days: NDArray[np.int64]
    """Days since 1970, ascending, one a night."""
    log_s: NDArray[np.float64]
    """Log of the night's median time in seconds."""
    points: int
    """Runs that timed it."""
    last: datetime
    """When it was timed last."""
    last_s: float
    """The time of that run in seconds."""

    @cached_property
    def watch(self) -> Watch:
        """What changed within it."""
        return watch(self.log_s)

    @cached_property
    def covariates(self) -> dict[str, str]:
        """The covariates by name."""
        return flat.covariates(self.cut)

    def day(self, night: int) -> date:
        """The date of a night."""
        return (ZERO + timedelta(days=int(self.days[night]))).date()

    @property
    def since(self) -> date:
        """The first night of the present level."""
        return self.day(self.watch.start)

    @property
    def level_s(self) -> float:
        """The time, in seconds, that the present baseline is about."""
        import numpy as np

        return float(np.exp(self.watch.mean))

    @property
    def change(self) -> float:
        """The last time over the present level, less 1."""
        return self.last_s / self.level_s - 1


@dataclass(frozen=True)
class Cut:
    """Where covariates changed on one series of one GPU: described, never judged."""

    series: str
    gpu: str
    """The GPU's UUID."""
    day: date
    """The first night of the later segment."""
    differ: dict[str, tuple[str, str]]
    """What changed: covariate -> (before, after)."""
    ratio: float
    """Median time of the first nights after over that of the last nights before. No verdict: two things changed."""


def segments(history: History, pattern: str = "*") -> list[Segment]:
    """Return the segments of the series whose present or earlier name matches a glob, by series and first night."""
    import numpy as np

    known = history.ask("SELECT key, any_value(series), any_value(cut) FROM times GROUP BY 1")
    gpus = dict(history.ask("SELECT uuid, any_value(gpu) FROM runs WHERE uuid IS NOT NULL GROUP BY 1"))
    renames = history.renames()
    targets: dict[tuple[str, str], int] = {}
    mine: dict[int, list[int]] = {}
    keys = []
    for key, name, cut in sorted(known, key=itemgetter(1, 2)):
        new, until = current(name, renames)
        if not (fnmatchcase(name, pattern) or fnmatchcase(new, pattern)):
            continue
        # A time before the rename belongs to the new name; after it, to another kernel that took the old name.
        now, later = (targets.setdefault((each, cut), len(targets)) for each in (new, name))
        keys.append((key, now, until, later))
        for each in {now, later}:
            mine.setdefault(each, []).append(key)
    if not keys:
        return []
    place, time_s = _fetched(history, keys)
    order = np.argsort(place, kind="stable")
    place, time_s = place[order], time_s[order]
    day = place // 86400
    nights = np.append(0, np.flatnonzero(day[1:] != day[:-1]) + 1)
    log_s, day, nights = _medians(np.log(time_s), nights), day[nights], np.append(nights, len(day))
    firsts = np.arange(len(targets) + 1) * (SPAN // 86400)  # day 0 of each segment
    starts = np.searchsorted(day, firsts)  # counted in nights
    edges = nights[starts].tolist()  # counted in runs
    found = []
    for n, ((name, cut), start, end) in enumerate(zip(targets, starts.tolist(), starts[1:].tolist(), strict=False)):
        if start == end:  # all of its times are another's: the kernel was renamed
            continue
        last = edges[n + 1] - 1
        found.append(Segment(
            name, tuple(mine[n]), cut, gpus.get(flat.covariates(cut)["uuid"]) or "no name",
            day[start:end] - firsts[n], log_s[start:end],
            edges[n + 1] - edges[n], ZERO + timedelta(seconds=int(place[last] % SPAN)), float(time_s[last]),
        ))  # fmt: skip
    return sorted(found, key=lambda s: (s.series, int(s.days[0]), s.cut))


def _fetched(history: History, keys: list[tuple[int, int, datetime, int]]) -> tuple[NDArray, NDArray]:
    """Place and time in seconds of every run of the keys.

    A place is SPAN times the number of the segment, plus seconds since 1970: one number, so that millions of rows are
    sorted and cut by it alone.
    """
    arrow = need("pyarrow")
    types = (arrow.int64(), arrow.int64(), arrow.timestamp("us"), arrow.int64())
    columns = [arrow.array(column, kind) for column, kind in zip(zip(*keys, strict=True), types, strict=True)]
    history.db.register("keys", arrow.table(columns, names=["key", "now", "until", "later"]))
    got = history.numbers(
        f"SELECT if(created < until, now, later) * {SPAN} + "  # noqa: S608 - our own number
        f"greatest(0, least({SPAN - 1}, epoch_us(created) // 1000000)) place, time_s FROM times JOIN keys USING (key)"
    )
    history.db.unregister("keys")
    return got["place"], got["time_s"]


def _medians(values: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The median of each piece; all of one length at once."""
    import numpy as np

    if len(starts) == len(values):
        return values
    lengths = np.diff(starts, append=len(values))
    found = values[starts]
    for length in np.unique(lengths[lengths > 1]):
        which = np.flatnonzero(lengths == length)
        found[which] = np.median(values[starts[which][:, None] + np.arange(length)], axis=1)
    return found


def current(series: str, renames: dict[str, tuple[str, datetime]]) -> tuple[str, datetime]:
    """Return what a series is called now, and until when its old name meant that kernel."""
    op, kernel, rest = series.split("/", 2)
    until, seen = NEVER, {kernel}
    while (found := renames.get(f"{op}/{kernel}")) is not None:
        new = found[0].partition("/")[2]
        if new in seen:  # two rows that say they were each other
            break
        until = min(until, found[1])
        kernel = new
        seen.add(new)
    return f"{op}/{kernel}/{rest}", until


def cuts(found: Sequence[Segment]) -> list[Cut]:
    """Return where covariates changed, by day: each segment beside the one before it of its series on its GPU."""
    import numpy as np

    out = []
    last: dict[tuple[str, str], Segment] = {}
    for segment in found:
        key = (segment.series, segment.covariates["uuid"])
        old = last.get(key)
        last[key] = segment
        if old is None:
            continue
        differ = {name: (was, now) for name, was in old.covariates.items() if (now := segment.covariates[name]) != was}
        ended = np.searchsorted(old.days, segment.days[0], side="right")  # its first night is no later: by their order
        before = old.log_s[max(0, ended - BESIDE) : ended].tolist()  # numpy's median takes ten times as long for five
        step = median(segment.log_s[:BESIDE].tolist()) - median(before)
        out.append(Cut(segment.series, key[1], segment.day(0), differ, float(np.exp(step))))
    return sorted(out, key=lambda cut: (cut.day, cut.series))


def latest(found: Sequence[Segment]) -> list[Segment]:
    """Return the segment of each series and GPU that was timed last."""
    last: dict[tuple[str, str], Segment] = {}
    for segment in found:
        key = (segment.series, segment.covariates["uuid"])
        if key not in last or segment.last >= last[key].last:
            last[key] = segment
    return list(last.values())


def standing(found: Sequence[Segment]) -> list[tuple[Segment, Change]]:
    """Return the alarms that nothing followed, of the latest segments, the newest first."""
    alarms = [(s, s.watch.changes[-1]) for s in latest(found) if s.watch.changes and s.watch.changes[-1].slower]
    return sorted(alarms, key=lambda a: (a[0].day(a[1].raised), a[0].series), reverse=True)
