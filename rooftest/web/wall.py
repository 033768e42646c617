"""A page for a wall: what is red, what got slower, what no gate or watch covers yet, and since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooftest.outputs import order
from rooftest.web.past import Past
from rooftest.web.runs import Card

Record = Mapping[str, Any]
MOST = 4
"""Items of a column. On a screen 0.6 m wide 1.75 % of the width, 34 pixels of 1920, are 10 mm, of which a small letter
has half: 6 minutes of arc at 3 m, where 5 are just read. Of 1080 such pixels 600 are left for a list: four items of
three lines, 42 pixels each, and their margins."""


@dataclass(frozen=True)
class Item:
    """One line: what, and a word or two on it."""

    name: str
    told: str


@dataclass(frozen=True)
class Column:
    """A number to be read from afar, and the first of what it counts."""

    word: str
    style: str
    number: int | None
    """None where nobody can know."""
    items: list[Item]
    none: str
    """What is said where nothing is listed."""

    @property
    def more(self) -> int:
        """How many are not listed."""
        return max(0, (self.number or 0) - len(self.items))


def columns(card: Card, past: Past | None, gate: Mapping[str, str] | None = None) -> list[Column]:
    """Red, slower, unarmed; `gate` says of which series, and why, the merge gate is not armed (rooftest.web.armed)."""
    red, gated = _red(card, past), bool(gate or card.records("gate"))
    watched = past is not None and bool(past.lines)
    unwatched = "no store was given (--store)" if past is None else "the store holds no times of this GPU"
    slow = [] if past is None else [Item(_short(a.series), f"{a.ratio:+.1%} since {a.since}") for a in past.alarms]
    open_ = _unarmed(card, past, gate or {})
    return [
        Column("red", "bad", len(red), red[:MOST], "every test that ran is right and fast enough"),
        Column("slower", "slow", len(slow) if watched else None, slow[:MOST],
               "nothing, as far as it is watched" if watched else unwatched),
        Column("unarmed", "open", len(open_) if watched or gated else None, open_[:MOST],
               "every series is watched" if watched else "nothing that was compared" if gated else unwatched),
    ]  # fmt: skip


def about(card: Card, past: Past | None) -> list[str]:
    """What else somebody should know who looks at the three numbers."""
    counted = order.counted(r for kind in order.KINDS.values() for r in card.records(kind))
    told = [f"{n} {word}" for word, n in counted.items() if word in ("INVALID", "AMBIGUOUS", order.KNOWN)]
    told += ["interrupted: not every test ran"] if not all(run.complete for run in card.runs) else []
    told += [f"{len(past.notes)} files of the store left out"] if past and past.notes else []
    told += [f"driver {card.gpu['driver']}"] if card.gpu.get("driver") else []
    return [*told, *([str(card.uuid)[:12]] if card.uuid else [])]


def _red(card: Card, past: Past | None) -> list[Item]:
    """Failing tests, those of one kernel and rung together, the oldest first."""
    found: dict[tuple[str, str], list[Record]] = {}
    for r in (r for kind in order.KINDS.values() for r in card.records(kind) if order.word(r) == order.FAIL):
        found.setdefault((f"{r['op']}/{r['kernel']}", str(r.get("rung") or r["what"])), []).append(r)
    items = []
    for (kernel, what), records in found.items():
        since, told = _since(records, card, past)
        items.append((since, Item(f"{kernel} {what}", f"{len(records)} tests, {told}" if len(records) > 1 else told)))
    return [item for _, item in sorted(items, key=lambda i: (i[0], i[1].name))]


def _since(records: Sequence[Record], card: Card, past: Past | None) -> tuple[str, str]:
    """A date to sort by, and in words: the first FAIL after the last PASS."""
    known = [past.red[r["id"]] for r in records if past and r["id"] in past.red]
    if not known:
        day = str(card.runs[-1].data["created"])[:10]
        return day, f"seen {day}"
    since, right = min(known)
    return f"{since:%Y-%m-%d}", f"since {since:%Y-%m-%d}" + ("" if right else " or before")


def _unarmed(card: Card, past: Past | None, gate: Mapping[str, str]) -> list[Item]:
    """Series that the gate could not fail, and those whose baseline is not full."""
    day = str(card.runs[-1].data["created"])[:10]
    found = {series: [why] for series, why in gate.items()}
    for r in card.records("gate"):
        known = r.get("pairs_known")
        if order.word(r) == "UNARMED" and r.get("series") not in gate:
            why = r.get("reason") or "unarmed" if known is None else f"{known} A/A pairs"
            found[r.get("series") or r["id"]] = [f"gate {day}: {why}"]
    for u in past.unwatched if past else ():
        told = f"{u.nights} of {past.needed if past else 0} nights, since {u.since}"
        found.setdefault(u.series, []).append(told)
    return [Item(_short(name), "; ".join(told)) for name, told in sorted(found.items())]


def _short(series: str) -> str:
    """A series without what is the usual of it: op/kernel workload dtype-layout."""
    parts = series.split("/")
    if len(parts) < 9:
        return series
    op, kernel, workload, dtype, layout, *rest = parts
    more = [w for w, usual in zip(rest, ("burst", "cold", "nograph"), strict=False) if w != usual]
    return " ".join([f"{op}/{kernel}", workload, f"{dtype}-{layout}", *more])
