"""Hypothesis strategies made from a specification and a kernel's row.

Sizes, layouts, strides of each tensor, scalars, configuration, fill kind and a seed are drawn, never elements: the
device fills. Most sizes are tile * q + r with r in {-1, 0, 1}, independent per axis, so a shrunk case names the
boundary it fails at. Everything is generated inside the row's domain, never filtered.

A case is one string of bytes, each of which decides one thing. Hypothesis shrinks every byte by itself, towards 0, the
first and simplest choice. Choices drawn one by one look alike to it, and it repeats a case with one copied over
another: 50 examples of `step4_dot` had 14 different K, now 25, and took 3.4 ms of CPU time each to draw, now 1.6.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from hypothesis import strategies as st

from rooftest.case import Case, strided
from rooftest.domain import takes
from rooftest.fills import FILLS, kinds
from rooftest.problem import means
from rooftest.rows import Row
from rooftest.spec import Spec

if TYPE_CHECKING:
    from rooftest.bench import Bench

TILES = (1, 8, 16, 32, 64, 128)

T = TypeVar("T")


class Dice:
    """Choices read from a string of bytes, each from bytes of its own: one for an option, four for a number."""

    def __init__(self, thrown: bytes) -> None:
        self._left: Iterator[int] = iter(thrown)

    def among(self, options: Sequence[T]) -> T:
        """One of at most 40 options, so that none is likelier than another by more than one in six."""
        return options[next(self._left) % len(options)]

    def below(self, end: int) -> int:
        """A number from 0, the simplest, to end - 1, with end up to 2^32."""
        return int.from_bytes(bytes(next(self._left) for _ in range(4))) % end


@dataclass(frozen=True)
class Reach:
    """The largest sizes drawn on a device.

    Of an axis; of what is summed over and of the others in a long case; matrices in a batch of many; problems beside
    each other, of all axes that count them; of the others in a wide case; elements of a tensor in a tall one (0: too
    slow for it).
    """

    axis: int
    long: int
    narrow: int
    many: int
    beside: int
    wide: int = 0
    tall: int = 0


# The interpreter's time grows with tiles and steps of K, and a call shall take milliseconds: 33 is the least size that
# has three tiles of 16 and two of 32. A GPU is hardly slower at 512 than at 1.
# A long K is where splits of it and short accumulators show most; 2100 x 2100 are more tiles of 128 x 128 than a GPU
# has SMs, so that a persistent kernel goes round twice; 2^20 rows are more tiles of 16 than two of the three dimensions
# of CUDA's grid hold (65535).
REACH = {
    "interpreter": Reach(axis=33, long=132, narrow=5, many=34, beside=6),
    "cpu": Reach(axis=160, long=4500, narrow=33, many=300, beside=128, wide=600),
    "cuda": Reach(axis=512, long=4500, narrow=160, many=300, beside=128, wide=2100, tall=2**23),
}
# Kinds of sizes, as often as they stand here. ordinary: tile * q + r; aligned: multiples of 16 on every axis, densely
# stored, as models have them, so that a kernel's fast path is taken, for some steps along a contraction that often is a
# power of two; long: a contraction of thousands between narrow sides; wide: many tiles, a short contraction; tall: one
# axis as long as the contract lets it be, all others short; edge: 0, 1 or 2 on some axes; many: a large batch of small
# matrices. Empty results test little: few are drawn.
KINDS = ("ordinary", "ordinary", "ordinary", "aligned", "aligned", "long", "edge", "wide", "tall", "many")
BIG = ("wide", "tall")
SIDE = 8  # the other axes of a tall case, and those of many matrices
BATCH = 9  # the most matrices in a batch, but where there are many
# None: this axis is ordinary. A sum of nothing is a result like any other, if the axes that are not summed are not 0.
EDGES, SUMMED_EDGES = (0, 1, 2, None, None, None), (0, 0, 1, 2, None)


def sizes(
    dice: Dice, spec: Spec, row: Row, layout: str, reach: Reach, kind: str, *, batched: bool, low: int
) -> dict[str, int]:
    """Sizes of all axes within the row's domain; `low` lifts the least size where a rung needs something to look at.

    Every kind reads the same bytes, used or not, so that each byte keeps its meaning while a case shrinks.
    """
    multiples = row.multiples(layout)
    drawn: dict[str, int] = {}
    beside = {n for n, axis in spec.axes.items() if axis.few or axis.short}
    inner = {spec.contraction, *spec.summed}
    outer = tuple(
        n for n in spec.axes if n not in {spec.contraction, *beside} and (batched or n not in spec.optional_axes)
    )
    tallest = dice.among(outer[::-1])
    tallest = tallest if kind == "tall" else ""
    side = max(SIDE, *multiples.values(), *row.at_least.values()) if multiples or row.at_least else SIDE
    matrices = problems = 1
    for name, axis in spec.axes.items():
        roll = Roll.of(dice, kind, summed=name in inner)
        least = max(low, axis.low, row.at_least.get(name, axis.low))
        most = min(axis.high, row.at_most.get(name, axis.high))
        if name in beside:
            # One of them, or one head, where the others are large.
            few = axis.short or min(axis.few, reach.beside // max(problems, 1))
            count = roll.edge if roll.edge is not None else 1 if kind in BIG else 1 + roll.share(few)
            drawn[name] = max(min(count, most), least)
            problems *= drawn[name] if axis.few else 1
            continue
        if name in spec.optional_axes:
            if not batched or (roll.absent and name != tallest and kind != "many" and name not in row.at_least):
                continue
            if name == tallest or kind == "many":
                most = min(most, reach.tall // side**2 if name == tallest else reach.many)
                count = roll.size(TILES, most)
            else:
                count = 1 if kind in BIG else roll.share(BATCH + 1)
                count = max(count, int(kind != "edge"))
            drawn[name] = max(min(count, most), least)
            matrices = max(matrices, drawn[name])
            continue
        summed = name in inner
        by_kind = {
            "long": reach.long if summed else reach.narrow,
            "wide": reach.narrow if summed else reach.wide,
            "aligned": 2 * reach.axis if summed else reach.axis,
        }
        widest, tile = by_kind.get(kind) or reach.axis, 2 * row.tile.get(name, 0)
        if matrices > 1 and not summed:
            # The work of a batch is about that of one matrix: 4 of them have half its sides, and still two tiles.
            widest, tile = ((n + 1) // math.isqrt(matrices) for n in (widest, tile))
        multiple = multiples.get(name, 1)
        # Two tiles and a remainder of what the row names, two multiples: else no loop runs twice.
        widest = max(widest, tile + 1, 2 * multiple)
        if tallest or kind == "many":
            widest = reach.tall // side if name == tallest else side
        cap = max(min(widest, most), least)
        size = min(max(roll.size((*TILES, row.tile.get(name, 1)), max(cap, 1)), least), cap)
        size = max(size, multiple) if size and multiple <= cap else size
        drawn[name] = max(size // multiple * multiple, -(-least // multiple) * multiple)
    return drawn


@dataclass(frozen=True)
class Roll:
    """What is thrown for one axis, before it is known how large it may be."""

    edge: int | None
    absent: bool
    whole: int
    tile: int  # which of those that fit, and
    count: int  # how many of it, less one: both as shares of what there is, in 2^-32
    step: int

    @classmethod
    def of(cls, dice: Dice, kind: str, *, summed: bool) -> Roll:
        """Throw for an axis of a case of this kind."""
        edge = dice.among(SUMMED_EDGES if summed else EDGES)
        aligned = kind == "aligned"
        absent, tile, count, step = (
            dice.among((True, False)),
            dice.below(2**32),
            dice.below(2**32),
            dice.among((0, 1, -1)),
        )
        # A row of tiles too many for a group, a wave or a grid shows at the largest sizes only: one wide axis in four.
        count = 2**32 - 1 if kind == "wide" and count >> 30 == 3 else count
        return cls(edge if kind == "edge" else None, absent, 16 if aligned else 1, tile, count, 0 if aligned else step)

    def size(self, tiles: Iterable[int], cap: int) -> int:
        """An edge, or tile * q + r up to cap (or one more)."""
        if self.edge is not None:
            return self.edge
        fit = [t for t in tiles if t <= cap and t % self.whole == 0] or [1]
        tile = fit[self.tile * len(fit) >> 32]
        return tile * (1 + self.share(cap // tile)) + self.step

    def share(self, end: int) -> int:
        """A number from 0 to end - 1. It falls with each byte thrown; a remainder may rise, where shrinking ends."""
        return self.count * end >> 32


def number(how: str, bits: int, largest: int) -> float:
    """A scalar of either sign: 2^e ("power") or a float32 number from 2^e up ("any"), |e| <= largest; 1 for no bits."""
    sign, bits = 1 - 2 * (bits & 1), bits >> 1
    exponent, bits = bits % (2 * largest + 1), bits // (2 * largest + 1)
    exponent = (exponent + 1) // 2 * (1 if exponent % 2 else -1)  # 0, 1, -1, 2, -2: the least is the simplest
    return sign * (1 + (bits % 2**23) / 2**23 * (how == "any")) * 2.0**exponent


# How a scalar that may be any number is drawn: half of the time one of those that the op lists, half of these 0 or 1,
# which kernels have branches for. Two scalars of the list met their branch together once in 400 examples, now in 130.
HOW = ("listed", "neutral", "power", "any")
NEUTRAL = (1.0, 0.0)
HALF = (False, True)
# How an aligned case is called: as models call it, dense; dense with all that an op has; with any strides.
CALLS = ("plain", "dense", "any")


def spread(spec: Spec, row: Row) -> dict[str, tuple[str, ...]]:
    """The stride kinds of each tensor where each has its own, as often as they stand there.

    What repeats is drawn half as often: its errors repeat too, so that no statistics hold.
    """
    of = {name: tuple(k for k in row.strides if k in means(spec, name)) for name in spec.tensors}
    twice = {name: tuple(k for k in kinds if k != "broadcast") for name, kinds in of.items()}
    return {name: (*twice[name], *kinds) or row.strides for name, kinds in of.items()}


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
    fills = tuple(name for name in kinds(dtype) if wants.fill(FILLS[name]) and name not in spec.unfit)
    reach = REACH[bench.device.split(":")[0]]
    batched = any(a in optional for a in spec.optional_axes)
    names = signature.configs
    of_sizes = tuple(k for k in KINDS if getattr(reach, k, 1) and (batched or k != "many"))
    configs = (None, *(few(names, row, dtype, layout) if names else ()))
    own, spare = spread(spec, row), spec.optional

    def made(thrown: bytes) -> Case:
        dice = Dice(thrown)
        kind = dice.among(of_sizes)
        drawn = sizes(dice, spec, row, layout, reach, kind, batched=batched, low=wants.low)
        given = tuple(n for n, has in ((n, dice.among(HALF)) for n in spare) if has and n in optional)
        params = {}
        for name, values in spec.params.items():
            value, how, bits = dice.among(values), dice.among(HOW), dice.below(2**30)
            if name in spec.free and how == "neutral":
                value = NEUTRAL[bits % 2]
            elif name in spec.free and how != "listed":
                value = number(how, bits, spec.free[name])
            if name in optional:
                params[name] = value
        gates = {t.unread_if[0]: n for n, t in spec.inputs.items() if t.unread_if}
        params = {n: value for n, value in params.items() if n not in gates or gates[n] in given}
        apart, stride = dice.among(HALF), dice.among(row.strides)
        each = {name: dice.among(its) for name, its in own.items()}
        stride = strided({n: k for n, k in each.items() if n in given or n not in spare}) if apart else stride
        config, call = dice.among(configs), dice.among(CALLS)
        if kind == "aligned" and call != "any":
            stride = "dense" if "dense" in row.strides else stride
            given, params = ((), {}) if call == "plain" else (given, params)
        return Case(
            spec.op, row.name, dtype, layout, drawn, params, given,
            stride=stride, config=config, fill=dice.among(fills), seed=dice.below(2**31),
        )  # fmt: skip

    return _thrown(spec).map(made)


def _thrown(spec: Spec) -> st.SearchStrategy[bytes]:
    """As many bytes as a case of the op reads: of each axis, input, parameter and tensor, and of the whole."""
    count = 2 + 11 * len(spec.axes) + len(spec.optional) + 6 * len(spec.params) + 2 + len(spec.tensors) + 2 + 5
    return st.binary(min_size=count, max_size=count)
