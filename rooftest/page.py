"""A report as a page of Markdown, as GitHub shows it: a table for each op, then failures with their commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rooftest import digest
from rooftest.digest import BROKEN, HELD, KNOWN, OPEN, OWN_CHOICE, UNCLAIMED
from rooftest.outputs.markdown import code, plain, span, table
from rooftest.tables import percent

Report = Mapping[str, Any]
NONE = "-"
READING = (
    "A number is the worst ratio, over all examples, of a kernel's error to what the op's contract allows; at most 1 "
    "is right. *domain* is the share of the contract that the kernel takes."
)


def render(report: Report) -> str:
    """The page."""
    kernels = report["kernels"]
    parts = ["# Conformance", _head(report), READING if kernels else "No kernel was judged."]
    for op in dict.fromkeys(k["op"] for k in kernels):
        parts += [f"## {op}", _overview([k for k in kernels if k["op"] == op])]
    for title, made in (
        ("Failures", _failures(kernels)),
        ("Known failures", _silenced(report)),
        ("Not decided", _open(kernels)),
        ("By configuration", _configs(kernels)),
        ("Worst cases", _cases(kernels)),
    ):
        parts += [f"## {title}", made] if made else []
    return "\n\n".join(parts) + "\n"


def _head(report: Report) -> str:
    machine = report["machine_info"]
    gpu, software = machine.get("gpu") or {}, machine["software"]
    where = f"{gpu.get('name') or 'a GPU'}, driver {gpu.get('driver')}" if gpu else "no CUDA device"
    counts = {v: sum(k["verdict"] == v for k in report["kernels"]) for v in digest.WORDS}
    lines = [
        ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n) or "nothing judged",
        where,
        ", ".join(f"{name} {version}" for name, version in software.items() if version),
        *([f"profile {machine['profile']}"] if machine.get("profile") else []),
        report["created"] + ("" if report["complete"] else " (**interrupted**: not every test ran)"),
    ]
    return "\n".join(f"- {line}" for line in lines)


def _overview(kernels: Sequence[Report]) -> str:
    rungs = list(dict.fromkeys(r["rung"] for k in kernels for r in k["rungs"]))
    rows = []
    for k in kernels:
        found = {r["rung"]: r for r in k["rungs"]}
        domain = NONE if k["domain"]["share"] is None else percent(k["domain"]["share"])
        cells = [_rung(found.get(name)) for name in rungs]
        rows.append([span(k["kernel"]), k["verdict"], domain, _claims(k["claims"]), *cells, str(k["examples"]),
                     ", ".join(k["devices"]) or NONE])  # fmt: skip
    return table(["kernel", "verdict", "domain", "claims held", *rungs, "examples", "on"], rows)


def _rung(found: Report | None) -> str:
    if found is None:
        return NONE
    if found["status"] in (OPEN, UNCLAIMED):
        return str(found["status"])
    number = ratio(found["worst"])
    return number if found["status"] == HELD else f"**{found['status']}** {number}"


def ratio(worst: Report | None) -> str:
    """A worst ratio for people; `inf` for what must not happen at all."""
    if worst is None:
        return NONE
    found = worst["ratio"]
    return "inf" if found is None else f"{found:.2f}" if found < 1000 else f"{found:.1e}"


def _claims(claims: Sequence[Report]) -> str:
    said = [c["claim"] for c in claims if c["status"] == HELD]
    said += [f"**{c['status']}: {c['claim']}**" for c in claims if c["status"] in (BROKEN, KNOWN)]
    said += [f"{c['claim']} ({OPEN})" for c in claims if c["status"] == OPEN]
    return ", ".join(said) or NONE


def _failures(kernels: Sequence[Report]) -> str:
    parts = []
    for failure in (f for k in kernels for f in k["failures"]):
        parts.append(f"### {plain(failure['id'])}\n\n{code(failure['message'])}")
        if failure["reproduce"] and failure["reproduce"] not in failure["message"]:
            parts.append(code(failure["reproduce"]))
    return "\n\n".join(parts)


def _silenced(report: Report) -> str:
    rows = [[span(s["id"]), plain(s["reason"] or NONE), s["until"] or NONE] for s in report["silenced"]]
    parts = [table(["id", "reason", "until"], rows)] if rows else []
    return "\n\n".join([*parts, *(f"- **{plain(line)}**" for line in report["complaints"])])


def _open(kernels: Sequence[Report]) -> str:
    """Each reason once, with what it left open."""
    said: dict[str, dict[str, list[str]]] = {}
    for k in kernels:
        for each in (*k["rungs"], *k["claims"]):
            if each["status"] == OPEN or (each["why"] and each["status"] == HELD):
                what = each.get("rung") or each["claim"]
                said.setdefault(each["why"] or "no reason was recorded", {}).setdefault(k["kernel"], []).append(what)
    lines = []
    for why, kernels_of in said.items():
        alike: dict[tuple[str, ...], list[str]] = {}
        for kernel, whats in kernels_of.items():
            alike.setdefault(tuple(dict.fromkeys(whats)), []).append(kernel)
        whose = "; ".join(f"{', '.join(span(k) for k in names)}: {', '.join(ws)}" for ws, names in alike.items())
        lines.append(f"- {plain(why)} ({whose})")
    return "\n".join(lines)


def _configs(kernels: Sequence[Report]) -> str:
    rows = [
        [span(k["kernel"]), plain(c["config"] or OWN_CHOICE), _bold(c["status"]), str(c["examples"]),
         ratio(c["worst"]), _case(c["worst"])]
        for k in kernels
        for c in k["configs"]
    ]  # fmt: skip
    return table(["kernel", "configuration", "", "examples", "worst", "on case"], rows) if rows else ""


def _bold(status: str) -> str:
    return f"**{status}**" if status == BROKEN else status


def _cases(kernels: Sequence[Report]) -> str:
    rows = [
        [span(k["kernel"]), r["rung"], ratio(r["worst"]), r["worst"]["reading"] or NONE, _case(r["worst"])]
        for k in kernels
        for r in k["rungs"]
        if r["worst"]
    ]
    return table(["kernel", "rung", "worst", "reading", "on case"], rows) if rows else ""


def _case(worst: Report | None) -> str:
    return span(worst["case"]) if worst and worst["case"] else NONE
