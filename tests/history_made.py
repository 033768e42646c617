"""Histories made up for tests: seeded, straight into Parquet, or as results files. None of it goes under results/."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from rooftest import store
from rooftest.history import flat, place

START = datetime(2023, 6, 1, 2)  # noqa: DTZ001 - as times in a store, UTC without a zone
KINDS = {flat.TEXT: pa.string(), flat.REAL: pa.float64(), flat.WHOLE: pa.int64(), flat.TIME: pa.timestamp("us")}
UUID = "GPU-{:08x}-5b06-f471-4d6f-e3d44e7b7008"


def name(n):
    """The name of series n: ten workloads a kernel."""
    return f"gemm/kernel_{n // 10:02d}/square-{1024 * (n % 10 + 1)}/bfloat16/nt/burst/cold/nograph/v1"


def fill(root, runs, series, nodes=8, seed=0, sigma=0.01, steps=()):
    """Write a history of so many runs by so many nodes, one each a night; the driver changes after 60 % of them.

    `steps`: (series, night, sigmas): from that night on the series takes so many sigma longer on every node.
    """
    rng = np.random.default_rng(seed)
    night, node = np.arange(runs) // nodes, np.arange(runs) % nodes
    created = np.datetime64(START, "us") + night * np.timedelta64(1, "D") + node * np.timedelta64(10, "m")
    uuids = np.array([UUID.format(i) for i in range(nodes)])
    drivers = np.where(np.arange(runs) < 0.6 * runs, "580.159.04", "590.48.01")
    cut = np.array([f"{uuids[n]}|{d}|13.0|unlocked|cupti|0.1.0" for n, d in zip(node, drivers, strict=True)])
    digests = np.array([f"{x:016x}" for x in rng.integers(0, 2**63, runs)])
    revisions = np.array([f"{x:012x}" for x in rng.integers(0, 2**48, night[-1] + 1)])
    base = np.exp(rng.normal(-9, 1, series))
    cuts, of = np.unique(cut, return_inverse=True)
    keys = np.array([[flat.key(name(n), c) for c in cuts] for n in range(series)])
    for month in np.unique(created.astype("datetime64[M]")):
        which = np.flatnonzero(created.astype("datetime64[M]") == month)
        s, r = np.repeat(np.arange(series), len(which)), np.tile(which, series)
        log_s = np.log(base[s]) + rng.normal(0, sigma, len(s))
        for n, first, sigmas in steps:
            log_s[(s == n) & (night[r] >= first)] += sigmas * sigma
        time_s = np.exp(log_s).round(12)
        times = {
            "kind": coded(["benchmark"], 0 * s), "run": coded(digests, r),
            "created": pa.array(created[r]), "series": coded([name(n) for n in range(series)], s),
            "verdict": coded(["PASS"], 0 * s), "cut": coded(cuts, of[r]), "key": pa.array(keys[s, of[r]]),
            "uuid": coded(uuids, node[r]), "revision": coded(revisions, night[r]),
            "time_s": pa.array(time_s), "efficiency": pa.array((0.8 * base[s] / time_s).round(4)),
        }  # fmt: skip
        about = json.dumps({"torch": "2.11.0", "triton": "3.6.0"})
        told = {
            "kind": ["run"] * len(which), "run": digests[which], "created": created[which],
            "name": [f"{digests[i]}.json" for i in which], "bytes": [1] * len(which), "uuid": uuids[node[which]],
            "driver": drivers[which], "gpu": ["NVIDIA H200"] * len(which), "about": [about] * len(which),
        }  # fmt: skip
        made = pa.concat_tables([table(times, len(s)), table({k: pa.array(v) for k, v in told.items()}, len(which))])
        place.Place(str(root), new=True).write(f"{place.FILED}/{month}/made.parquet", flat.parquet(made))


def coded(values, codes):
    """A column of few values, by their codes."""
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(values)).cast(pa.string())


def table(columns, n):
    """An Arrow table of all columns, null where nothing is given."""
    types = {key: KINDS[kind] for key, kind in flat.COLUMNS.items()}
    return pa.table({k: columns[k].cast(t) if k in columns else pa.nulls(n, t) for k, t in types.items()})


def run(created, times, gpu=0, driver="580.159.04", revision=None, torch="2.11.0", timer="cupti", **more):
    """A results file's data: `times` are seconds by kernel name or by (kernel, workload)."""
    uuid = UUID.format(gpu)
    data = store.empty({"gpu": {"uuid": uuid, "name": "NVIDIA H200", "driver": driver, "cuda_driver": "13.0"},
                        "software": {"rooftest": "0.1.0", "torch": torch}}, None)  # fmt: skip
    data |= {"created": created if isinstance(created, str) else f"{created:%Y-%m-%dT%H:%M:%S}+00:00", "complete": True}
    data["benchmarks"] = [
        benchmark(key, time_s, uuid, driver, revision, timer, **more) for key, time_s in times.items()
    ]
    return data


def benchmark(key, time_s, uuid, driver, revision, timer, moved=2.0, joules=None, verdict="PASS", **more):
    """One record of a timing."""
    kernel, workload = key if isinstance(key, tuple) else (key, "square-4096")
    series = f"gemm/{kernel}/{workload}/bfloat16/nt/burst/cold/nograph/v1"
    named = {"op": "gemm", "kernel": kernel, "dtype": "bfloat16", "layout": "nt"}
    ids = {"series": series, "workload": workload, "shape": {"M": 64}, "regime": "burst", "l2": "cold",
           "graph": "nograph", "spec_version": 1, **named}  # fmt: skip
    timing = {"timer": timer, "median_s": time_s, "ci95_s": [time_s * 0.998, time_s * 1.002], "converged": True,
              "n_accepted": 100, "u_timer_s": 1e-9}  # fmt: skip
    bound = {"efficiency": 1e-4 / time_s, "limiter": "compute", "least_physical_s": 1e-4, "least_attainable_s": 1e-4}
    energy = {"valid": joules is not None, "reason": "" if joules else "not asked for", "gross_j": joules or 9e9}
    info = {"id": ids, "timing": timing, "work": {"flop": 1e9, "read_bytes": 1e6, "write_bytes": 1e6,
            "precision": "bfloat16"}, "bound": bound, "clocks": {}, "health": {"tags": ["unlocked"]}, "status": "ok",
            "reasons": [], "verdict": verdict, "moved": {"over_min": moved}, "energy": energy,
            "covariates": {"uuid": uuid, "driver": driver, "harness": "0.1.0"}}  # fmt: skip
    return {"kind": "benchmark", "id": f"gemm/{kernel}/{workload}/bfloat16-nt", "what": workload, **named,
            "series": series, "verdict": verdict, "extra_info": info, "stats": None,
            **({"revision": revision} if revision else {}), **more}  # fmt: skip


def save(root, data, as_name=None):
    """Write a run into a store's folder."""
    path = Path(root) / "runs" / (as_name or f"{data['created'][:19].replace(':', '')}-{abs(hash(str(data))):x}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))  # without the fsync of a real run: hundreds of them take seconds
    return path


def nights(root, times, start=START, **more):
    """Runs of one kernel, `acme`, one a night."""
    for n, time_s in enumerate(times):
        save(root, run(start + timedelta(days=n), {"acme": float(time_s)}, **more), f"n{start:%Y%m%d}-{n:04d}.json")
