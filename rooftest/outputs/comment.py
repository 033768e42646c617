"""Results as one comment of a pull request, or as a step's summary: what somebody must look at first, the rest folded.

FAIL, INVALID and AMBIGUOUS are shown in full as far as there is room, the worst first, with a count of what is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rooftest import tables
from rooftest.outputs import order
from rooftest.outputs.markdown import clip, code, fold, plain, row, span, table
from rooftest.outputs.order import FAIL, LEFT_OUT, LOUD, Record
from rooftest.outputs.room import Section, fit, size

Results = Mapping[str, Any]
LIMIT = 65_536
"""Characters that GitHub takes in a comment; `room.size` counts no less than it does."""
# A failure's message has rarely more than 1000 characters; 20 of this length fit a comment.
MESSAGE, REASON = 3_000, 500


def render(runs: Sequence[Results], limit: int = LIMIT, *, marker: bool = True) -> str:
    """The Markdown of one or several results files, no longer than `limit` (as `room.size` counts).

    Its first line, with `marker`, is one that a page does not show: by it a bot finds the comment that it wrote before.
    """
    everything = order.worst_first(r for run in runs for r in _records(run, several=len(runs) > 1))
    counts = ", ".join(f"{n} {word}" for word, n in order.counted(everything).items())
    head = [mark(runs)] if marker else []
    head += [f"### rooftest: {counts or 'nothing was judged'}", *_about(runs)]
    right, gated, timed = ([r for r in everything if r["kind"] == kind] for kind in order.KINDS)
    sections = [
        _wrong([r for r in right if order.word(r) in LOUD]),
        _listed("Against the base", tables.COMPARED, tables.compared, gated),
        _listed("Time", tables.TIMED, tables.timed, timed),
        _code(right),
        _kernels(right),
        _folded("comparisons", tables.COMPARED, tables.compared, gated),
        _folded("times", tables.TIMED, tables.timed, timed),
        _left_out(everything),
    ]
    text = "\n".join(head)
    return text + "\n\n" + fit([s for s in sections if s.total], limit - size(text + "\n\n\n"))


def mark(runs: Sequence[Results]) -> str:
    """The line that a bot looks for: another for each set of GPUs, so that two jobs don't write over one comment."""
    names = sorted({_gpu(run) for run in runs})
    return f"<!-- rooftest: {' '.join(re.findall('[A-Za-z0-9.,]+', ', '.join(names)))[:200]} -->"


def _records(run: Results, *, several: bool) -> list[Record]:
    """The records of a file; where there are several files, each with the GPU that it is of."""
    told = {"on": (run["machine_info"]["gpu"] or {}).get("uuid") or _gpu(run)} if several else {}
    return [{**record, **told} for record in order.records(run)]


def _gpu(run: Results) -> str:
    return str((run["machine_info"]["gpu"] or {}).get("name") or "no CUDA device")


def _about(runs: Sequence[Results]) -> list[str]:
    """A line for each file: on what, with what, against what."""
    most = 32  # files, as one for each GPU of four nodes
    lines = ["", *(f"- {_one(run)}" for run in runs[:most])]
    return [*lines, f"- ... and {len(runs) - most} more files"] if len(runs) > most else lines


def _one(run: Results) -> str:
    gpu, software = run["machine_info"]["gpu"] or {}, run["machine_info"]["software"]
    told = [plain(clip(_gpu(run), 100))]
    told += [f"{span(clip(gpu['uuid'], 50))}"] if gpu.get("uuid") else []
    told += [f"driver {plain(clip(gpu['driver'], 30))}"] if gpu.get("driver") else []
    told += [f"{name} {plain(clip(v, 30))}" for name in ("rooftest", "torch", "triton") if (v := software.get(name))]
    told += [_against(run)] if run.get("gate") or run.get("against") else []
    told += [plain(clip(run["created"], 30))]
    told += ["**interrupted: not every test ran**"] if run.get("complete") is False else []
    return ", ".join(told)


def _against(run: Results) -> str:
    first, known = (run.get("gate") or [{}])[0], run.get("against") or {}
    base, head = ((first.get(arm) or {}).get("revision") or _name(known.get(arm)) for arm in ("base", "head"))
    budget = known.get("budget") or first.get("budget")
    text = f"{span(clip(head or 'head', 60))} against {span(clip(base or 'base', 60))}"
    text += " (with uncommitted changes)" if (first.get("head") or {}).get("dirty") else ""
    text += f", budget {budget:.2%}" if isinstance(budget, float | int) else ""
    alarms = known.get("false_alarms")
    return text + (f", A/A: {alarms[0]} false alarms of {alarms[1]}" if known.get("aa") and alarms else "")


def _name(arm: Any) -> Any:
    return arm.get("revision") if isinstance(arm, Mapping) else arm


def _wrong(records: Sequence[Record]) -> Section:
    """Each test that was not right, with what it said and the command that runs it again."""
    return Section("#### Right or wrong", len(records), map(_test, records), "\n\n")


def _test(record: Record) -> str:
    on = f" on {span(clip(record['on'], 50))}" if "on" in record else ""
    line = f"**{order.word(record)}** {span(clip(record['id'], 300))}{on}"
    if order.word(record) != FAIL:
        return f"{line}: {plain(clip(record.get('reason') or 'no reason was recorded', REASON))}"
    message = clip(record.get("message") or record.get("reason") or "no message was recorded", MESSAGE)
    again = record.get("reproduce")
    again = [code(clip(again, MESSAGE))] if again and again not in message else []
    return "\n\n".join([line, code(message), *again])


def _listed(title: str, columns: Sequence[str], cells: Any, records: Sequence[Record]) -> Section:
    """A table of what is FAIL, INVALID or AMBIGUOUS, with the reason."""
    loud = [r for r in records if order.word(r) in LOUD]
    head = table([*_names(loud), *_titles(columns), "why"], [])
    rows = (row([*_row(r, cells), plain(_why(r))]) for r in loud)
    return Section(f"#### {title}\n\n{head}", len(loud), rows)


def _names(records: Sequence[Record]) -> list[str]:
    return ["kernel", "workload", *(["on"] if any("on" in r for r in records) else [])]


def _why(record: Record) -> str:
    """The reason of a verdict; what a test said where it left none."""
    return clip(record.get("reason") or (record.get("message") or "no reason was recorded").split("\n")[0], REASON)


def _folded(what: str, columns: Sequence[str], cells: Any, records: Sequence[Record]) -> Section:
    """A table of all other measurements, behind a line that counts them."""
    quiet = [r for r in records if order.word(r) not in (*LOUD, LEFT_OUT)]
    head = [*_names(quiet), *_titles(columns)]
    return _behind(quiet, what, head, len(quiet), (_row(r, cells) for r in quiet))


def _kernels(records: Sequence[Record]) -> Section:
    """A line a kernel: what all of its tests said together."""
    kernels: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=lambda r: (r["op"], r["kernel"])):
        kernels.setdefault((record["op"], record["kernel"]), []).append(record)
    quiet = [r for r in records if order.word(r) not in LOUD]
    rows = (_kernel("/".join(name), of) for name, of in kernels.items())
    return _behind(quiet, "tests of right or wrong, by kernel", ["kernel", *_titles(tables.JUDGED)], len(kernels), rows)


def _kernel(name: str, records: Sequence[Record]) -> list[str]:
    *told, verdict = tables.judged(records)
    return [span(clip(name, 200)), verdict, *map(plain, told)]


def _code(records: Sequence[Record]) -> Section:
    """A table of the kernels whose machine code is not what it was, each on each generation."""
    told = [(r, each) for r in records for each in r.get("code") or () if each["verdict"] != "UNCHANGED"]
    head = table(["kernel", "code", *_titles(tables.CODED)], [])
    return Section(f"#### Machine code against the base\n\n{head}", len(told), (row(_coded(*each)) for each in told))


def _coded(record: Record, code: Mapping[str, Any]) -> list[str]:
    *told, verdict = tables.coded(code)
    name = [span(clip(record["kernel"], 100)), span(clip(tables.coded_name(code), 200))]
    return [*name, f"**{verdict}**" if verdict in LOUD else verdict, *map(plain, told)]


def _behind(
    records: Sequence[Record], what: str, head: Sequence[str], total: int, rows: Iterable[Sequence[str]]
) -> Section:
    counts = ", ".join(f"{n} {word}" for word, n in order.counted(records).items())
    opened, closed = fold(f"{counts or 'all'} ({what})")
    return Section(opened + table(head, []), total, map(row, rows), end=closed)


def _left_out(records: Sequence[Record]) -> Section:
    lines = [f"- {plain(clip(line, REASON))}" for line in sorted(tables.left_out(records))]  # whatever the order
    opened, closed = fold("left out, and why")
    return Section(opened.removesuffix("\n"), len(lines), lines, end=closed)


def _row(record: Record, cells: Any) -> list[str]:
    """A measurement's cells, its verdict first after its name; dashes where nothing was measured."""
    name = [span(clip(record["kernel"], 100)), span(clip(f"{record['what']} {tables.kind(record)}", 150))]
    name += [span(clip(record["on"], 50))] if "on" in record else []
    if record["kind"] == "benchmark" and not record.get("extra_info"):
        return [*name, order.word(record), *[tables.NONE] * (len(tables.TIMED) - 1)]
    *told, verdict = cells(record)
    return [*name, f"**{verdict}**" if verdict in LOUD else verdict, *map(plain, told)]


def _titles(columns: Sequence[str]) -> list[str]:
    """The verdict, then the other titles of a table of a terminal."""
    *titles, last = (title.lstrip(">").replace("\n", " ") for title in columns)
    return [last, *titles]
