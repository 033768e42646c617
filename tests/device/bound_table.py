"""The static bound of each timed kernel beside what was measured, in SM cycles; 1 if a bound is no lower bound.

    python tests/device/bound_table.py GLOB RESULTS.json...

compiles, without a GPU, what the results files timed (workloads by GLOB) with the Triton that is installed: for a fair
comparison the one of the measurement. Memory is the fewest bytes at the datasheet's rate and the measured clock.
"""

import json
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import triton

from rooftest import devices
from rooftest.compiled import bound, build, reading
from rooftest.rows import read_rows

ROWS = read_rows(Path(__file__).parents[2] / "pyproject.toml")
H200 = devices.device("h200")


def measured(glob, paths):
    """The fastest time of each series: SM cycles, clock, fewest bytes."""
    found = {}
    for path in paths:
        for each in json.loads(Path(path).read_text(encoding="utf-8"))["benchmarks"]:
            told = each["extra_info"]
            name, cycles = told["id"], (told.get("clocks") or {}).get("cycles_median")
            key = tuple(name[k] for k in ("kernel", "workload", "dtype", "layout"))
            if cycles and name["kernel"] in ROWS and fnmatchcase(name["workload"], glob):
                size = told["work"]["read_bytes"] + max(0, told["work"]["write_bytes"] - H200.l2_bytes)
                found[key] = min(found.get(key, (float("inf"),)), (cycles, told["clocks"]["sm_hz_mean"], size))
    return found


def bounds(row, workload, dtype, layout):
    made = build.build(row, workload, dtype, layout, "sm_90")
    kernels = [facts.cycles_per_mac for each in made for facts in reading.read(each, "sm_90")]
    return bound.least(kernels, row.spec.flop_of(workload.sizes), H200.sm_count)


def main(glob, *paths):
    wrong = 0
    print(f"triton {triton.__version__}")
    print(
        "| kernel | workload | measured | tensor or fma | issue | shared | memory | bound / measured |\n"
        + "|---" * 8
        + "|"
    )
    for (name, what, dtype, layout), (cycles, hz, size) in measured(glob, paths).items():
        row = ROWS[name]
        (workload,) = (each for each in row.spec.workloads if each.name == what)
        least = bounds(row, workload, dtype, layout) | {"memory": size / H200.bytes_per_s * hz}
        binds = max(least, key=lambda pipe: least[pipe])
        wrong += least[binds] > cycles
        told = [least.get("tensor", least.get("fma")), *(least.get(p) for p in ("issue", "shared memory", "memory"))]
        cells = [name, f"{what} {dtype}-{layout}", f"{cycles:.0f}", *("-" if n is None else f"{n:.0f}" for n in told)]
        print(f"| {' | '.join(cells)} | {least[binds] / cycles:.0%} {binds} |", flush=True)
    print(f"{wrong} bounds above what was measured")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
