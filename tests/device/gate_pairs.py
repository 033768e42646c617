"""A/A pairs of several workloads of one kernel, for the spread and for the gate's power. Needs a GPU.

    python tests/device/gate_pairs.py PAIRS.json SECONDS KERNEL WORKLOAD... [--store results/spread]

Each round starts two fresh processes of the same code and measures every workload in both, A B B A or B A A B in turn:
what the gate does for one workload, its start shared. PAIRS.json is rewritten after each round (tests/device/
gate_power.py reads it); at the end the pairs go into the store, one file more.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any, cast

from rooftest import devices, recheck, record, roofline, store
from rooftest.closures import work
from rooftest.gate import spread
from rooftest.gate.arms import SAMPLES, Arms, fresh, taken
from rooftest.gate.trees import Trees
from rooftest.roof import look
from rooftest.rows import read_rows

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Record until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("kernel")
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--store", type=Path)
    asked = parser.parse_args()
    row = read_rows(ROOT / "pyproject.toml")[asked.kernel]
    named = {w.name: w for w in row.spec.workloads}
    trees = cast("Trees", SimpleNamespace(head=ROOT, base=ROOT))
    arms = Arms(row, row, trees, "cuda:0", Path(mkdtemp()))
    physical = look().physical
    found: dict[str, Any] = {"series": {}, "identity": None}
    plans: dict[str, Any] = {}
    begun, rounds = time.monotonic(), 0
    while time.monotonic() - begun < asked.seconds:
        order = "BA" if rounds % 2 else "AB"
        with fresh(arms) as processes:
            for name in asked.workloads:
                load = named[name]
                request = {
                    "plan": {"looks": [SAMPLES]}, "workload": dict(load.sizes), "dtype": "bfloat16",
                    "layout": load.layout, "seed": recheck.seed(),
                }  # fmt: skip
                pair = taken(arms, processes, request, "calibrate", order)
                found["identity"], plan, _ = (pair.pop(key) for key in ("identity", "plan", "memory"))
                series = record.series(row.op, row.name, name, "bfloat16", load.layout, plan, row.spec.version)
                bound = physical and roofline.bound(work(row.spec, {"op": row.op, **request}), physical).limiter
                entry = found["series"].setdefault(series, {"bound": bound, "pairs": []})
                entry["pairs"].append(pair)
                plans[series] = plan
        rounds += 1
        store.write(asked.pairs, found)
        last = {s.split("/")[2]: round(e["pairs"][-1]["log_ratio"] or 0, 5) for s, e in found["series"].items()}
        print(f"{time.monotonic() - begun:6.1f} s, round {rounds}: {json.dumps(last)}", flush=True)
    if asked.store is not None:
        identity = found["identity"]
        known = devices.match(identity["name"], identity["cc"])
        kept = spread.Store(asked.store, f"{known.key if known else 'gpu'}-{identity['uuid']}")
        for series, entry in found["series"].items():
            timer = entry["pairs"][0]["base"]["timer"]
            kept.add(series, spread.covariates(identity["driver"], timer, plans[series]["regime"]), entry["pairs"])
        print("\n".join(kept.lines()))


if __name__ == "__main__":
    main()
