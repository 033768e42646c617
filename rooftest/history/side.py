"""Two runs, or two GPUs, side by side: described, without a verdict."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rooftest.errors import UsageError
from rooftest.history import flat
from rooftest.history.base import History
from rooftest.history.lines import gpu, seconds
from rooftest.history.place import checked, digest
from rooftest.history.series import current

SHOWN = ("time_s", "efficiency", "moved_over_min", "call_j", "power_w", "verdict", "reason", "created", *flat.CUTS)


@dataclass(frozen=True)
class Side:
    """One of the two: what it is in words, and what it says of each series (columns SHOWN)."""

    name: str
    rows: dict[str, dict[str, Any]]
    renames: dict[str, tuple[str, datetime]]
    """As History.renames."""

    def known(self, word: str) -> list[str]:
        """Return the values of a covariate that its rows have."""
        return sorted({str(row[word] or flat.UNKNOWN) for row in self.rows.values()})


def sides(a: str, b: str, store: str) -> tuple[Side, Side]:
    """Return two sides; each word is a results file, or a GPU of the store by the start of its UUID.

    Raises UsageError for a word that is neither, and for a file that does not fit the schema.
    """
    history = None if Path(a).is_file() and Path(b).is_file() else History(store)
    made = _side(a, history), _side(b, history)
    for old, new in zip(made, made[::-1], strict=True):  # either may know what the other's kernels are called now
        for name in list(old.rows):
            now, until = current(name, new.renames)
            if old.rows[name]["created"] < until:
                old.rows.setdefault(now, old.rows.pop(name))
    return made


def _side(word: str, history: History | None) -> Side:
    path = Path(word)
    if path.is_file():
        _, content = checked(path)
        rows = flat.read(content, path.name, digest(content))
        found = {r["series"]: {k: r.get(k) for k in SHOWN} for r in rows if r["kind"] == "benchmark" and r["series"]}
        told, created = json.loads(rows[-1]["renames"] or "{}"), rows[-1]["created"]
        return Side(path.name, found, {old: (new, created) for old, new in told.items()})
    assert history is not None
    gpus = history.ask("SELECT uuid, any_value(gpu) FROM runs WHERE uuid IS NOT NULL GROUP BY 1 ORDER BY 1")
    wanted = word.removeprefix("GPU-").lower()
    mine = [(uuid, name) for uuid, name in gpus if wanted and uuid.removeprefix("GPU-").lower().startswith(wanted)]
    if len(mine) != 1:
        there = ", ".join(uuid for uuid, _ in gpus) or "none"
        what = "several GPUs" if mine else "neither a results file nor a GPU"
        raise UsageError(f"{word!r} is {what} of {history.place.text}; its GPUs: {there}")
    [(uuid, name)] = mine
    columns = ", ".join(f"arg_max_null({column}, created)" for column in SHOWN)  # the columns of each series' last time
    query = f"SELECT series, {columns} FROM times WHERE uuid = ? GROUP BY 1"  # noqa: S608 - our own words
    found = {series: dict(zip(SHOWN, rest, strict=True)) for series, *rest in history.ask(query, uuid)}
    return Side(gpu(name or "no name", uuid), found, history.renames())


COLUMNS = ("time A", "time B", "B/A", "of roof A", "B", "moved/min A", "B", "J a call A", "B")


def render(a: Side, b: Side) -> list[str]:
    """Return the two sides in lines; what the two do not share is told first, and nothing is judged."""
    out = [f"A: {_told(a)}", f"B: {_told(b)}"]
    differ = [
        f"{word} {' '.join(a.known(word))} | {' '.join(b.known(word))}"
        for word in flat.CUTS
        if a.known(word) != b.known(word)
    ]
    if differ:
        out.append(f"A and B differ in {'; '.join(differ)}: what follows describes, it does not judge")
    both = [series for series in a.rows if series in b.rows]
    if not both:
        return [*out, "no series was timed on both sides"]
    cells = {series: _cells(a.rows[series], b.rows[series]) for series in sorted(both)}
    widths = [max(map(len, column)) for column in zip(COLUMNS, *cells.values(), strict=True)]
    name = max(map(len, cells))
    lay = lambda first, row: f"{first:{name}}  {'  '.join(f'{c:>{w}}' for c, w in zip(row, widths, strict=True))}"  # noqa: E731
    out += [lay("series", COLUMNS), *(lay(series, row) for series, row in cells.items())]
    for side, other, which in ((a, b, "A"), (b, a, "B")):
        alone = sorted(set(side.rows) - set(other.rows))
        out += [f"only in {which}: {len(alone)} series, such as {alone[0]}"] if alone else []
    return out


def _told(side: Side) -> str:
    dates = [row["created"] for row in side.rows.values()]
    when = (
        f", {_day(min(dates))}" + (f"..{_day(max(dates))}" if _day(min(dates)) != _day(max(dates)) else "")
        if dates
        else ""
    )
    return f"{side.name}{when}, {len(side.rows)} series"


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"


def _cells(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    both = a["time_s"] and b["time_s"]
    return [
        *(_time(row) for row in (a, b)),
        f"{b['time_s'] / a['time_s']:.3f}x" if both else "-",
        *(_number(row["efficiency"], "{:.1%}") for row in (a, b)),
        *(_number(row["moved_over_min"], "{:.2f}") for row in (a, b)),
        *(_number(row["call_j"], "{:.3g}") for row in (a, b)),
    ]


def _time(row: dict[str, Any]) -> str:
    if not row["time_s"]:
        return "-"
    return seconds(row["time_s"]) + ("" if row["verdict"] in ("PASS", None) else f" {row['verdict']}")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
