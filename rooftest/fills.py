"""Kinds of input data, from simple to nasty, as a table. The device draws the elements from a seeded generator.

The order is the order in which a failing case shrinks. Rung flags say what a kind is good for: `exact`, its sums must
come out bit for bit; `random_sign`, each product has an independent fair sign, so that statistical readings hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rooftest.errors import UsageError
from rooftest.formats import F64, PRECISIONS, TF32, Precision, rne


@dataclass(frozen=True)
class Draw:
    """What a kind may know: the shape, the length of the sum that it enters, and in how many bits that is exact."""

    shape: tuple[int, ...]
    generator: torch.Generator
    precision: Precision
    depth: int
    bits: int

    def normal(self) -> Tensor:
        """Standard normal, float32."""
        return torch.randn(self.shape, generator=self.generator, device=self.generator.device)

    def uniform(self) -> Tensor:
        """Uniform on [0, 1), float32."""
        return torch.rand(self.shape, generator=self.generator, device=self.generator.device)

    def integers(self, low: int, high: int, shape: Sequence[int] | None = None) -> Tensor:
        """Uniform integers from low to high, both included, float32."""
        shape = self.shape if shape is None else shape
        made = torch.randint(low, high + 1, tuple(shape), generator=self.generator, device=self.generator.device)
        return made.float()


def _signs(x: Tensor) -> Tensor:
    """1 or -1, never 0, by the sign bit of x."""
    return torch.where(x < 0, -1.0, 1.0)


def _ones(d: Draw) -> Tensor:
    return torch.ones(d.shape, device=d.generator.device)


def _onehot(d: Draw) -> Tensor:
    """One power of two in each row, so that a product picks and scales rows of the other operand."""
    x = torch.zeros(d.shape, device=d.generator.device)
    if x.numel() == 0:
        return x
    where = d.integers(0, d.shape[-1] - 1, (*d.shape[:-1], 1)).long()
    size = _signs(d.normal()[..., :1]) * 2.0 ** d.integers(-3, 3, (*d.shape[:-1], 1))
    return x.scatter_(-1, where, size)


def _permutation(d: Draw) -> Tensor:
    """A single 1 in each row, spread over all columns: a permutation matrix where it is square."""
    x = torch.zeros(d.shape, device=d.generator.device)
    if x.numel() == 0 or x.dim() < 2:
        return x
    rows, columns = d.shape[-2:]
    keys = torch.rand((*d.shape[:-2], max(rows, columns)), generator=d.generator, device=d.generator.device)
    return x.scatter_(-1, keys.argsort(-1)[..., :rows, None] % columns, 1.0)


def _integers(d: Draw) -> Tensor:
    """Dense integers up to m in magnitude with depth m^2 <= 2^(bits - 1); the other half of the range is for addends.

    m stays among the integers that the input format holds, and where the output format is narrow (fp16), small enough
    for a typical sum m^2 / 3 sqrt(depth) to stay under a quarter of its largest number. For depths up to 2^14 this
    leaves m above 16, so that odd integers occur which an 8-bit format does not hold.
    """
    depth = max(d.depth, 1)
    room = min(2.0 ** (d.bits - 1) / depth, 0.75 * d.precision.output.max / math.sqrt(depth))
    m = max(1, min(2**d.precision.integer_bits, math.isqrt(int(room))))
    return d.integers(-m, m)


def _powers(d: Draw) -> Tensor:
    """Signed powers of two from 2^-r to 2^r: sums span 4 r + log2(depth) bits, kept under bits - 1."""
    r = max(0, min(6, (d.bits - 1 - math.ceil(math.log2(max(d.depth, 1)))) // 4))
    return _signs(d.normal()) * 2.0 ** d.integers(-r, r)


def _heavy(d: Draw) -> Tensor:
    """A log-normal scale makes a few elements dominate, as activations have it."""
    return d.normal() * torch.exp(1.5 * d.normal())


def _constant(d: Draw) -> Tensor:
    """One value everywhere: equal roundings, which add up."""
    one = torch.randn(1, generator=d.generator, device=d.generator.device)
    return one.expand(d.shape).clone()


def _wide(d: Draw) -> Tensor:
    """Exponents over the middle half of the input format's range, so that products stay inside it."""
    f = d.precision.input
    exponents = d.integers(f.emin // 4, math.frexp(f.max)[1] // 4)
    return _signs(d.normal()) * (1 + d.uniform()) * 2.0**exponents


def _far(d: Draw, side: int) -> Tensor:
    """Exponents near an end of the input format's range: side 1 the largest, -1 the smallest.

    Between 0.53 and 0.82 of the largest exponent (2^68 to 2^104 in an 8-bit exponent, 2^9 to 2^13 in float16), so that
    products of both sides are of moderate size, and one side times a scalar up to 2^20 does not overflow, nor leave the
    normal numbers.
    """
    top = math.frexp(d.precision.input.max)[1]
    exponents = side * d.integers(math.ceil(0.53 * top), int(0.82 * top))
    return _signs(d.normal()) * (1 + d.uniform()) * 2.0**exponents


def _specials(d: Draw) -> Tensor:
    """Normal data with many zeros; in every other tensor NaN, infinity and minus infinity at a random place each.

    A third of it and the first row are zero, and so is the right half, or all, or neither. Zero times any of the three
    is NaN, so a kernel must not skip zeros, nor whole tiles of them.
    """
    x = torch.where(d.uniform() < 1 / 3, 0.0, d.normal())
    if x.dim() > 1 and x.shape[-2]:
        x[..., 0, :] = 0.0
    if x.numel():
        halves = torch.arange(x.shape[-1], device=x.device) * 2 // x.shape[-1]
        x = torch.where(halves < d.integers(0, 2, (1,)), x, 0.0)
        where = d.integers(0, x.numel() - 1, (3,)).long()
        # On the device from the start: a copy would wait for it. NaN, inf, -inf as 0/0, 1/0, -1/0.
        kinds = torch.arange(3, device=x.device).remainder(3).float()
        special = torch.where(kinds == 0, math.nan, torch.where(kinds == 1, math.inf, -math.inf))
        x.view(-1)[where] = torch.where(d.integers(0, 1, (1,)) == 1, special, x.view(-1)[where])
    return x


@dataclass(frozen=True)
class Fill:
    """A kind of input data; `precisions` are those it exists for (None: all).

    `beside`: the kind of the other factors of a product; what is added to it is normal then (None: the same kind).
    """

    name: str
    draw: Callable[[Draw], Tensor]
    exact: bool = False
    random_sign: bool = False
    specials: bool = False
    precisions: tuple[str, ...] | None = None
    beside: str | None = None


FILLS = {
    f.name: f
    for f in (
        Fill("ones", _ones, exact=True),
        Fill("onehot", _onehot, exact=True, beside="normal"),
        Fill("permutation", _permutation, exact=True, beside="normal"),
        Fill("integers", _integers, exact=True),
        Fill("powers", _powers, exact=True),
        Fill("normal", Draw.normal, random_sign=True),
        Fill("small", lambda d: d.normal() * 1e-3, random_sign=True),
        Fill("big", lambda d: d.normal() * 30, random_sign=True),
        Fill("positive", Draw.uniform),
        Fill("offset", lambda d: 1 + 0.1 * d.normal()),
        Fill("constant", _constant),
        Fill("heavy", _heavy, random_sign=True),
        Fill("wide", _wide, random_sign=True),
        Fill("huge", lambda d: _far(d, 1), random_sign=True, beside="minute"),
        Fill("minute", lambda d: _far(d, -1), random_sign=True, beside="huge"),
        Fill("specials", _specials, specials=True),
        # float32 data under the tf32 precision, which a kernel rounds or truncates (`engines.Contract.reads`): the
        # error of an input is shared by all outputs that it enters, so only the hard bound holds.
        Fill("offgrid", Draw.normal, precisions=("tf32",)),
    )
}


def kinds(precision: str) -> list[str]:
    """Names of the kinds that exist for a precision, from simple to nasty."""
    return [f.name for f in FILLS.values() if f.precisions is None or precision in f.precisions]


def fill(
    kind: str,
    shape: Sequence[int],
    precision: str,
    generator: torch.Generator,
    depth: int = 1,
    bits: int = 24,
) -> Tensor:
    """A tensor of the precision's storage dtype on the generator's device.

    `depth` is the length of the sum that the tensor enters, `bits` the width in which the engine sums exactly. One-hot
    and permutation data are for one operand of a product only: of two, most products would be zero.

    Raises UsageError for an unknown kind or precision, or a kind that does not exist for the precision.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"no precision {precision!r}; there are {', '.join(PRECISIONS)}")
    if kind not in kinds(precision):
        raise UsageError(f"no fill {kind!r} for {precision}; there are {', '.join(kinds(precision))}")
    row = PRECISIONS[precision]
    x = FILLS[kind].draw(Draw(tuple(shape), generator, row, depth, bits))
    if row.input is TF32 and kind != "offgrid":
        x = rne(x.to(F64), TF32)
    return x.to(row.storage)
