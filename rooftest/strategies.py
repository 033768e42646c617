"""Hypothesis strategies made from a specification and a kernel's row.

Sizes, layouts, configuration, fill kind and a seed are drawn, never elements: the device fills. Sizes are tile * q + r
with r in {-1, 0, 1} and independent per axis, so a shrunk case names the boundary it fails at. Everything is generated
inside the row's domain, never filtered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Reach:
    """The largest sizes drawn on a device: of an axis, and of the contraction in a long and narrow case."""

    axis: int
    long: int
    narrow: int


# The interpreter runs some 20,000 operations a second, a kernel some hundreds a tile and step of K, and a call shall
# take milliseconds; 33 is the least size that has three tiles of 16 and two of 32. A GPU is as quick at 512 as at 1.
# Split-K and reduced-precision reductions appear from a K of some thousands on.
REACH = {
    "interpreter": Reach(axis=33, long=70, narrow=5),
    "cpu": Reach(axis=160, long=2200, narrow=33),
    "cuda": Reach(axis=512, long=4500, narrow=160),
}


def sizes(
    spec: Spec, row: Row, layout: str, reach: Reach, *, batched: bool, low: int
) -> st.SearchStrategy[dict[str, int]]:
    """Sizes of all axes within the row's domain; `low` lifts the least size where a rung needs something to look at."""
    multiples = row.multiples(layout)

    @st.composite
    def build(draw: Callable[..., int]) -> dict[str, int]:
        is_long = draw(st.sampled_from((False, False, False, True)))
        drawn = {}
        for name, axis in spec.axes.items():
            if name in spec.optional_axes:
                if batched and draw(st.booleans()):
                    drawn[name] = draw(st.integers(max(low, row.at_least.get(name, 0)), 3))
                continue
            cap = (reach.long if name == spec.contraction else reach.narrow) if is_long else reach.axis
            cap = min(cap, axis.high, row.at_most.get(name, axis.high))
            floor = max(low, axis.low, row.at_least.get(name, axis.low))
            tile = draw(st.sampled_from((*TILES, *([row.tile[name]] if name in row.tile else []))))
            size = tile * draw(st.integers(0, max(cap // tile, 1))) + draw(st.sampled_from((0, 1, -1)))
            multiple = multiples.get(name, 1)
            size = min(max(size, floor), cap)
            drawn[name] = max(size // multiple * multiple, -(-floor // multiple) * multiple)
        return drawn

    return build()


def few(configs: tuple[str, ...], row: Row, dtype: str, layout: str) -> tuple[str, ...]:
    """Two of a kernel's configurations, others for each dtype and layout, the same for every rung.

    A kernel is compiled anew for each configuration, which takes as long as a hundred examples; the dtypes and
    layouts of a row together see all configurations.
    """
    place = row.dtypes.index(dtype) * len(row.layouts) + row.layouts.index(layout)
    start = 2 * place % len(configs)
    return (configs * 2)[start : start + min(2, len(configs))]


def cases(bench: Bench, rung: str, dtype: str, layout: str, *, every_config: bool = False) -> st.SearchStrategy[Case]:
    """Cases of one kernel for one rung, dtype and layout; `every_config` draws from all of its configurations."""
    from rooftest.rungs import RUNGS

    row, spec, signature = bench.row, bench.spec, bench.signature
    optional = takes(row, spec, signature)
    wants = RUNGS[rung]
    fills = tuple(f.name for f in FILLS.values() if wants.fill(f) and (f.precisions is None or dtype in f.precisions))
    reach = REACH[bench.device.split(":")[0]]
    batched = any(a in optional for a in spec.optional_axes)
    names = signature.configs
    # Made once: Hypothesis reads the source of a composite strategy each time one is made.
    all_sizes = sizes(spec, row, layout, reach, batched=batched, low=wants.low)
    configs = (None, *(names if every_config or not names else few(names, row, dtype, layout)))

    @st.composite
    def build(draw: Callable[..., Any]) -> Case:
        drawn = draw(all_sizes)
        given = tuple(n for n, t in spec.inputs.items() if t.optional and n in optional and draw(st.booleans()))
        gates = {t.unread_if[0]: n for n, t in spec.inputs.items() if t.unread_if}
        params = {
            name: draw(st.sampled_from(values))
            for name, values in spec.params.items()
            if name in optional and (name not in gates or gates[name] in given)
        }
        config = draw(st.sampled_from(configs))
        return Case(
            spec.op, row.name, dtype, layout, drawn, params, given,
            stride=draw(st.sampled_from(row.strides)), config=config,
            fill=draw(st.sampled_from(fills)), seed=draw(st.integers(0, 2**31 - 1)),
        )  # fmt: skip

    return build()
