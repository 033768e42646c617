"""The tables that a person reads, made from records alone: at the end of a run, and from a results file."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

Record = Mapping[str, Any]
STYLE = {
    "PASS": "green", "FAIL": "bold red", "INVALID": "bold magenta", "AMBIGUOUS": "yellow", "known": "yellow",
    "UNARMED": "cyan", "UNCHANGED": "dim",
}  # fmt: skip
NONE = "-"
COMPILED = "compiled only"
"""In place of PASS, of a kernel that ran nowhere and whose machine code is as its row says."""


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


def made(records: Sequence[Record]) -> list[Table]:
    """The tables that these records fill."""
    return [
        table for table in (right(records), recompiled(records), fast(records), gated(records)) if table is not None
    ]


def right(records: Sequence[Record]) -> Table | None:
    """Per kernel: share of the contract in its domain, examples, worst ratio and where, withdrawn readings, verdict."""
    mine = [r for r in records if r["kind"] == "conformance"]
    if not mine:
        return None
    table = _table("kernel", *JUDGED, folds="on rung")
    for op, kernels in _kernels(mine).items():
        table.add_row(f"[bold]{op}[/]", *[""] * len(JUDGED))
        for kernel in kernels:
            cells = judged([r for r in mine if (r["op"], r["kernel"]) == (op, kernel)])
            table.add_row(f" {kernel}", *cells[:-1], _painted(cells[-1]))
    return table


def _painted(verdict: str) -> str:
    """A verdict's words, each in its style with the number behind it."""
    return re.sub(rf"({'|'.join(STYLE)})( \d+)?", lambda found: f"[{STYLE[found[1]]}]{found[0]}[/]", verdict)


def _kernels(records: Sequence[Record]) -> dict[str, list[str]]:
    """The kernels of each op, in the order of the records."""
    ops = dict.fromkeys(r["op"] for r in records)
    return {op: list(dict.fromkeys(r["kernel"] for r in records if r["op"] == op)) for op in ops}


JUDGED = ("on", ">domain", ">examples", ">worst", "on rung", ">withdrawn", "verdict")
"""What `judged` says, a column each; > marks those set to the right."""


def judged(records: Sequence[Record]) -> list[str]:
    """What the tests of one kernel said together: a text for each column of JUDGED."""
    ran = [r for r in records if r.get("examples")]
    worst = max(ran, key=lambda r: (_infinite(r), r.get("ratio") or 0.0), default=None)
    share = next((r["domain"] for r in records if r.get("domain") is not None), None)
    withdrawn = sum(sum(r["withdrawn"].values()) for r in ran)
    return [
        next((SHORT.get(str(r["device"]), str(r["device"])) for r in ran), NONE),
        NONE if share is None else percent(share),
        str(sum(r["examples"] for r in ran)) if ran else NONE,
        NONE if worst is None else "inf" if _infinite(worst) else _ratio(worst["ratio"]),
        NONE if worst is None else f"{worst['what']} {kind(worst)}",
        str(withdrawn) if withdrawn else NONE,
        _verdict(records),
    ]


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 1000 else f"{ratio:.1e}"


def _infinite(record: Record) -> bool:
    """Whether a thing was found that must not happen at all (a ratio that JSON has no number for)."""
    return bool(record.get("examples")) and record.get("ratio") is None


def _verdict(records: Sequence[Record]) -> str:
    """PASS or COMPILED, or how many of the tests are neither."""
    counts = Counter("known" if r.get("status") == "xfailed" else r["verdict"] for r in records if r["verdict"])
    if not counts:
        return "left out"
    found = " ".join(f"{w} {counts[w]}" for w in ("FAIL", "INVALID", "AMBIGUOUS", "known") if counts[w])
    return found or (COMPILED if only_compiled(records) else "PASS")


def only_compiled(records: Sequence[Record]) -> bool:
    """Whether all that was judged of a kernel is what the compiler made of it, which says nothing of right or wrong."""
    judged = [r["what"] for r in records if r["verdict"]]
    return bool(judged) and set(judged) == {"compiled"}


def kind(record: Record) -> str:
    """Dtype and layout, short."""
    return f"{SHORT.get(record['dtype'], record['dtype'])}-{record['layout']}"


def _table(*columns: str, folds: str = "") -> Table:
    """A table without lines; the column `folds` gives way where the terminal is narrow."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    for column in columns:
        name = column.lstrip(">")
        table.add_column(name, justify="right" if column != name else "left", overflow="fold", no_wrap=name != folds)
    return table


def fast(records: Sequence[Record]) -> Table | None:
    """Per workload: time with its interval, rates, bytes moved, efficiency and what bounds it, power, peer, verdict."""
    mine = [r for r in records if r["kind"] == "benchmark" and r.get("extra_info")]
    if not mine:
        return None
    return _by_kernel(mine, TIMED, lambda r: f" {r['what']} {kind(r)}{_regime(r)}", timed)


def gated(records: Sequence[Record]) -> Table | None:
    """Per comparison with a base: change with its interval, both times, the change that can be seen, verdict."""
    mine = [r for r in records if r["kind"] == "gate" and r["verdict"]]
    return _by_kernel(mine, COMPARED, lambda r: f" {r['what']} {kind(r)}", compared) if mine else None


def recompiled(records: Sequence[Record]) -> Table | None:
    """Per kernel and generation: what the compiler makes of it in base and in head."""
    mine = [r for r in records if r.get("code")]
    if not mine:
        return None
    table = _table("machine code", *CODED, folds="instructions")
    for r in mine:
        table.add_row(f"[bold]{r['op']} {r['kernel']} {kind(r)}[/]", *[""] * len(CODED))
        for each in r["code"]:
            *told, verdict = coded(each)
            table.add_row(f" {coded_name(each)}", *told, _painted(verdict))
    return table


def _by_kernel(
    mine: Sequence[Record], columns: Sequence[str], name: Callable[[Record], str], cells: Callable[[Record], list[str]]
) -> Table:
    """A table of one line a record, under a line for each kernel; the last cell is the verdict."""
    table = _table("workload", *columns, folds="workload")
    for op, kernels in _kernels(mine).items():
        for kernel in kernels:
            table.add_row(f"[bold]{op} {kernel}[/]", *[""] * len(columns))
            for r in (r for r in mine if (r["op"], r["kernel"]) == (op, kernel)):
                *told, verdict = cells(r)
                table.add_row(name(r), *told, _painted(verdict))
    return table


def _regime(record: Record) -> str:
    """The name of a regime that is not the usual one."""
    regime = (record["extra_info"].get("id") or {}).get("regime", "burst")
    return "" if regime == "burst" else f" {regime}"


SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "interpreter": "interp."}
BOUND_BY = {"compute": "math", "memory": "mem"}


TIMED = (">time", ">TFLOP/s", ">GB/s", ">moved\n/min", ">of roof", ">W", ">vs peer", "verdict")
"""What `timed` says, as JUDGED."""
COMPARED = (">change", ">base", ">head", ">visible\nfrom", "verdict")
"""What `compared` says, as JUDGED."""


def timed(record: Record) -> list[str]:
    """What one timing says: a text for each column of TIMED."""
    told = record["extra_info"]
    timing, rates, moved, bound = (told.get(key) or {} for key in ("timing", "rates", "moved", "bound"))
    ratio = (told.get("ratios") or {}).get(f"{record['kernel']}/{record.get('peer')}", {}).get("median")
    eta = bound.get("efficiency")
    return [
        _time(timing.get("median_s"), timing.get("ci95_s")),
        _number(rates.get("flop_per_s"), 1e-12, ".1f"),
        _number(rates.get("bytes_per_s"), 1e-9, ".0f"),
        _number(moved.get("over_min"), 1, ".2f"),
        NONE if eta is None else f"{percent(eta)} {BOUND_BY.get(bound['limiter'], bound['limiter'])}",
        _number(told.get("power_w"), 1, ".0f"),
        NONE if not ratio else f"{1 / ratio:.3f}x",  # the peer's time over ours: above 1 is faster than the peer
        _word(record),
    ]


def compared(record: Record) -> list[str]:
    """What one comparison with a base says: a text for each column of COMPARED."""
    change, interval = record.get("change"), record.get("ci95")
    spread = f" ±{(interval[1] - interval[0]) / 2:.2%}" if interval else ""
    return [
        NONE if change is None else f"{change:+.2%}{spread}",
        *(_time(arm_s(record, arm), None) for arm in ("base", "head")),
        NONE if record.get("mde") is None else f"{record['mde']:.2%}",
        _word(record),
    ]


CODED = (">registers", ">spills", ">shared", ">CTAs/SM", ">code", "instructions", "verdict")
"""What `coded` says, as JUDGED: "base -> head" where they differ. Spills are of a thread, shared memory of a CTA."""
SHOWN = 4
"""Kinds of instructions of a comparison that a table shows: those of the largest changes, all stand in the record."""


def coded_name(code: Mapping[str, Any]) -> str:
    """Which kernel on which generation and workload."""
    return f"{code['generation']} {code['kernel']} {code['workload']}"


def coded(code: Mapping[str, Any]) -> list[str]:
    """What one kernel's machine code is in base and in head: a text for each column of CODED."""
    both = [code["base"], code["head"]]
    found = [
        [None if f is None else f["registers"] for f in both],
        [None if f is None else f["spill_store_bytes"] + f["spill_load_bytes"] for f in both],
        [None if f is None else f["static_shared_bytes"] + f["dynamic_shared_bytes"] for f in both],
        [None if f is None else f["occupancy"]["ctas_per_sm"] for f in both],
        [None if f is None else f["code_bytes"] for f in both],
    ]
    most = sorted(code["changed"].items(), key=lambda each: -abs(each[1][1] - each[1][0]) / max(each[1]))
    mix = ", ".join(f"{name} {_both(counts)}" for name, counts in most[:SHOWN])
    mix += f", {len(most) - SHOWN} more" if len(most) > SHOWN else ""
    return [*map(_both, found), mix if mix and None not in both else NONE, code["verdict"]]


def _both(values: Sequence[int | None]) -> str:
    before, after = (NONE if value is None else str(value) for value in values)
    return after if before == after else f"{before} -> {after}"


def arm_s(record: Record, arm: str) -> float | None:
    """The median time of one arm over the valid pairs of a comparison, in seconds."""
    pairs = [p for p in record.get("pairs") or () if p.get("valid", True)]
    times_s = [time_s for p in pairs if (time_s := (p.get(arm) or {}).get("time_s")) is not None]
    return median(times_s) if times_s else None


def _word(record: Record) -> str:
    return "known" if record.get("status") == "xfailed" else str(record["verdict"] or "left out")


def _number(value: float | None, scale: float, form: str) -> str:
    return NONE if value is None else format(value * scale, form)


def _time(time_s: float | None, interval_s: Sequence[float] | None) -> str:
    """A time and half its 95 % interval: `123.4 us ±0.2%`."""
    if time_s is None:
        return NONE
    unit, scale = ("us", 1e6) if time_s < 1e-3 else ("ms", 1e3)
    spread = f" ±{(interval_s[1] - interval_s[0]) / 2 / time_s:.1%}" if interval_s else ""
    return f"{time_s * scale:.4g} {unit}{spread}"


def undecided(records: Sequence[Record]) -> list[str]:
    """One line for each test that decided nothing, with the reason."""
    words = ("INVALID", "AMBIGUOUS")
    return [f"{r['verdict']} {r['id']}: {r['reason']}" for r in records if r["verdict"] in words]


def left_out(records: Sequence[Record]) -> list[str]:
    """One line for each reason why tests were left out, with its kernels unless it is said of all."""
    everyone = {r["kernel"] for r in records}
    skipped = [r for r in records if r.get("status") == "skipped" and r["reason"]]
    lines = []
    for reason, n in Counter(str(r["reason"]) for r in skipped).most_common():
        names = dict.fromkeys(r["kernel"] for r in skipped if r["reason"] == reason)
        whose = "" if set(names) == everyone else f" ({', '.join(names)})"
        lines.append(f"left out, {n} test{'s' * (n > 1)}: {reason}{whose}")
    return lines


def percent(share: float) -> str:
    """A share for people: two digits that say something."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}" if share >= 0.001 else "< 0.1%"
