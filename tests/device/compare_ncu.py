"""Our device times beside Nsight Compute's, and our bytes moved beside its DRAM counters. Needs a GPU and ncu.

    python tests/device/compare_ncu.py results/timers/h200-ncu.json

Clocks are left alone (--clock-control none). Every row of timed.py runs cold and warm; cold is our flush before the
call, with ncu's cache control off, and once more ncu's own flush (all) instead of ours. ncu serialises kernels and its
duration holds a part of the launch: its offset is what it reads more than CUPTI for a kernel that does nothing and for
kernels that watch the clock for 5, 20 and 200 us; it is taken out, once a launch. What ncu can't see (a fill that
cuBLAS puts before some products) is taken out of ours. Targets: from 30 us up within 3 % of ncu, in SM cycles where
the SMs bind and in time where memory does; below that within 0.3 us of a second trace by CUPTI. The same call timed by
graphs and by events stands beside it.

The bytes are those of a warm window for ours, so ncu counts the last of many repeated calls; within 3 %.
"""

from __future__ import annotations

import copy
import csv
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timed
import torch

from rooftest import store
from rooftest.cuda import MARK, Cuda, Device
from rooftest.measure import Plan, measure, open_monitor
from rooftest.plan import SHORT_S
from rooftest.traffic import moved_bytes
from rooftest.windows import busy_s, windows

L2 = ("cold", "warm")
TIME, CYCLES = "gpu__time_duration.sum", "sm__cycles_elapsed.max"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
RUNS = {
    # what: (ncu's cache control, metrics, states of the L2, only the rows whose bytes are compared)
    "none": ("none", f"{TIME},{CYCLES}", L2, False),
    "bytes": ("none", f"{READ},{WRITTEN}", ("warm",), True),
    "all": ("all", f"{TIME},{CYCLES}", ("cold",), False),
}
LEAD, KEPT = 2, 5  # calls that bring the L2 into its steady state, and calls that count
LONG_S, WITHIN, WITHIN_S = 30e-6, 0.03, 0.3e-6
TARGETS = {"from_s": LONG_S, "within": WITHIN, "cupti_within_s": WITHIN_S, "bytes_within": WITHIN}
PLAN = {"looks": (30, 100, 200), "warmup_s": 0.1, "cap_s": 1.5}
TRACED = 15


def schedule(what: str) -> Iterable[tuple[timed.Row, str]]:
    """The rows and states of the L2 that one run under ncu goes through, LEAD + KEPT calls each."""
    _, _, states, moves = RUNS[what]
    return [(row, l2) for row in timed.ROWS if row.moves or not moves for l2 in states]


def child(what: str) -> None:
    """Run the schedule under ncu, which looks only between start and stop: our mark, then the call."""
    device, made, call = Cuda(), None, None
    for row, l2 in schedule(what):
        if row is not made:
            made, call = row, None  # frees what the row before held
            call = row.make("cuda")
            call()  # compiles
        for _ in range(LEAD + KEPT):
            if l2 == "cold" and RUNS[what][0] == "none":
                device.flush()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            device.mark()
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


def parse(text: str, calls: int) -> list[list[dict[str, Any]]]:
    """ncu's table as the kernels of each call: name and metrics in base units (nanoseconds, cycles, bytes)."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found: list[list[dict[str, Any]]] = []
    for row in csv.DictReader(lines):
        if not row["ID"]:
            continue  # the line of units
        if MARK in row["Kernel Name"]:
            found.append([])
            continue
        metrics = {k: float(row[k].replace(",", "")) for k in (TIME, CYCLES, READ, WRITTEN) if row.get(k)}
        found[-1].append({"name": row["Kernel Name"], **metrics})
    if len(found) != calls:
        raise SystemExit(f"ncu saw {len(found)} calls, expected {calls}; it said: {text[-800:]}")
    return found


def under_ncu(what: str) -> dict[tuple[str, str], dict[str, Any]]:
    """ncu's readings by row and state of the L2: metrics summed over a call's kernels, the median of the calls kept."""
    control, metrics, _, _ = RUNS[what]
    command = [
        "ncu", "--clock-control", "none", "--cache-control", control, "--metrics", metrics, "--csv", "--page", "raw",
        "--print-units", "base", "--profile-from-start", "off", sys.executable, str(Path(__file__).resolve()),
        "--child", what,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    plan = list(schedule(what))
    size = LEAD + KEPT
    try:
        calls = parse(done.stdout, len(plan) * size)
    except SystemExit as error:
        raise SystemExit(f"{what}: {error} (exit {done.returncode}) {done.stderr[-800:]}") from None
    # With several passes over a kernel only the first would meet the L2 as it is said to be.
    passes = {int(n) for n in re.findall(r"- (\d+) pass", done.stdout + done.stderr)} or {0}
    out = {}
    for index, (row, l2) in enumerate(plan):
        kept = calls[index * size + LEAD : (index + 1) * size]
        sums = {name: [sum(k[name] for k in call) for call in kept] for name in metrics.split(",")}
        out[row.name, l2] = {
            "kernels": [k["name"] for k in kept[-1]], "passes": max(passes),
            **{name: statistics.median(values) for name, values in sums.items()},
        }  # fmt: skip
    return out


def traced(device: Device, call: timed.Call, l2: str) -> dict[str, Any]:
    """CUPTI's time of a call in a trace of its own, and the part of it that is no kernel's (copies and fills)."""

    def burst() -> None:
        device.block(3e-3)
        for _ in range(TRACED):
            device.flush() if l2 == "cold" else device.mark()
            call()
            device.done()

    found = windows(device.trace(burst), TRACED)[LEAD:]
    other = [busy_s([a for a in window if a.name.startswith("Mem")]) for window in found]
    return {
        "cupti_s": statistics.median(busy_s(window) for window in found),
        "other_s": statistics.median(other),
        "launches": statistics.median(sum(not a.name.startswith("Mem") for a in window) for window in found),
        "activities": sorted({a.name for window in found for a in window}),
    }


def ours(device: Cuda, monitor: Any, row: timed.Row) -> dict[str, Any]:
    """A row's times by our product and by CUPTI alone, cold and warm, and the bytes that it moves."""
    call = row.make("cuda")
    call()
    device.synchronize()
    out: dict[str, Any] = {"kind": row.kind, "bound": row.bound, "l2": {}}
    for l2 in L2:
        told = out["l2"][l2] = traced(device, call, l2)
        if row.bound == "offset":
            continue
        result = measure({"call": call}, Plan(l2=l2, **PLAN), None, device, monitor)
        if not result["calls"]:
            raise RuntimeError("; ".join(result["reasons"]))
        timing, clocks = result["calls"]["call"]["timing"], result["calls"]["call"]["clocks"]
        told |= {
            "time_s": timing["median_s"], "ci95_s": timing["ci95_s"], "timer": timing["timer"],
            "clock_hz": clocks["sm_hz_mean"], "status": result["status"], "reasons": result["reasons"],
        }  # fmt: skip
        if l2 == "cold" and told["cupti_s"] < SHORT_S:
            for timer in ("graph", "events"):
                got = measure({"call": call}, Plan(timer=timer, **PLAN), None, device, monitor)["calls"]
                told[f"{timer}_s"] = got["call"]["timing"]["median_s"]
    if row.moves:
        period = out["l2"]["warm"]["time_s"]
        moved = moved_bytes(call, period, device, monitor, 2.0)
        out["moved"] = {key: moved.get(key) for key in ("bytes", "call_s", "clock_hz", "reason")}
    return out


def offsets(rows: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """What ncu reads more than CUPTI for the kernels that last what they last, and the median of it, in seconds."""
    out = {
        name: theirs[name, "cold"][TIME] * 1e-9 - row["l2"]["cold"]["cupti_s"]
        for name, row in rows.items()
        if row["bound"] == "offset"
    }
    return {**out, "used_s": statistics.median(out.values())}


def judged(row: Mapping[str, Any], told: Mapping[str, Any], theirs: Mapping[str, Any], offset_s: float) -> dict:
    """Ours beside one reading of ncu's: both less what the other can't see, their ratio, and whether that is close."""
    launches = len(theirs["kernels"])
    time_s = theirs[TIME] * 1e-9
    hz = theirs[CYCLES] / time_s
    mine_s, ncu_s = told["time_s"] - told["other_s"], time_s - launches * offset_s
    cycles = theirs[CYCLES] - launches * offset_s * hz
    clock = told["clock_hz"]
    out = {
        "kernels": theirs["kernels"], "passes": theirs["passes"], "ncu_s": time_s, "ncu_cycles": theirs[CYCLES],
        "ncu_hz": hz, "ncu_less_offset_s": ncu_s, "time_ratio": mine_s / ncu_s,
        "cycles_ratio": mine_s * clock / cycles if clock else None,
    }  # fmt: skip
    if told["cupti_s"] < LONG_S:
        apart = told["time_s"] - told["cupti_s"]
        return out | {"by": "cupti", "apart_s": apart, "met": abs(apart) <= WITHIN_S}
    by = "cycles" if row["bound"] == "compute" else "time"
    ratio = out[f"{by}_ratio"]
    return out | {"by": by, "met": ratio is not None and abs(ratio - 1) <= WITHIN}


def assembled(rows: dict[str, Any], theirs: Mapping[str, Mapping[Any, Any]]) -> dict[str, Any]:
    """The rows with ncu's side and the verdicts, the offsets, the bytes."""
    offset = {control: offsets(rows, theirs[control]) for control in ("none", "all") if control in theirs}
    out: dict[str, Any] = {"targets": TARGETS, "offset": offset, "rows": {}, "bytes": {}}
    for name, row in rows.items():
        if row["bound"] == "offset":
            continue
        for l2, told in row["l2"].items():
            told["ncu"] = {
                control: judged(row, told, theirs[control][name, l2], offset[control]["used_s"])
                for control in offset
                # ncu's flush comes before each kernel, ours before the call: of two launches the second differs
                if (name, l2) in theirs[control] and not (control == "all" and told["launches"] > 1)
            }
        out["rows"][name] = row
        if "moved" in row and "bytes" in theirs:
            counted = theirs["bytes"][name, "warm"]
            total, mine = counted[READ] + counted[WRITTEN], row["moved"]["bytes"]
            ratio = mine / total if mine is not None and total else None
            out["bytes"][name] = {
                "ncu_read": counted[READ], "ncu_written": counted[WRITTEN], "gpm": mine,
                "reason": row["moved"]["reason"], "ratio": ratio,
                "met": ratio is not None and abs(ratio - 1) <= WITHIN,
            }  # fmt: skip
    return out


def lines(data: Mapping[str, Any]) -> list[str]:
    """What is printed: a line a reading, met or MISSED."""
    out = []
    for name, row in data["rows"].items():
        for l2, told in row["l2"].items():
            us = {key: told.get(f"{key}_s") for key in ("time", "cupti", "graph", "events")}
            said = ", ".join(f"{key} {value * 1e6:.2f}" for key, value in us.items() if value)
            head = f"{name:24s} {l2} {said} us ({told['timer']}, {told['status']})"
            for control, got in told["ncu"].items():
                cycles = f"{got['cycles_ratio']:.3f}" if got["cycles_ratio"] else "-"
                out.append(
                    f"{head}; ncu {control} less offset {got['ncu_less_offset_s'] * 1e6:.2f} us: time"
                    f" {got['time_ratio']:.3f}, cycles {cycles}; by {got['by']} {'met' if got['met'] else 'MISSED'}"
                )
    for name, got in data["bytes"].items():
        ratio = f"{got['ratio']:.3f}" if got["ratio"] else f"- ({got['reason']})"
        total = (got["ncu_read"] + got["ncu_written"]) / 1e6
        out.append(f"{name:24s} bytes: ncu {total:.1f} MB, ours over ncu {ratio} {'met' if got['met'] else 'MISSED'}")
    for control, offset in data["offset"].items():
        told = ", ".join(f"{name} {value * 1e6:.2f}" for name, value in offset.items())
        out.append(f"ncu {control} less CUPTI, us: {told}")
    return out


def missed(data: Mapping[str, Any]) -> list[str]:
    """The readings beyond their target, by name."""
    out = [
        f"{name} {l2} {control}"
        for name, row in data["rows"].items()
        for l2, told in row["l2"].items()
        for control, got in told["ncu"].items()
        if not got["met"]
    ]
    out += [f"{name}: {why}" for name, why in data.get("failed", {}).items()]
    return out + [f"{name} bytes" for name, got in data["bytes"].items() if not got["met"]]


def main(path: Path) -> int:
    """Compare, print, and write the JSON; return 1 when a target is missed."""
    if shutil.which("ncu") is None:
        raise SystemExit("ncu is not on the PATH.")
    device = Cuda()
    monitor = open_monitor(device)
    rows: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for row in timed.ROWS:
        begun = device.now()
        try:
            rows[row.name] = ours(device, monitor, row)
        except (RuntimeError, KeyError) as error:  # one kernel that can't be had leaves the others
            failed[row.name] = f"{type(error).__name__}: {str(error)[:300]}"
        print(f"{row.name}: {device.now() - begun:.1f} s", failed.get(row.name, ""), flush=True)
    theirs = {}
    torch.cuda.empty_cache()
    for what in RUNS:
        begun = device.now()
        try:
            theirs[what] = under_ncu(what)
        except SystemExit as error:
            if what == "none":
                raise
            failed[f"ncu {what}"] = str(error)
        print(f"ncu {what}: {device.now() - begun:.1f} s", flush=True)
        data = _written(path, copy.deepcopy(rows), failed, theirs, monitor)  # what a time limit leaves is a result
    print(*lines(data), sep="\n")
    print("missed:", data["missed"] or "nothing")
    return int(bool(data["missed"]))


def _written(path: Path, rows: dict, failed: dict, theirs: Mapping[str, Any], monitor: Any) -> dict[str, Any]:
    data = {
        "what": "device times of ours beside Nsight Compute's",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "identity": monitor.identity().as_dict(),
        "software": {
            "torch": torch.__version__, "ncu": _version(),
            "cupti-python": "importable" if find_spec("cupti") else "not importable",
        },
        "failed": failed,
        **assembled(rows, theirs),
    }  # fmt: skip
    data["missed"] = missed(data)
    store.write(path, data)
    return data


def _version() -> str:
    done = subprocess.run(["ncu", "--version"], capture_output=True, text=True, check=False)
    return next((line for line in done.stdout.splitlines() if "Version" in line), "unknown")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "ncu.json")))
