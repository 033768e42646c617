"""Timings and comparisons as CSV: a row each, in SI units with the unit in the column's name."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rooftest import store, tables
from rooftest.outputs import order

Found = Callable[[Mapping[str, Any]], Any]


def _of(*path: str | int) -> Found:
    """What stands at a place of a record (or, under "run", of its results file), None where there is nothing."""
    return lambda record: store.at(record, *path)


def _told(*path: str | int) -> Found:
    return _of("extra_info", *path)


def _arm(which: str) -> Found:
    return lambda record: tables.arm_s(record, which)


def _either(timing: Found, gate: Found) -> Found:
    return lambda record: (gate if record["kind"] == "gate" else timing)(record)


def _over_peer(record: Mapping[str, Any]) -> Any:
    return store.at(record, "extra_info", "ratios", f"{record['kernel']}/{record.get('peer')}", "median")


def _pairs(record: Mapping[str, Any]) -> int | None:
    return len(record["pairs"]) if record.get("pairs") is not None else None


COLUMNS: dict[str, Found] = {
    "created": _of("run", "created"),
    "gpu": _of("run", "machine_info", "gpu", "name"),
    "gpu_uuid": _of("run", "machine_info", "gpu", "uuid"),
    "driver": _of("run", "machine_info", "gpu", "driver"),
    "kind": _of("kind"),
    "id": _of("id"),
    "series": _of("series"),
    "op": _of("op"),
    "kernel": _of("kernel"),
    "workload": _of("what"),
    "dtype": _of("dtype"),
    "layout": _of("layout"),
    "device": _of("device"),
    "verdict": _of("verdict"),
    "status": _of("status"),
    "reason": _of("reason"),
    "time_s": _either(_told("timing", "median_s"), _arm("head")),
    "time_ci95_low_s": _told("timing", "ci95_s", 0),
    "time_ci95_high_s": _told("timing", "ci95_s", 1),
    "timer": _either(_told("timing", "timer"), _of("pairs", 0, "head", "timer")),
    "timer_uncertainty_s": _either(_told("timing", "u_timer_s"), _of("pairs", 0, "head", "u_timer_s")),
    "samples": _told("timing", "n_accepted"),
    "flop": _told("work", "flop"),
    "min_read_bytes": _told("work", "read_bytes"),
    "min_write_bytes": _told("work", "write_bytes"),
    "flop_per_s": _told("rates", "flop_per_s"),
    "min_bytes_per_s": _told("rates", "bytes_per_s"),
    "moved_bytes": _told("moved", "bytes"),
    "moved_over_min": _told("moved", "over_min"),
    "efficiency": _told("bound", "efficiency"),
    "limiter": _told("bound", "limiter"),
    "sm_clock_hz": _either(_told("clocks", "sm_hz_mean"), _of("pairs", 0, "head", "clock_hz")),
    "power_w": _told("power_w"),
    "energy_j": _told("energy", "gross_j"),
    "energy_uncertainty_j": _told("energy", "u_gross_j"),
    "token_j": _told("energy", "token_j"),
    "launch_s": _told("timing", "host_s"),
    "first_call_s": _told("first", "call_s"),
    "compile_s": _told("first", "compile_s"),
    "peak_bytes": _told("memory", "peak_bytes"),
    "workspace_bytes": _told("memory", "workspace_bytes"),
    "peer": _of("peer"),
    "time_over_peer": _over_peer,
    "base_time_s": _arm("base"),
    "base_revision": _of("base", "revision"),
    "head_revision": _of("head", "revision"),
    "change": _of("change"),
    "change_ci95_low": _of("ci95", 0),
    "change_ci95_high": _of("ci95", 1),
    "estimator": _of("estimator"),
    "sigma": _of("sigma"),
    "mde": _of("mde"),
    "budget": _of("budget"),
    "delta": _of("delta"),
    "pairs": _pairs,
    "pairs_known": _of("pairs_known"),
    "base_workspace_bytes": _of("memory", "base_bytes"),
    "head_workspace_bytes": _of("memory", "head_bytes"),
}
"""How each column is found; empty where nothing is known. Ratios and shares have no unit."""


def render(runs: Sequence[Mapping[str, Any]]) -> str:
    """The CSV of results files: a head, then the rows in the order of their ids, file by file."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(COLUMNS)
    for run in runs:
        mine = [r for r in order.records(run) if r["kind"] != "conformance"]
        for record in sorted(mine, key=lambda r: (r["id"], r["kind"], str(r.get("series")))):
            lines.writerow([_text(found({**record, "run": run})) for found in COLUMNS.values()])
    return out.getvalue()


def _text(value: Any) -> Any:
    """One line, so that a row is a line too."""
    return " ".join(value.split()) if isinstance(value, str) else value
