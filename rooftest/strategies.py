"""Hypothesis strategies made from a specification and a kernel's row.

Sizes, layouts, configuration, fill kind and a seed are drawn, never elements: the device fills. Most sizes are
tile * q + r with r in {-1, 0, 1}, independent per axis, so a shrunk case names the boundary it fails at. Everything is
generated inside the row's domain, never filtered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from rooftest.case import Case
from rooftest.domain import takes
from rooftest.fills import FILLS
from rooftest.rows import Row
from rooftest.spec import Spec

if TYPE_CHECKING:
    from rooftest.bench import Bench

TILES = (1, 8, 16, 32, 64, 128)

# Made once for each set of options: making a strategy takes longer than drawing from it, and a case makes twenty draws.
_among = lru_cache(maxsize=None)(st.sampled_from)


@dataclass(frozen=True)
class Reach:
    """The largest sizes drawn on a device.

    Of an axis; of the contraction and of the others in a long case; of the others in a wide one; elements of a tensor
    in a tall one (0: too slow for it).
    """

    axis: int
    long: int
    narrow: int
    wide: int = 0
    tall: int = 0


# The interpreter's time grows with tiles and steps of K, and a call shall take milliseconds: 33 is the least size that
# has three tiles of 16 and two of 32. A GPU is hardly slower at 512 than at 1.
# A long K is where splits of it and short accumulators show most; 2100 x 2100 are more tiles of 128 x 128 than a GPU
# has SMs, so that a persistent kernel goes round twice; 2^20 rows are more tiles of 16 than two of the three dimensions
# of CUDA's grid hold (65535).
REACH = {
    "interpreter": Reach(axis=33, long=132, narrow=5),
    "cpu": Reach(axis=160, long=2200, narrow=33),
    "cuda": Reach(axis=512, long=4500, narrow=160, wide=2100, tall=2**23),
}
# Kinds of sizes, as often as they stand here. ordinary: tile * q + r; aligned: multiples of 16 on every axis, densely
# stored, as models have them, so that a kernel's fast path is taken, for some steps along a contraction that often is a
# power of two; long: a contraction of thousands between narrow sides; wide: many tiles, a short contraction; tall: one
# axis as long as the contract lets it be, all others short; edge: 0, 1 or 2 on some axes. Empty results test little:
# few are drawn.
KINDS = ("ordinary", "ordinary", "ordinary", "aligned", "aligned", "long", "edge", "wide", "tall")
SIDE = 8  # the other axes of a tall case
# None: this axis is ordinary. A sum of nothing is a result like any other, if the axes that are not summed are not 0.
EDGES, SUMMED_EDGES = (0, 1, 2, None, None, None), (0, 0, 1, 2, None)


def sizes(
    spec: Spec, row: Row, layout: str, reach: Reach, kind: str, *, batched: bool, low: int
) -> st.SearchStrategy[dict[str, int]]:
    """Sizes of all axes within the row's domain; `low` lifts the least size where a rung needs something to look at."""
    multiples = row.multiples(layout)

    def one(draw: Callable[..., Any], name: str, cap: int) -> int:
        edge = draw(_among(SUMMED_EDGES if name == spec.contraction else EDGES)) if kind == "edge" else None
        if edge is not None:
            return int(edge)
        whole = 16 if kind == "aligned" else 1
        tiles = tuple(t for t in (*TILES, row.tile.get(name, 1)) if t <= cap and t % whole == 0)
        tile = draw(_among(tiles or (1,)))
        count = draw(_among(range(1, cap // tile + 1)))
        step = draw(_among((0, 1, -1)))
        return int(tile * count + (0 if kind == "aligned" else step))

    @st.composite
    def build(draw: Callable[..., Any]) -> dict[str, int]:
        drawn: dict[str, int] = {}
        outer = tuple(n for n in spec.axes if n not in spec.optional_axes and n != spec.contraction)
        tallest = draw(_among(outer)) if kind == "tall" else None
        side = max(SIDE, *multiples.values(), *row.at_least.values()) if multiples or row.at_least else SIDE
        for name, axis in spec.axes.items():
            least = max(low, axis.low, row.at_least.get(name, axis.low))
            if name in spec.optional_axes:
                absent = () if name in row.at_least else (None, None, None)
                counts = (1,) if kind in ("wide", "tall") else (2, 1, 5)
                batches = (*absent, *counts, *((0,) if kind == "edge" else ()))
                count = draw(_among(batches)) if batched else None
                if count is not None:
                    drawn[name] = max(count, least)
                continue
            summed = name == spec.contraction
            by_kind = {
                "long": reach.long if summed else reach.narrow,
                "wide": reach.narrow if summed else reach.wide,
                "aligned": 2 * reach.axis if summed else reach.axis,
            }
            widest = by_kind.get(kind) or reach.axis
            multiple = multiples.get(name, 1)
            # Two tiles and a remainder of what the row names, two multiples: else no loop runs twice.
            widest = max(widest, 2 * row.tile.get(name, 0) + 1, 2 * multiple)
            if tallest is not None:
                widest = reach.tall // side if name == tallest else side
            cap = max(min(widest, axis.high, row.at_most.get(name, axis.high)), least)
            size = min(max(one(draw, name, max(cap, 1)), least), cap)
            size = max(size, multiple) if size and multiple <= cap else size
            drawn[name] = max(size // multiple * multiple, -(-least // multiple) * multiple)
        return drawn

    return build()


def few(configs: tuple[str, ...], row: Row, dtype: str, layout: str) -> tuple[str, ...]:
    """Two of a kernel's configurations, others for each dtype and layout, the same for every rung.

    A kernel is compiled anew for each configuration, which takes longer than many examples; the dtypes and layouts of
    a row together see all configurations.
    """
    place = row.dtypes.index(dtype) * len(row.layouts) + row.layouts.index(layout)
    start = 2 * place % len(configs)
    return (configs * 2)[start : start + min(2, len(configs))]


def cases(bench: Bench, rung: str, dtype: str, layout: str) -> st.SearchStrategy[Case]:
    """Cases of one kernel for one rung, dtype and layout."""
    from rooftest.rungs import RUNGS

    row, spec, signature = bench.row, bench.spec, bench.signature
    optional = takes(row, spec, signature)
    wants = RUNGS[rung]
    fills = tuple(f.name for f in FILLS.values() if wants.fill(f) and (f.precisions is None or dtype in f.precisions))
    reach = REACH[bench.device.split(":")[0]]
    batched = any(a in optional for a in spec.optional_axes)
    names = signature.configs
    kinds = tuple(k for k in KINDS if getattr(reach, k, 1))
    # Made once: Hypothesis reads the source of a composite strategy each time one is made.
    by_kind = {k: sizes(spec, row, layout, reach, k, batched=batched, low=wants.low) for k in set(kinds)}
    configs = (None, *(few(names, row, dtype, layout) if names else ()))

    @st.composite
    def build(draw: Callable[..., Any]) -> Case:
        # Every kind makes the same draws, used or not: Hypothesis takes the case with the fewest draws for the
        # simplest.
        kind = draw(_among(kinds))
        drawn = draw(by_kind[kind])
        given = tuple(n for n, t in spec.inputs.items() if t.optional and n in optional and draw(st.booleans()))
        params = {n: draw(_among(values)) for n, values in spec.params.items() if n in optional}
        gates = {t.unread_if[0]: n for n, t in spec.inputs.items() if t.unread_if}
        params = {n: value for n, value in params.items() if n not in gates or gates[n] in given}
        stride, config = draw(_among(row.strides)), draw(_among(configs))
        as_models_call = draw(st.booleans())
        if kind == "aligned":
            stride = "dense" if "dense" in row.strides else stride
            given, params = ((), {}) if as_models_call else (given, params)
        return Case(
            spec.op, row.name, dtype, layout, drawn, params, given,
            stride=stride, config=config,
            fill=draw(_among(fills)), seed=draw(st.integers(0, 2**31 - 1)),
        )  # fmt: skip

    return build()
