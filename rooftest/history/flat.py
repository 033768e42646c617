"""A run as rows of a table: one row a record, and one of kind "run" that says what it ran on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rooftest import store
from rooftest.errors import UsageError
from rooftest.history.parts import need

Row = dict[str, Any]

TEXT, REAL, WHOLE, TIME = "string", "double", "int64", "time"
CUTS = ("uuid", "driver", "cuda", "clock", "timer", "harness")
"""The covariates that cut a series: numbers that differ in one of them are never compared. Others are named only."""
UNKNOWN = "?"

# Where each column of a record stands; the first place that holds a value of the column's type is taken. SI units.
RECORD: dict[str, tuple[str, tuple[str, ...]]] = {
    "kind": (TEXT, ("kind",)),
    "id": (TEXT, ("id",)),
    "series": (TEXT, ("series", "extra_info.id.series")),
    "op": (TEXT, ("op",)),
    "kernel": (TEXT, ("kernel",)),
    "what": (TEXT, ("what", "extra_info.id.workload")),
    "dtype": (TEXT, ("dtype",)),
    "layout": (TEXT, ("layout",)),
    "status": (TEXT, ("extra_info.status", "status")),
    "verdict": (TEXT, ("verdict",)),
    "reason": (TEXT, ("reason",)),
    "revision": (TEXT, ("revision", "head.revision")),
    "config": (TEXT, ("config", "extra_info.covariates.config")),
    "ratio": (REAL, ("ratio",)),
    "examples": (WHOLE, ("examples",)),
    "domain": (REAL, ("domain",)),
    "time_s": (REAL, ("extra_info.timing.median_s", "stats.median")),
    "low_s": (REAL, ("extra_info.timing.ci95_s.0",)),
    "high_s": (REAL, ("extra_info.timing.ci95_s.1",)),
    "u_timer_s": (REAL, ("extra_info.timing.u_timer_s",)),
    "efficiency": (REAL, ("extra_info.bound.efficiency",)),
    "physical_efficiency": (REAL, ("extra_info.bound.physical_efficiency",)),
    "declared_share": (REAL, ("extra_info.bound.declared_share",)),
    "limiter": (TEXT, ("extra_info.bound.limiter",)),
    "flop": (REAL, ("extra_info.work.flop",)),
    "read_bytes": (REAL, ("extra_info.work.read_bytes",)),
    "write_bytes": (REAL, ("extra_info.work.write_bytes",)),
    "precision": (TEXT, ("extra_info.work.precision",)),
    "moved_over_min": (REAL, ("extra_info.moved.over_min",)),
    "power_w": (REAL, ("extra_info.power_w",)),
    "call_j": (REAL, ("extra_info.energy.gross_j",)),
    "u_call_j": (REAL, ("extra_info.energy.u_gross_j",)),
    "token_j": (REAL, ("extra_info.energy.token_j",)),
    "clock_hz": (REAL, ("extra_info.clocks.sm_hz_mean",)),
    "change": (REAL, ("change",)),
    "mde": (REAL, ("mde",)),
    "timer": (TEXT, ("extra_info.timing.timer",)),
    "uuid": (TEXT, ("extra_info.covariates.uuid",)),
    "driver": (TEXT, ("extra_info.covariates.driver",)),
    "harness": (TEXT, ("extra_info.covariates.harness",)),
}
RUN: dict[str, tuple[str, tuple[str, ...]]] = {
    "uuid": (TEXT, ("machine_info.gpu.uuid",)),
    "driver": (TEXT, ("machine_info.gpu.driver",)),
    "cuda": (TEXT, ("machine_info.gpu.cuda_driver",)),
    "harness": (TEXT, ("machine_info.software.rooftest",)),
    "gpu": (TEXT, ("machine_info.gpu.name",)),
    "profile": (TEXT, ("machine_info.profile",)),
}
# Made, not copied. `run`: the digest of the file; `name`, `bytes`: its name and size; `cut`: the covariates of CUTS in
# one text; `key`: series and cut as one number, by which millions of rows are joined in a third of the time that the
# texts take; `about`, `renames`: JSON, see `_about` and `_renames`.
MADE = {
    "run": TEXT, "created": TIME, "clock": TEXT, "cut": TEXT, "key": WHOLE, "name": TEXT, "bytes": WHOLE,
    "complete": TEXT, "about": TEXT, "renames": TEXT,
}  # fmt: skip
COLUMNS: dict[str, str] = {name: kind for name, (kind, _) in {**RECORD, **RUN}.items()} | MADE


def read(content: bytes, name: str, run: str) -> list[Row]:
    """Return the rows of a results file.

    Raises UsageError, in one line, for what is no results file of a version we read or has no time we can read.
    """
    data = store.parse(content, name)
    store.known(data, name)
    created = moment(data["created"], name)
    records = [r for kind in ("conformance", "benchmarks", "gate") for r in data.get(kind) or ()]
    strange = sum(not isinstance(r, dict) for r in records)
    if strange:
        raise UsageError(f"{name}: {strange} of its records are no objects.")
    whole = {key: _first(data, places, kind) for key, (kind, places) in RUN.items()}
    common = {"run": run, "created": created}
    rows = [{**common, **_record(record, whole)} for record in records]
    complete = {True: "yes", False: "no"}.get(data.get("complete"), UNKNOWN)
    about = {
        "name": name,
        "bytes": len(content),
        "complete": complete,
        "about": _about(data),
        "renames": _renames(records),
    }
    return [*rows, {**common, **whole, "kind": "run", **about}]


def moment(text: Any, name: str) -> datetime:
    """Return a time of a results file in UTC, without a zone; raises UsageError where it is none."""
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC).replace(tzinfo=None) if found.tzinfo else found
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name}: created is {str(text)[:40]!r}, which is no time.") from None


def _record(record: Mapping[str, Any], whole: Mapping[str, Any]) -> Row:
    row = {key: _first(record, places, kind) for key, (kind, places) in RECORD.items()}
    row |= {key: row[key] if row.get(key) is not None else whole[key] for key in ("uuid", "driver", "harness")}
    row["cuda"] = whole["cuda"]
    if row["kind"] is None:  # of files written before records said it
        row["kind"] = "benchmark" if "stats" in record or "extra_info" in record else "conformance"
    if (_at(record, "extra_info.energy") or {}).get("valid") is not True:
        row |= {"call_j": None, "u_call_j": None, "token_j": None}
    tags = _at(record, "extra_info.health.tags")
    row["clock"] = None if not isinstance(tags, list) else "unlocked" if "unlocked" in tags else "locked"
    row["cut"] = "|".join(str(row[key] or UNKNOWN).replace("|", "/") for key in CUTS)
    row["key"] = key(row["series"], row["cut"]) if row["series"] else None
    return row


def key(series: str, cut: str) -> int:
    """Return a number for a series under its covariates; of 1e5 of them two are alike with a probability of 1e-9."""
    return int.from_bytes(hashlib.sha256(f"{series} {cut}".encode()).digest()[:8], "big") >> 1


def covariates(cut: str) -> dict[str, str]:
    """Return the covariates that a `cut` was made of."""
    return dict(zip(CUTS, cut.split("|"), strict=True))


def _about(data: Mapping[str, Any]) -> str:
    """What a run ran on that cuts nothing but may explain a change, as JSON: one text for each word."""
    machine = data["machine_info"] if isinstance(data["machine_info"], dict) else {}
    named = {"vbios": "gpu.vbios", "power_limit_w": "gpu.power_limit_w", "host": "host.system"}
    told = {key: _at(machine, place) for key, place in named.items()}
    told |= _at(machine, "software") or {}
    return json.dumps({k: str(v) for k, v in told.items() if v is not None}, sort_keys=True)


def _renames(records: list[dict[str, Any]]) -> str | None:
    """Earlier names of kernels as their rows say them, as JSON: op/old name -> op/new name."""
    found = {
        f"{r.get('op')}/{old}": f"{r.get('op')}/{r.get('kernel')}"
        for r in records
        for old in r.get("renamed_from") or ()
    }
    return json.dumps(found, sort_keys=True) if found else None


def _first(data: Any, places: tuple[str, ...], kind: str) -> Any:
    return next((value for place in places if (value := _of(_at(data, place), kind)) is not None), None)


def _at(data: Any, place: str) -> Any:
    return store.at(data, *place.split("."))


def _of(value: Any, kind: str) -> Any:
    """The value if it is of the kind, else None."""
    if kind == TEXT:
        return value if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**62:  # NaN is not less
        return None
    return float(value) if kind == REAL else int(value)


def table(rows: list[Row]) -> Any:
    """Return rows as an Arrow table with all columns, ordered by kind, series or id, and time."""
    arrow = need("pyarrow")
    rows = sorted(rows, key=lambda r: (r["kind"], r.get("series") or r.get("id") or "", r["created"], r["run"]))
    types = {TEXT: arrow.string(), REAL: arrow.float64(), WHOLE: arrow.int64(), TIME: arrow.timestamp("us")}
    columns = {name: arrow.array([row.get(name) for row in rows], types[kind]) for name, kind in COLUMNS.items()}
    return arrow.table(columns)


def parquet(made: Any) -> bytes:
    """Return such a table, rows of a kind together, as Parquet: each kind in row groups of its own, read alone."""
    files, sink = need("pyarrow.parquet"), need("pyarrow").BufferOutputStream()
    kinds = made["kind"].to_numpy(zero_copy_only=False)
    with files.ParquetWriter(sink, made.schema, compression="zstd") as writer:
        start = 0
        for kind in dict.fromkeys(kinds):
            end = start + int((kinds == kind).sum())
            writer.write_table(made.slice(start, end - start), row_group_size=2**17)
            start = end
    content: bytes = sink.getvalue().to_pybytes()
    return content


def months(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Rows by month, "2026-12"."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(f"{row['created']:%Y-%m}", []).append(row)
    yield from sorted(found.items())
