"""The HTML of a page: data laid out here, drawn by the templates beside it, everything in one file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rooftest import page as markdown
from rooftest import tables
from rooftest.digest import BROKEN, HELD, KNOWN, OPEN, UNCLAIMED
from rooftest.errors import UsageError
from rooftest.outputs import order
from rooftest.outputs.markdown import clip
from rooftest.web import armed, ladder, past, roofs, trace, wall
from rooftest.web.marks import marks, title
from rooftest.web.runs import Card

if TYPE_CHECKING:
    from rooftest.history.base import History

MESSAGE = 3_000
"""Characters shown of a failure's message: three times the usual."""
FIRST, REASON = 20, 300
"""Tests named at the top, and characters of what each says."""
SYMBOLS = {
    "PASS": "✓", "FAIL": "✕", "INVALID": "?", "AMBIGUOUS": "~", "known": "!", "UNARMED": "○", "UNCHANGED": "=",
    "left out": "-", "peer": "·", "KNOWN": "!", "NOT DECIDED": "?", "slower": "▲", tables.COMPILED: "○",
    HELD: "✓", BROKEN: "✕", KNOWN: "!", OPEN: "?", UNCLAIMED: "-",
}  # fmt: skip
"""Before each word, so that colour says nothing alone."""


def full(cards: Sequence[Card], store: str | None) -> str:
    """The page of runs, a part for each GPU; with a store the history of its series.

    Raises UsageError as rooftest.web.past.opened and without jinja2, KeyError for a record that lacks what is shown.
    """
    held = past.opened(store) if store else None
    return _render("page.html", cards=[_card(card, held) for card in cards])


def on_wall(cards: Sequence[Card], store: str | None) -> str:
    """The page for a wall, of one GPU.

    Raises UsageError for files of several GPUs, and as `full`.
    """
    if len(cards) > 1:
        names = ", ".join(str(card.uuid or card.name) for card in cards)
        raise UsageError(f"a wall shows one GPU; these files are of {len(cards)}: {names}")
    [card] = cards
    known = past.read(past.opened(store), card.uuid) if store else None
    columns = wall.columns(card, known, armed.unarmed(store, card) if store else None)
    return _render("wall.html", card=card, run=card.runs[-1], columns=columns, about=wall.about(card, known))


def _card(card: Card, held: History | None) -> dict[str, Any]:
    seen = marks(card.timed)
    every = [r for kind in order.KINDS.values() for r in card.records(kind)]
    loud = [r for r in order.worst_first(every) if order.word(r) in order.LOUD]
    return {
        "it": card,
        "counts": order.counted(every),
        "loud": len(loud),
        "first": [{"word": order.word(r), "id": r["id"], "why": _why(r)} for r in loud[:FIRST]],
        "marks": seen,
        "roofs": roofs.charts(card.timed, card.ceilings, seen),
        "ladders": ladder.ladders(card.timed),
        "times": [_time(r) for r in card.records("benchmarks") if r.get("extra_info")],
        "gates": [_gate(r) for r in card.records("gate") if r["verdict"]],
        "traces": trace.traces(card.timed, card.gpu),
        "tags": trace.tags(card.timed),
        "judged": [j for run in card.runs if (j := _judged(run.digest, run.name))],
        "past": past.read(held, card.uuid) if held else None,
        "left_out": tables.left_out(every),
    }


def _why(record: Any) -> str:
    """The line of a message that names the worst element, or the reason."""
    told = str(record.get("message") or "").splitlines()[1:2] or [record.get("reason") or ""]
    return clip(told[0].strip(), REASON)


def _time(record: Any) -> dict[str, Any]:
    *cells, verdict = tables.timed(record)
    regime = (record["extra_info"].get("id") or {}).get("regime", "burst")
    name = title(record) + ("" if regime == "burst" else f" {regime}")
    return {"name": name, "op": record["op"], "cells": cells, "verdict": verdict,
            "why": record["reason"] if verdict in order.LOUD else None}  # fmt: skip


def _gate(record: Any) -> dict[str, Any]:
    *cells, verdict = tables.compared(record)
    return {"name": title(record), "op": record["op"], "cells": cells, "verdict": verdict, "why": record.get("reason")}


def _judged(report: Any, name: str) -> dict[str, Any] | None:
    """The table of what kernels were found to hold, in one run."""
    kernels = report["kernels"]
    if not kernels:
        return None
    rungs = list(dict.fromkeys(r["rung"] for k in kernels for r in k["rungs"]))
    rows = []
    for k in kernels:
        found = {r["rung"]: r for r in k["rungs"]}
        rows.append({
            "kernel": f"{k['op']}/{k['kernel']}", "verdict": k["verdict"], "examples": k["examples"],
            "domain": k["domain"]["share"], "devices": ", ".join(k["devices"]) or tables.NONE,
            "claims": [(c["claim"], c["status"]) for c in k["claims"] if c["status"] != UNCLAIMED],
            "rungs": [_rung(found.get(rung)) for rung in rungs],
            "failures": [{**f, "message": clip(f["message"], MESSAGE)} for f in k["failures"]],
        })  # fmt: skip
    return {"name": name, "created": report["created"], "rungs": rungs, "rows": rows, "complete": report["complete"],
            "silenced": report["silenced"], "complaints": report["complaints"]}  # fmt: skip


def _rung(found: Any) -> dict[str, Any] | None:
    """Status, worst ratio and why, of one cell."""
    if found is None:
        return None
    worst = found["worst"]
    ratio = worst["ratio"] if worst else None
    infinite = bool(worst) and ratio is None
    return {
        "rung": found["rung"], "status": found["status"], "ratio": markdown.ratio(worst), "infinite": infinite,
        "share": min(1.0, ratio or 0.0), "why": found["why"], "case": worst["case"] if worst else None,
    }  # fmt: skip


def _render(name: str, **data: Any) -> str:
    try:
        import jinja2
    except ImportError as error:
        raise UsageError(f"an HTML page needs jinja2 ({error}): pip install 'rooftest[report]'") from None
    room = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    words: dict[str, Any] = {"percent": tables.percent, "day": _day, "told": _told, "soft": _soft}
    room.filters |= words
    room.globals |= {"SYMBOLS": SYMBOLS, "TIMED": _titles(tables.TIMED), "COMPARED": _titles(tables.COMPARED),
                     "STEPS": ladder.COLUMNS}  # fmt: skip
    script = _text("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    try:
        return room.get_template(name).render(style=_text("page.css"), script=script, digest=digest, **data)
    except jinja2.UndefinedError as error:
        raise KeyError(str(error)) from None


def _day(text: Any) -> str:
    """A moment, to the minute."""
    return str(text)[:16].replace("T", " ")


def _told(value: Any) -> str:
    """A value of a machine's description, for people."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "unknown"}[value]
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _soft(text: str) -> Any:
    """A name that may break after its slashes and underscores, where a column is narrow."""
    from markupsafe import Markup, escape

    return Markup(escape(text).replace("/", Markup("/<wbr>")).replace("_", Markup("_<wbr>")))  # noqa: S704 - escaped


def _titles(columns: Sequence[str]) -> list[str]:
    return [column.lstrip(">").replace("\n", " ") for column in columns[:-1]]


def _text(name: str) -> str:
    return (files("rooftest.web") / name).read_text(encoding="utf-8")
