"""The tables that a person reads, made from records alone: at the end of a run, and from a results file."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

Record = Mapping[str, Any]
STYLE = {"PASS": "green", "FAIL": "bold red", "INVALID": "bold magenta", "AMBIGUOUS": "yellow", "known": "yellow"}
NONE = "-"


def render(tables: Iterable[Table], width: int, *, colour: bool) -> str:
    """The tables as text of at most `width` columns."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=colour, color_system="standard" if colour else None, highlight=False
    )
    for table in tables:
        console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def right(records: Sequence[Record]) -> Table | None:
    """Per kernel: share of the contract in its domain, examples, worst ratio and where, withdrawn readings, verdict."""
    mine = [r for r in records if r["kind"] == "conformance"]
    if not mine:
        return None
    table = _table("kernel", "on", ">contract", ">examples", ">worst ratio", "rung", ">withdrawn", "verdict")
    for op, kernel in dict.fromkeys((r["op"], r["kernel"]) for r in mine):
        table.add_row(f"{op} {kernel}", *_judged([r for r in mine if (r["op"], r["kernel"]) == (op, kernel)]))
    return table


def _judged(records: Sequence[Record]) -> list[str]:
    ran = [r for r in records if r.get("examples")]
    worst = max(ran, key=lambda r: (_infinite(r), r.get("ratio") or 0.0), default=None)
    share = next((r["domain"] for r in records if r.get("domain") is not None), None)
    withdrawn = sum(sum(r["withdrawn"].values()) for r in ran)
    return [
        next((r["device"] for r in ran), NONE),
        NONE if share is None else percent(share),
        str(sum(r["examples"] for r in ran)) if ran else NONE,
        NONE if worst is None else "inf" if _infinite(worst) else f"{worst['ratio']:.2f}",
        NONE if worst is None else f"{worst['what']} {worst['dtype']}-{worst['layout']}",
        str(withdrawn) if withdrawn else NONE,
        _verdict(records),
    ]


def _infinite(record: Record) -> bool:
    """Whether a thing was found that must not happen at all (a ratio that JSON has no number for)."""
    return bool(record.get("examples")) and record.get("ratio") is None


def _verdict(records: Sequence[Record]) -> str:
    """PASS, or how many of the tests are not."""
    counts = Counter("known" if r.get("status") == "xfailed" else r["verdict"] for r in records if r["verdict"])
    if not counts:
        return "left out"
    words = [f"[{STYLE[w]}]{w} {counts[w]}[/]" for w in ("FAIL", "INVALID", "AMBIGUOUS", "known") if counts[w]]
    return " ".join(words) or f"[{STYLE['PASS']}]PASS[/]"


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    return table


def left_out(records: Sequence[Record]) -> list[str]:
    """One line for each reason why tests were left out."""
    reasons = Counter(r["reason"] for r in records if r.get("status") == "skipped" and r["reason"])
    return [f"left out, {n} test{'s' if n > 1 else ''}: {reason}" for reason, n in reasons.most_common()]


def percent(share: float) -> str:
    """A share for people: two digits that say something."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}" if share >= 0.001 else "< 0.1%"


def fast(records: Sequence[Record]) -> Table | None:
    """Per workload: time, rates, bytes moved, efficiency, power, the peer, verdict."""
    return None
