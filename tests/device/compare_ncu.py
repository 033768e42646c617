"""Our device times of single-kernel GEMMs beside Nsight Compute's, in time and in SM cycles. Needs a GPU and ncu.

    python tests/device/compare_ncu.py results/ncu.json

Clocks are left alone (--clock-control none), and each GEMM is preceded by our flush, once with ncu's own cache control
off and once with it on (all: it flushes too). ncu serialises kernels and its duration holds a part of the launch: its
offset is what it reads more than CUPTI for a kernel that does nothing, and for kernels that watch the clock for 5, 20
and 200 us. Nothing is subtracted. Targets: a kernel of 30 us or more is within 5 % of ncu's in SM cycles (ours: CUPTI's
duration x the clock held within the call); below, the measured time of the call is within 0.3 us of CUPTI's duration.
"""

from __future__ import annotations

import csv
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from rooftest import store
from rooftest.cuda import MARK, Cuda
from rooftest.measure import Plan, measure, open_monitor

SHAPES = (
    (1024, 1024, 1024), (64, 4096, 4096), (2048, 2048, 2048), (1, 14336, 4096), (3072, 3072, 3072),
    (4096, 4096, 4096), (6144, 6144, 6144), (8192, 8192, 8192),
)  # fmt: skip
WATCHES_NS = (5_000, 20_000, 200_000)
REPEATS = 15
LONG_S, WITHIN, WITHIN_S = 30e-6, 0.05, 0.3e-6
KERNEL = re.compile(r"rooftest_mark|rooftest_watch|nvjet|gemm|cutlass", re.IGNORECASE)
METRICS = "gpu__time_duration.sum,sm__cycles_elapsed.max"


@triton.jit
def rooftest_watch(out, watch_ns, PTX: tl.constexpr):
    """Last about watch_ns nanoseconds, whatever the clock."""
    tl.store(out, tl.inline_asm_elementwise(PTX, "=l,r", [watch_ns], dtype=tl.int64, is_pure=False, pack=1))


WATCH_PTX = """
{
    .reg .u64 first, now, limit;
    .reg .pred early;
    cvt.u64.u32 limit, $1;
    mov.u64 first, %globaltimer;
again:
    mov.u64 now, %globaltimer;
    sub.u64 $0, now, first;
    setp.lt.u64 early, $0, limit;
    @early bra again;
}
"""


def gemm(m: int, n: int, k: int) -> Callable[[], object]:
    """Return a bf16 product with B stored transposed, on random normal data, into a tensor that is there."""
    torch.manual_seed(m + n + k)
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).t()
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: torch.mm(a, b, out=out)


def watch(ns: int) -> Callable[[], object]:
    """Return a call of a kernel that lasts about that long."""
    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    return lambda: rooftest_watch[(1,)](out, ns, PTX=WATCH_PTX, num_warps=1)


def calls(device: Cuda) -> dict[str, Callable[[], object]]:
    """Return what both processes run, in order."""
    out: dict[str, Callable[[], object]] = {"empty": device.mark}
    out |= {f"watch {ns}": watch(ns) for ns in WATCHES_NS}
    return out | {"x".join(map(str, shape)): gemm(*shape) for shape in SHAPES}


def child() -> None:
    """Run everything under ncu, each call after a flush and a wait, so that it meets the same cold L2 as ours."""
    device = Cuda()
    for call in calls(device).values():
        call()
        torch.cuda.synchronize()
        for _ in range(REPEATS):
            device.flush()
            call()
        torch.cuda.synchronize()


def under_ncu(cache_control: str) -> dict[str, list[dict[str, float]]]:
    """Return ncu's readings by call: duration in seconds and SM cycles, REPEATS of each."""
    command = [
        "ncu", "--clock-control", "none", "--cache-control", cache_control, "--metrics", METRICS, "--csv",
        "--page", "raw", "--print-units", "base", "--kernel-name",
        f"regex:{MARK}|rooftest_watch|nvjet|gemm|cutlass", sys.executable, str(Path(__file__).resolve()), "--child",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if not lines:
        raise SystemExit(f"ncu gave no table (exit {done.returncode}): {done.stdout[-800:]} {done.stderr[-800:]}")
    rows = [row for row in csv.DictReader(lines) if row["ID"]]
    readings = [
        {
            "name": row["Kernel Name"],
            "time_s": float(row["gpu__time_duration.sum"].replace(",", "")) * 1e-9,
            "cycles": float(row["sm__cycles_elapsed.max"].replace(",", "")),
        }
        for row in rows
    ]
    # Each call ran once by itself and REPEATS times after a flush; a call has one kernel that the filter lets through.
    names = ["empty", *(f"watch {ns}" for ns in WATCHES_NS), *("x".join(map(str, shape)) for shape in SHAPES)]
    if len(readings) != len(names) * (REPEATS + 1):
        raise SystemExit(f"ncu saw {len(readings)} kernels, expected {len(names) * (REPEATS + 1)}")
    size = REPEATS + 1
    return {name: readings[i * size + 1 : (i + 1) * size] for i, name in enumerate(names)}


def traced(device: Cuda, call: Callable[[], object]) -> tuple[list[float], float, list[str]]:
    """Return CUPTI's durations of a call's one kernel, the clock within it, and the names of all its activities."""

    def burst() -> None:
        device.block(3e-3)
        for _ in range(REPEATS):
            device.flush()
            device.clock()
            call()
            device.clock()

    device.clocks_hz()
    found = [a for a in device.trace(burst) if KERNEL.search(a.name) or a.name.startswith("Mem")]
    durations = [a.end_s - a.start_s for a in found if KERNEL.search(a.name)]
    return durations, statistics.median(device.clocks_hz()), sorted({a.name for a in found})


def main(path: Path) -> int:
    """Compare, print, and write the JSON; return 1 when a target is missed."""
    if shutil.which("ncu") is None:
        raise SystemExit("ncu is not on the PATH.")
    device = Cuda()
    monitor = open_monitor(device)
    ours: dict[str, Any] = {}
    for name, call in calls(device).items():
        call()
        device.synchronize()
        durations, clock, names = traced(device, call)
        ours[name] = {"cupti_s": statistics.median(durations), "clock_hz": clock, "activities": names}
        if "x" in name:
            result = measure({"gemm": call}, Plan(), None, device, monitor)
            entry = result["calls"]["gemm"]
            ours[name] |= {
                "time_s": entry["timing"]["median_s"], "ci95_s": entry["timing"]["ci95_s"],
                "timer": entry["timing"]["timer"], "held_hz": entry["clocks"]["sm_hz_mean"],
                "status": result["status"], "reasons": result["reasons"],
            }  # fmt: skip
    theirs = {control: under_ncu(control) for control in ("none", "all")}
    out: dict[str, Any] = {
        "what": "device times of ours beside Nsight Compute's",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "identity": monitor.identity().as_dict(),
        "software": {"torch": torch.__version__, "ncu": _version()},
        "targets": {"from_s": LONG_S, "cycles_within": WITHIN, "cupti_within_s": WITHIN_S},
        "offset": {},
        "gemms": {},
    }
    missed = 0
    for control, readings in theirs.items():
        out["offset"][control] = {
            name: statistics.median(r["time_s"] for r in readings[name]) - ours[name]["cupti_s"]
            for name in readings
            if "x" not in name
        }
    for name, mine in ours.items():
        if "x" not in name:
            continue
        row: dict[str, Any] = {**mine, "ncu": {}}
        for control, readings in theirs.items():
            time_s = statistics.median(r["time_s"] for r in readings[name])
            cycles = statistics.median(r["cycles"] for r in readings[name])
            row["ncu"][control] = {
                "kernel": readings[name][0]["name"], "time_s": time_s, "cycles": cycles, "clock_hz": cycles / time_s,
                "ours_over_ncu_time": mine["cupti_s"] / time_s,
                "ours_over_ncu_cycles": mine["cupti_s"] * mine["clock_hz"] / cycles,
            }  # fmt: skip
        apart = abs(row["ncu"]["none"]["ours_over_ncu_cycles"] - 1)
        row["call_less_kernel_s"] = mine["time_s"] - mine["cupti_s"]
        if mine["cupti_s"] >= LONG_S:
            row["met"] = apart <= WITHIN
        else:
            row["met"] = abs(row["call_less_kernel_s"]) <= WITHIN_S
        missed += not row["met"]
        out["gemms"][name] = row
        ncu = row["ncu"]["none"]
        print(
            f"{name:18s} ours {mine['time_s'] * 1e6:9.2f} us ({mine['timer']}), kernel {mine['cupti_s'] * 1e6:9.2f},"
            f" ncu {ncu['time_s'] * 1e6:9.2f} us (all: {row['ncu']['all']['time_s'] * 1e6:9.2f}),"
            f" in cycles {ncu['ours_over_ncu_cycles']:.3f}, {'met' if row['met'] else 'MISSED'}"
            f"  {len(mine['activities'])} activities"
        )
    print("ncu less CUPTI, us:", {c: {n: round(v * 1e6, 2) for n, v in o.items()} for c, o in out["offset"].items()})
    store.write(path, out)
    return int(missed > 0)


def _version() -> str:
    done = subprocess.run(["ncu", "--version"], capture_output=True, text=True, check=False)
    return next((line for line in done.stdout.splitlines() if "Version" in line), "unknown")


if __name__ == "__main__":
    if sys.argv[1:] == ["--child"]:
        child()
    else:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "ncu.json")))
