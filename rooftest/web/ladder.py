"""Kernels side by side on the same work, in the order of their names: the ladder of GEMM, and anybody else's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooftest import tables
from rooftest.tables import kind
from rooftest.web.marks import duration, natural

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One kernel's bar: share of the attainable ceiling, and its cells."""

    kernel: str
    share: float | None
    cells: list[str]
    verdict: str


@dataclass(frozen=True)
class Ladder:
    """The kernels that were timed on one workload."""

    title: str
    steps: list[Step]


COLUMNS = ("time", "TFLOP/s", "of physical", "vs peer")


def ladders(timed: Sequence[Record]) -> list[Ladder]:
    """A ladder for each workload that two kernels share; the one that most kernels share first, then the most FLOP."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for r in timed:
        regime = (r["extra_info"].get("id") or {}).get("regime", "burst")
        found.setdefault((r["op"], r["what"], kind(r), regime), []).append(r)
    flop = lambda rs: (rs[0]["extra_info"].get("work") or {}).get("flop") or 0.0  # noqa: E731
    order = sorted((n for n in found if len(found[n]) > 1), key=lambda n: (-len(found[n]), -flop(found[n]), n))
    return [Ladder(_title(name), _steps(found[name])) for name in order]


def _title(name: tuple[str, ...]) -> str:
    *told, regime = name
    return " ".join(told) + ("" if regime == "burst" else f" {regime}")


def _steps(records: Sequence[Record]) -> list[Step]:
    made = [_step(r) for r in sorted(records, key=lambda r: natural(r["kernel"]))]
    known = {s.kernel for s in made}
    return [*made, *(p for name, p in _peers(records).items() if name not in known)]


def _step(record: Record) -> Step:
    bound = record["extra_info"].get("bound") or {}
    time, flops, _, _, _, _, peer, verdict = tables.timed(record)
    top = bound.get("physical_efficiency")
    cells = [time, flops, tables.NONE if top is None else tables.percent(top), peer]
    return Step(record["kernel"], bound.get("efficiency"), cells, verdict)


def _peers(records: Sequence[Record]) -> dict[str, Step]:
    """What the kernels were interleaved with, by the ratio of the fastest of them."""
    made = {}
    for r in sorted(records, key=lambda r: r["extra_info"]["timing"]["median_s"]):
        told, name = r["extra_info"], r.get("peer")
        ratio = ((told.get("ratios") or {}).get(f"{r['kernel']}/{name}") or {}).get("median")
        if name and ratio and name not in made:
            time_s, bound = told["timing"]["median_s"] / ratio, told.get("bound") or {}
            shares = [None if (e := bound.get(k)) is None else e * ratio for k in ("efficiency", "physical_efficiency")]
            flop = (told.get("work") or {}).get("flop")
            cells = [
                duration(time_s), f"{flop / time_s / 1e12:.1f}" if flop else tables.NONE,
                tables.NONE if shares[1] is None else tables.percent(shares[1]), tables.NONE,
            ]  # fmt: skip
            made[name] = Step(name, shares[0], cells, "peer")
    return made
