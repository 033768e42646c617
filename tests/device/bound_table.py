"""The static bound of each timed kernel beside what was measured, in SM cycles; 1 if a bound is no lower bound.

    python tests/device/bound_table.py GLOB RESULTS.json...

compiles, without a GPU, what the results files timed (workloads by GLOB) with the Triton that is installed: for a fair
comparison the one of the measurement. Memory is the fewest bytes at the datasheet's rate and the measured clock. Beside
the bound stands what the code asks of global memory: in fewest bytes, and in bytes a clock and SM at the measured time;
1 too if device memory moved more than that and what is written, where it was measured.
"""

import json
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import triton

from rooftest import devices
from rooftest.compiled import asked, bound, build, reading
from rooftest.rows import read_rows

ROWS = read_rows(Path(__file__).parents[2] / "pyproject.toml")
H200 = devices.device("h200")


def measured(glob, paths):
    """The fastest time of each series: SM cycles, clock, fewest bytes read, written, and bytes moved if measured."""
    found = {}
    for path in paths:
        for each in json.loads(Path(path).read_text(encoding="utf-8"))["benchmarks"]:
            told = each["extra_info"]
            name, cycles = told["id"], (told.get("clocks") or {}).get("cycles_median")
            key = tuple(name[k] for k in ("kernel", "workload", "dtype", "layout"))
            if cycles and name["kernel"] in ROWS and fnmatchcase(name["workload"], glob):
                size = (told["work"]["read_bytes"], told["work"]["write_bytes"], told["moved"].get("bytes") or 0)
                found[key] = min(found.get(key, (float("inf"),)), (cycles, told["clocks"]["sm_hz_mean"], *size))
    return found


def bounds(row, workload, dtype, layout, reads):
    """The least cycles by pipe, and the bytes asked for at least; `reads`: the fewest read."""
    made = build.build(row, workload, dtype, layout, "sm_90")
    kernels = [facts for each in made for facts in reading.read(each, "sm_90")]
    flop = row.spec.flop_of(workload.sizes, workload.params)
    cycles = bound.least([facts.cycles_per_mac for facts in kernels], flop, H200.sm_count)
    return cycles, asked.least([facts.bytes_per_mac for facts in kernels], flop, reads)


def main(glob, *paths):
    wrong = more = 0
    print(f"An {H200.name}, code by Triton {triton.__version__}, in SM cycles.\n")
    print(
        "| kernel | workload | measured | tensor or fma | issue | shared | memory | bound / measured "
        "| asked / fewest | asked a clock and SM |\n" + "|---" * 10 + "|"
    )
    for (name, what, dtype, layout), (cycles, hz, reads, writes, moved) in measured(glob, paths).items():
        row = ROWS[name]
        (workload,) = (each for each in row.spec.workloads if each.name == what)
        least, asks = bounds(row, workload, dtype, layout, reads)
        least |= {"memory": (reads + max(0, writes - H200.l2_bytes)) / H200.bytes_per_s * hz}
        binds = max(least, key=lambda pipe: least[pipe])
        wrong += least[binds] > cycles
        told = [least.get("tensor", least.get("fma")), *(least.get(p) for p in ("issue", "shared memory", "memory"))]
        cells = [name, f"{what} {dtype}-{layout}", f"{cycles:.0f}", *("-" if n is None else f"{n:.0f}" for n in told)]
        cells += [f"{least[binds] / cycles:.0%} {binds}"]
        cells += ["-", "-"] if asks is None else [f"{asks / reads:.1f}", f"{asks / cycles / H200.sm_count:.1f} B"]
        more += asks is not None and moved > asks + writes and asks > reads  # of equal ones each is measured as either
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{more} moved more than their code asks for")
    print(f"{wrong} bounds above what was measured")
    return int(wrong + more > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
