"""A report: what each kernel was found to hold, digested from the records of a run (schema/report.v1.json).

A results file has one record a test; a report has one entry a kernel, in the words of its row: rungs, claims, domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rooftest import store
from rooftest.errors import UsageError
from rooftest.tables import COMPILED, only_compiled

VERSION = 1
Record = Mapping[str, Any]
OWN_CHOICE = "its own choice"  # what a kernel does that is given no configuration
HELD, BROKEN, KNOWN, OPEN, UNCLAIMED = "held", "broken", "known failure", "not decided", "not claimed"
# A kernel's verdict: the first of these that one of its rungs has; a kernel of which nothing was judged is open.
VERDICTS = {BROKEN: "FAIL", KNOWN: "KNOWN", OPEN: "NOT DECIDED", HELD: "PASS"}
WORDS = (*VERDICTS.values(), COMPILED)
"""Every verdict of a kernel; the last where its machine code alone was judged, and held."""


def digest(
    records: Iterable[Record], machine_info: Mapping[str, Any], *, complete: bool, complaints: Sequence[str] = ()
) -> dict[str, Any]:
    """The report of a run; `complaints` are what is wrong with the table of known failures."""
    mine = [r for r in records if r["kind"] == "conformance"]
    kernels = dict.fromkeys((r["op"], r["kernel"]) for r in mine)
    return store.finite({
        "report_version": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "complete": complete,
        "machine_info": dict(machine_info),
        "kernels": [_kernel([r for r in mine if (r["op"], r["kernel"]) == k]) for k in kernels],
        "silenced": [
            {"id": r["id"], "entry": None, "reason": None, "until": None} | r.get("known", {})
            for r in mine
            if r.get("status") == "xfailed"
        ],
        "complaints": list(complaints),
    })  # fmt: skip


def of_results(data: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a results file, dated as the file is.

    Raises UsageError if a record lacks what a report is made from.
    """
    try:
        made = digest(data["conformance"], data["machine_info"], complete=bool(data.get("complete")))
    except (KeyError, TypeError, AttributeError) as error:  # the schema asks for less
        raise UsageError(f"a record lacks what a report is made from: {error}") from None
    return made | {"created": data["created"]}


def read(path: Path) -> dict[str, Any]:
    """The report in a file, which may be a results file too.

    Raises UsageError if it is neither.
    """
    data = store.load(path) if path.suffix == ".json" else None
    if not isinstance(data, dict) or "report_version" not in data:
        try:
            return of_results(store.read(path))
        except UsageError as error:
            raise UsageError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    check(data, str(path))
    return data


def check(data: Mapping[str, Any], where: str) -> None:
    """Raise UsageError if the data is no report of a version that we read."""
    version = data.get("report_version")
    if version != VERSION or isinstance(version, bool):
        raise UsageError(f"{where} is a report of version {version!r}; this rooftest reads version {VERSION}.")
    store.fits(data, store.schema(VERSION, "report"), where)


def _kernel(records: Sequence[Record]) -> dict[str, Any]:
    from rooftest.rungs import ABOUT

    names = sorted(dict.fromkeys(map(_name, records)), key=[*ABOUT, *map(_name, records)].index)
    rungs = [_rung(name, [r for r in records if _name(r) == name]) for name in names]
    found = [r["status"] for r in rungs]
    share = next((r["domain"] for r in records if r.get("domain") is not None), None)
    return {
        "op": records[0]["op"],
        "kernel": records[0]["kernel"],
        "verdict": _verdict(records, found),
        "devices": sorted({str(r["device"]) for r in records if r.get("examples")}),
        "domain": {
            "share": share,
            "dtypes": list(dict.fromkeys(r["dtype"] for r in records)),
            "layouts": list(dict.fromkeys(r["layout"] for r in records)),
        },
        "examples": sum(r.get("examples") or 0 for r in records),
        "worst": _worst(records),
        "rungs": rungs,
        "claims": _claims(records),
        "configs": _configs(records),
        "failures": [
            {"id": r["id"], "message": r.get("message", ""), "reproduce": r.get("reproduce")}
            for r in records
            if _status(r) == BROKEN
        ],
    }


def _verdict(records: Sequence[Record], found: Sequence[str]) -> str:
    """The verdict on a kernel, from what its rungs were found to be."""
    if only_compiled(records) and {_status(r) for r in records} <= {HELD, None}:
        return COMPILED
    return next((word for status, word in VERDICTS.items() if status in found), VERDICTS[OPEN])


def _name(record: Record) -> str:
    return str(record.get("rung") or record["what"])


def _status(record: Record) -> str | None:
    """What one test said; None if it was left out."""
    if record.get("status") == "xfailed":
        return KNOWN
    return {"PASS": HELD, "FAIL": BROKEN, "INVALID": OPEN, "AMBIGUOUS": OPEN}.get(str(record["verdict"]))


def _rung(name: str, records: Sequence[Record]) -> dict[str, Any]:
    from rooftest.rungs import RUNGS

    asked = RUNGS[name].claims if name in RUNGS else ()
    found = [_status(r) for r in records]
    said = [r["reason"] for r in records if _status(r) in (OPEN, None) and r["reason"]]
    why: str | None = "; ".join(_grouped(said)) or None
    status = next((s for s in (BROKEN, KNOWN, OPEN, HELD) if s in found), OPEN)
    if not any(found) and asked and "claimed" in records[0] and not set(asked) & set(records[0]["claimed"]):
        status = UNCLAIMED
    withdrawn: Counter[str] = Counter()
    for r in records:
        withdrawn.update(r.get("withdrawn") or {})
    return {
        "rung": name, "status": status, "why": why, "tests": len(records), "left_out": found.count(None),
        "examples": sum(r.get("examples") or 0 for r in records), "worst": _worst(records),
        "withdrawn": dict(withdrawn),
    }  # fmt: skip


def _grouped(reasons: Sequence[str]) -> list[str]:
    """Each reason once, the most frequent first."""
    return [reason for reason, _ in Counter(map(str, reasons)).most_common()]


def _worst(records: Iterable[Record]) -> dict[str, Any] | None:
    """The largest ratio and its case; a ratio of null is of something that must not happen at all."""
    ran = [r for r in records if r.get("examples")]
    if not ran:
        return None
    worst = max(ran, key=lambda r: (r.get("ratio") is None, r.get("ratio") or 0.0))
    return {"ratio": worst.get("ratio"), "reading": worst.get("reading"), "case": worst.get("worst")}


def _claims(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Each claim there is; none where an older file says nothing of claims."""
    from rooftest.rows import CLAIMS
    from rooftest.rungs import MODES

    told = [r for r in records if "claimed" in r]
    claimed = {c for r in told for c in r["claimed"]}
    ours = []
    for claim in CLAIMS if told else ():
        tried = sum(r.get("tried", {}).get(claim, 0) for r in told)
        broke = {_status(r) for r in told if claim in r.get("broke", ())}
        why = None
        if claim not in claimed:
            status = UNCLAIMED
        elif broke:
            status = BROKEN if BROKEN in broke else KNOWN
        elif tried:
            status = HELD
        else:
            status, why = OPEN, "no example put it to the test"
            if claim in MODES and not any(str(r["device"]).startswith("cuda") for r in told):
                why = "is tested on a GPU only"
        ours.append({"claim": claim, "status": status, "why": why, "examples": tried})
    return ours


def _configs(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Each configuration that was judged by itself; null is the kernel's own choice."""
    parts = [(r, part) for r in records for part in r.get("configs", ())]
    made = []
    for name in dict.fromkeys(part["config"] for _, part in parts):
        mine = [part for _, part in parts if part["config"] == name]
        wrong = [r["id"] for r, part in parts if part["config"] == name and part["wrong"]]
        made.append({
            "config": name, "status": BROKEN if wrong else HELD if any(p["filled"] for p in mine) else OPEN,
            "examples": sum(p["examples"] for p in mine), "worst": _worst(mine), "wrong_in": wrong,
        })  # fmt: skip
    return made
