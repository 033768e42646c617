"""What is recorded of one timed workload, and how pytest-benchmark comes to record exactly our samples.

pytest-benchmark's own clock sees launches, not device time. So the samples are taken first and replayed: the fixture's
timer is a virtual clock that says how long each sample was, and its JSON, tables and comparisons work unchanged.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rooftest.nvml import COUNTERS
from rooftest.roofline import Ceiling, Verdict, Work, judge
from rooftest.store import finite


class VirtualClock:
    """A timer that has moved by exactly one sample between the two readings around each call of `tick`."""

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._next = 0
        self._now = 0.0

    def __call__(self) -> float:
        """Return the time. It starts again from zero after each reading: a difference to zero loses no bit."""
        now, self._now = self._now, 0.0
        return now

    def load(self, samples_s: Iterable[float]) -> None:
        """Take the samples to replay."""
        self._samples, self._next, self._now = list(samples_s), 0, 0.0

    def tick(self) -> None:
        """Let one sample pass; after the last one they begin anew (pytest-benchmark may call once more)."""
        self._now = self._samples[self._next % len(self._samples)]
        self._next += 1


CLOCK = VirtualClock()
"""For the marker: `pytest.mark.benchmark(timer=record.CLOCK)`."""


def replay(benchmark: Any, samples_s: list[float], extra_info: Mapping[str, Any]) -> None:
    """Let pytest-benchmark's fixture record the samples; its test carries the marker `benchmark(timer=CLOCK)`."""
    benchmark.extra_info.update(finite(dict(extra_info)))
    CLOCK.load(samples_s)
    benchmark.pedantic(CLOCK.tick, rounds=len(samples_s), iterations=1, warmup_rounds=0)


def series(
    op: str, kernel: str, workload: str, dtype: str, layout: str, plan: Mapping[str, Any], version: int,
    graph: str = "nograph",
) -> str:  # fmt: skip
    """The id of the history that a time measured by this plan belongs to."""
    return "/".join((op, kernel, workload, dtype, layout, plan["regime"], plan["l2"], graph, f"v{version}"))


@dataclass(frozen=True)
class Measurement:
    """One kernel on one workload: who, how, what came out, and the verdict."""

    op: str
    kernel: str
    workload: str
    dtype: str
    layout: str
    spec_version: int
    sizes: Mapping[str, int]
    work: Work
    result: Mapping[str, Any]
    """What rooftest.measure.measure returned."""
    physical: Ceiling | None = None
    attainable: Ceiling | None = None
    share: float | None = None
    """The efficiency that the kernel's row declares for this device."""
    name: str = "kernel"
    """The call's name within the result."""
    graph: str = "nograph"
    seed: int = 0
    tokens: int | None = None
    """How many tokens one call is about, where the op has tokens."""
    covariates: Mapping[str, Any] = field(default_factory=dict)
    """What cuts a series into segments and is not in its id: revision, configuration, harness ..."""

    @property
    def series(self) -> str:
        """The id of the history this number belongs to, readable and unhashed."""
        named = (self.op, self.kernel, self.workload, self.dtype, self.layout)
        return series(*named, self.result["plan"], self.spec_version, self.graph)

    @property
    def call(self) -> Mapping[str, Any]:
        """What was measured of the call; empty when nothing was."""
        return self.result["calls"].get(self.name, {})

    @property
    def samples_s(self) -> list[float]:
        """Device seconds of each accepted call."""
        return list(self.call.get("samples_s", ()))

    def judged(self) -> Verdict:
        """Judge the time against both roofs."""
        timing = self.call.get("timing", {})
        ci95 = timing.get("ci95_s")
        return judge(
            timing.get("median_s"),
            (ci95[0], ci95[1]) if ci95 else None,
            self.work,
            self.physical,
            self.attainable,
            self.share,
            self.result["reasons"] if self.result["status"] != "ok" else (),
            self.result["plan"]["l2"],
            timing.get("u_timer_s", 0.0),
        )

    def rates(self) -> dict[str, float] | None:
        """Operations and fewest bytes a second, by the specification's work, not by what the kernel's process says."""
        median_s = self.call.get("timing", {}).get("median_s")
        if not median_s:
            return None
        return {"flop_per_s": self.work.flop / median_s, "bytes_per_s": self.work.min_bytes / median_s}

    def energy(self) -> dict[str, Any] | None:
        """The energy of a call, and of a token by the specification's count of them."""
        told: dict[str, Any] | None = self.call.get("energy")
        if told is None:
            return None
        each = {"token_j": None, "u_token_j": None}
        if self.tokens and told.get("valid"):
            each = {f"{u}token_j": told[f"{u}gross_j"] / self.tokens for u in ("", "u_")}
        return {**told, "tokens": self.tokens, **each}

    def extra_info(self) -> dict[str, Any]:
        """Return everything but the samples, JSON-able: SI units, the unit in the name, null where nothing is known."""
        verdict, call, plan = self.judged(), self.call, self.result["plan"]
        health = self.result.get("health", {})
        before, after = health.get("before", {}), health.get("after", {})
        return finite({
            "id": {
                "series": self.series, "op": self.op, "kernel": self.kernel, "workload": self.workload,
                "shape": dict(self.sizes), "dtype": self.dtype, "layout": self.layout, "regime": plan["regime"],
                "l2": plan["l2"], "graph": self.graph, "spec_version": self.spec_version, "seed": self.seed,
            },
            "timing": call.get("timing"),
            "work": {
                "flop": self.work.flop, "read_bytes": self.work.read_bytes, "write_bytes": self.work.write_bytes,
                "precision": self.work.precision,
            },
            "rates": self.rates(),
            "bound": {**verdict.as_dict(), "declared_share": self.share},
            "clocks": {**call.get("clocks", {}), **{
                name: _grown(before, after, name) for name in COUNTERS
            }},
            "moved": call.get("moved"),
            "power_w": call.get("power_w"),
            "energy": self.energy(),
            "memory": self.result.get("memory"),
            "first": self.result.get("first"),
            "wall": self.result.get("wall"),
            "health": {
                "temp_start_c": before.get("temp_c"), "temp_end_c": after.get("temp_c"),
                "ecc_ue_delta": _grown(before, after, "ecc_ue"), "remap_pending": after.get("remap_pending"),
                "window_s": health.get("window_s"), "attempts": health.get("attempts"),
                **{key: self.result.get("validity", {}).get(key, []) for key in ("tags", "unknown")},
            },
            "ratios": self.result.get("ratios", {}),
            "covariates": {"uuid": self.result["identity"].get("uuid"), "driver": self.result["identity"].get("driver"),
                           **self.covariates},
            "status": self.result["status"],
            "reasons": list(self.result["reasons"]),
            "verdict": verdict.verdict,
            "reason": verdict.reason,
        })  # fmt: skip

    def stats(self) -> dict[str, Any] | None:
        """Return pytest-benchmark's statistics of the samples, in seconds of device time per call."""
        data = self.samples_s
        if not data:
            return None
        quartiles = statistics.quantiles(data, n=4, method="inclusive") if len(data) > 1 else [data[0]] * 3
        return {
            "min": min(data), "max": max(data), "mean": statistics.fmean(data), "median": statistics.median(data),
            "stddev": statistics.stdev(data) if len(data) > 1 else 0.0, "q1": quartiles[0], "q3": quartiles[2],
            "iqr": quartiles[2] - quartiles[0], "rounds": len(data), "iterations": 1, "total": sum(data), "data": data,
        }  # fmt: skip

    def entry(self) -> dict[str, Any]:
        """Return the entry of a results file's `benchmarks`, beside what the harness adds (id, status ...)."""
        return {"series": self.series, "extra_info": self.extra_info(), "stats": self.stats()}


def _grown(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> float | None:
    first, second = before.get(name), after.get(name)
    return None if first is None or second is None else second - first


def machine_info(identity: Mapping[str, Any] | None, software: Mapping[str, Any]) -> dict[str, Any]:
    """Return a results file's `machine_info`: the GPU (null without one) and the versions."""
    return finite({"gpu": dict(identity) if identity else None, "software": dict(software)})
