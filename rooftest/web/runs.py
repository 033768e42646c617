"""The files that a page is made of, by GPU: numbers of two GPUs are never drawn into one chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rooftest import digest, store

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One results file, or one report: `digest` is what it says of each kernel."""

    name: str
    data: Mapping[str, Any]
    digest: Mapping[str, Any]

    @property
    def gpu(self) -> Mapping[str, Any]:
        """The GPU, as NVML names it; empty without one."""
        return self.data["machine_info"].get("gpu") or {}

    @property
    def complete(self) -> bool:
        """Whether every test ran, as far as the file says."""
        return self.data.get("complete") is not False


@dataclass
class Card:
    """The runs of one GPU (or of none), by time."""

    runs: list[Run] = field(default_factory=list)

    @property
    def gpu(self) -> Mapping[str, Any]:
        """The GPU as the last run saw it."""
        return self.runs[-1].gpu

    @property
    def name(self) -> str:
        """The GPU in words."""
        return str(self.gpu.get("name") or "no CUDA device")

    @property
    def uuid(self) -> str | None:
        """What its history goes by."""
        return self.gpu.get("uuid")

    def records(self, kind: str) -> list[Record]:
        """The records of a list of a results file; of two about the same test the later."""
        found: dict[tuple[Any, Any], Record] = {}
        for run in self.runs:
            for record in run.data.get(kind) or ():
                key = (record["id"], record.get("series"))
                found.pop(key, None)
                found[key] = record
        return list(found.values())

    @cached_property
    def timed(self) -> list[Record]:
        """Timings that hold a time, in the order of the runs."""
        every = self.records("benchmarks")
        return [r for r in every if ((r.get("extra_info") or {}).get("timing") or {}).get("median_s")]

    @cached_property
    def ceilings(self) -> dict[str, Any]:
        """Physical and attainable ceilings as recorded last; one that no file holds is missing."""
        told: dict[str, Any] = {}
        for run in self.runs:
            told |= {k: v for k, v in (run.data.get("ceilings") or {}).items() if v}
        return told


def read(paths: Iterable[Path]) -> list[Card]:
    """The GPUs of results files and reports, each with its runs by time.

    Raises UsageError for a file that is neither.
    """
    return by_card([_one(path) for path in paths])


def by_card(runs: Sequence[Run]) -> list[Card]:
    """Runs by the GPU that they are of."""
    cards: dict[Any, Card] = {}
    for run in sorted(runs, key=lambda r: str(r.data["created"])):
        key = run.gpu.get("uuid") or run.gpu.get("name")
        cards.setdefault(key, Card()).runs.append(run)
    return list(cards.values())


def _one(path: Path) -> Run:
    data = store.load(path) if path.suffix == ".json" else {}
    if isinstance(data, dict) and "report_version" in data:
        digest.check(data, str(path))
        return Run(path.name, data, data)
    data = store.read(path)
    return Run(path.name, data, digest.of_results(data))
