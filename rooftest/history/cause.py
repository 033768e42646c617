"""What lies around a change in a series, and the command that measures it again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rooftest.history.alarm import Change
from rooftest.history.base import History
from rooftest.history.parts import need
from rooftest.history.series import ZERO, Segment


@dataclass(frozen=True)
class Cause:
    """The last run before a change and the first after it."""

    good: datetime
    bad: datetime
    revisions: tuple[str | None, str | None]
    """Of the kernel's repository, before and after; None where a run does not say. "+changed" marks a dirty tree."""
    differ: dict[str, tuple[str, str]]
    """What changed with it and cuts nothing (torch, triton, config ...): word -> (before, after)."""
    command: str | None
    """What measures the later tree against the earlier revision; None where that is not known."""


def causes(history: History, changes: Sequence[tuple[Segment, Change]]) -> list[Cause]:
    """Return what changed between the last night before each change and its first night; one query for all."""
    wanted = [
        (key, int(segment.days[change.first - back]), 2 * n + 1 - back)
        for n, (segment, change) in enumerate(changes)
        for back in (1, 0)
        for key in segment.keys
    ]
    if not wanted:
        return []
    arrow = need("pyarrow")
    keys, days, places = zip(*wanted, strict=True)
    history.db.register("wanted", arrow.table({"key": keys, "day": days, "place": places}))
    found = history.ask(
        "SELECT place, t.created, t.revision, t.config, r.about FROM times t JOIN wanted w "
        "ON t.key = w.key AND epoch_us(t.created) // 86400000000 = day JOIN runs r USING (run) "
        "WHERE t.created >= ? AND t.created < ? "  # what lies outside is not read: files are by month
        "QUALIFY row_number() OVER (PARTITION BY place "
        "ORDER BY if(place % 2 = 1, 1, -1) * epoch_us(t.created), run) = 1",
        ZERO + timedelta(days=min(days)),
        ZERO + timedelta(days=max(days) + 1),
    )
    history.db.unregister("wanted")
    rows = {place: rest for place, *rest in found}
    return [_cause(segment.series, rows[2 * n], rows[2 * n + 1]) for n, (segment, _) in enumerate(changes)]


def _cause(series: str, before: Sequence[Any], after: Sequence[Any]) -> Cause:
    (good, old, _, _), (bad, new, _, _) = before, after
    was, now = ({**json.loads(about or "{}"), "config": config} for _, _, config, about in (before, after))
    differ = {
        word: (str(was.get(word)), str(now.get(word)))
        for word in sorted({*was, *now})
        if was.get(word) != now.get(word)
    }
    command = remeasure(series, old.partition("+")[0]) if old else None
    return Cause(good, bad, (old, new), differ, command)


def remeasure(series: str, revision: str) -> str:
    """Return the command that measures a series again, against a revision."""
    op, kernel, workload, dtype, layout, regime, *_ = series.split("/")
    more = "" if regime == "burst" else f" --roof-regime={regime}"
    kind = f"{dtype}-{layout}"
    return (
        f"pytest suites/ --roof-against={revision}{more} --roof-workloads={workload}/{kind} "
        f"-k {op}/{kernel}/{workload}/{kind}"
    )
