"""The roofline: FLOP/s over FLOP a byte, both logarithmic, a chart for each precision that kernels were timed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooftest import tables
from rooftest.web.marks import Mark, title
from rooftest.web.scale import Scale, around, si

Record = Mapping[str, Any]
FAR = 4.0
"""Up to how many times its intensity an arrow reaches where L2 held the rest: the whole of it (some 10^4 times) would
leave the kernels no room. It is dashed then, and the words beside a point say the ratio."""


@dataclass(frozen=True)
class Roof:
    """One ceiling: corners in percent, label, and where its numbers come from."""

    kind: str
    corners: list[tuple[float, float]]
    label: str
    provenance: str


@dataclass(frozen=True)
class Point:
    """One timing: where it stands by the fewest bytes, and where (`moved`) by those that really moved."""

    x: float
    y: float
    moved: float | None
    beyond: bool
    """Whether `moved` is only how far the chart goes."""
    mark: Mark
    verdict: str
    tip: list[str]


@dataclass(frozen=True)
class Chart:
    """All of a chart in percent of its width and height, from the top left."""

    precision: str
    xs: list[tuple[float, str]]
    ys: list[tuple[float, str]]
    roofs: list[Roof]
    points: list[Point]
    notes: list[str]


def charts(timed: Sequence[Record], ceilings: Mapping[str, Any], marks: Mapping[str, Mark]) -> list[Chart]:
    """A chart for each precision, the most used first; timings without FLOP stand in none of them."""
    mine = [r for r in timed if (r["extra_info"].get("work") or {}).get("flop")]
    found: dict[str, list[Record]] = {}
    for r in mine:
        found.setdefault(r["extra_info"]["work"]["precision"], []).append(r)
    return [_chart(p, rs, ceilings, marks) for p, rs in sorted(found.items(), key=lambda item: -len(item[1]))]


def implied(records: Sequence[Record]) -> dict[str, float]:
    """FLOP/s and bytes/s of the attainable ceiling that the efficiencies of records were taken from.

    For files that hold none: least time = FLOP / rate where computing bounds, and bytes / bandwidth where memory does;
    only the former is undone, as which bytes counted depends on the L2.
    """
    for r in records:
        told = r["extra_info"]
        bound = told.get("bound") or {}
        if bound.get("limiter") == "compute" and bound.get("least_attainable_s"):
            return {"flop_per_s": told["work"]["flop"] / bound["least_attainable_s"]}
    return {}


def _chart(precision: str, records: Sequence[Record], ceilings: Mapping[str, Any], marks: Mapping[str, Mark]) -> Chart:
    notes = []
    tops: list[tuple[str, float, float | None, str]] = []
    for kind in ("physical", "attainable"):
        told = ceilings.get(kind) or {}
        rate = (told.get("flop_per_s") or {}).get(precision)
        if rate:
            tops.append((kind, rate, told.get("bytes_per_s"), str(told.get("provenance") or "not recorded")))
        elif kind == "attainable" and (rate := implied(records).get("flop_per_s")):
            tops.append((kind, rate, None, "what the records were judged by; the file keeps no measurement of it"))
        else:
            notes.append(f"No {kind} ceiling for {precision} is recorded.")
    moved = [m for r in records if (m := _moved(r)) is not None]
    places = [(_intensity(r), _rate(r)) for r in records]
    ridges = [rate / bandwidth for _, rate, bandwidth, _ in tops if bandwidth]
    x = around([i for i, _ in places] + moved + ridges, log=True)
    y = around([r for _, r in places] + [rate for _, rate, _, _ in tops], log=True, margin=0.1)
    slope = next((b for _, _, b, _ in tops if b), None)
    return Chart(
        precision,
        [(x.at(t), _plain(t)) for t in x.ticks()],
        [(100 - y.at(t), si(t, "FLOP/s")) for t in y.ticks()],
        [_roof(top, slope, x, y) for top in tops],
        sorted((_point(r, x, y, marks) for r in records), key=lambda p: (p.x, -p.y)),
        notes,
    )


def _roof(top: tuple[str, float, float | None, str], slope: float | None, x: Scale, y: Scale) -> Roof:
    """Along the bandwidth up to the rate; without a bandwidth of its own it begins where it can't be above another."""
    kind, rate, bandwidth, provenance = top
    along = bandwidth or slope
    bend = rate / along if along else x.low
    label = f"{kind}: {si(rate, 'FLOP/s')}"
    corners = []
    if bandwidth:
        label += f", {si(bandwidth, 'B/s')}"
        start = max(x.low, y.low / bandwidth)
        if start < bend:
            corners.append((start, start * bandwidth))
    corners += [(max(bend, x.low), rate), (x.high, rate)]
    return Roof(kind, [(x.at(i), 100 - y.at(r)) for i, r in corners], label, provenance)


def _point(record: Record, x: Scale, y: Scale, marks: Mapping[str, Mark]) -> Point:
    told = record["extra_info"]
    moved = told.get("moved") or {}
    to, over = _moved(record), moved.get("over_min")
    time, flops, _, _, eta, watts, peer, verdict = tables.timed(record)
    top = (told.get("bound") or {}).get("physical_efficiency")
    ratio = "moved / min not measured" + (f": {moved['reason']}" if moved.get("reason") else "")
    if over is not None:
        ratio = f"moved / min {over:.2f}" + (" (L2 held the rest)" if over < 1 / FAR else "")
    tip = [
        title(record),
        f"{time}, {flops} TFLOP/s",
        f"{eta} of attainable" + ("" if top is None else f", {tables.percent(top)} of physical"),
        ratio,
        *([f"{watts} W"] if watts != tables.NONE else []),
        *([f"{peer} as fast as {record.get('peer')}"] if peer != tables.NONE else []),
        verdict + (f": {record['reason']}" if record.get("reason") and verdict != "PASS" else ""),
    ]
    return Point(
        x.at(_intensity(record)), 100 - y.at(_rate(record)), None if to is None else x.at(to),
        over is not None and over < 1 / FAR, marks[f"{record['op']}/{record['kernel']}"], verdict, tip,
    )  # fmt: skip


def _intensity(record: Record) -> float:
    work = record["extra_info"]["work"]
    return float(work["flop"] / (work["read_bytes"] + work["write_bytes"]))


def _moved(record: Record) -> float | None:
    """FLOP a byte that really moved, None where that is not known."""
    over = (record["extra_info"].get("moved") or {}).get("over_min")
    return None if over is None else _intensity(record) / max(over, 1 / FAR)


def _rate(record: Record) -> float:
    told = record["extra_info"]
    return float(told["work"]["flop"] / told["timing"]["median_s"])


def _plain(value: float) -> str:
    return f"{value:g}" if 1e-3 <= value < 1e5 else f"{value:.0e}"
