"""A reference value that knows how far a correct kernel may stand from it.

A `Value` carries, for each element: `v`, the float64 value of the stated formula on the actual inputs; `b`, a bound on
the error that no kernel honouring the contract exceeds; `s2`, the variance of its private rounding error; and shared
terms, signed coefficients of an error that many elements have in common (a row's mean, a broadcast scale), which add up
linearly where such elements are summed, while private errors add in quadrature.

Variances are first order in the unit roundoff, bounds are intervals. All tensors are float64 on the inputs' device, and
nothing here waits for a GPU: whether a value is exact in every element is known from how it was made, not from its
data.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from rooftest.formats import F64, FP32, Format, finite, lowbit, number, pick, rne, ulp

U = 2.0**-24  # unit roundoff of the fp32 arithmetic inside a kernel
DIV = (
    2.0**-23
)  # relative error of an fp32 division; CUDA documents 2 ulp for the fast one, which is this bound twice over
TINY = 2.0**-126  # an fp32 result below this may be flushed to zero
SQRT3 = math.sqrt(3.0)  # a uniform error on [-h, h] has the deviation h / sqrt(3)

# The shared term of truncating accumulators: every element's error points towards zero, and its mean is at most this.
# Not random, so it has no deviation; it is a name, and passes through linear steps as a named constant does.
TRUNCATION = "truncation"

Fresh = tuple[bool, ...]
# Keyed by the id of the value that left it, or by the name of a constant: then the coefficient is d(value)/d(log
# constant), and it is no error. `Fresh` says for each dimension whether the term is drawn anew along it.
Shared = dict[int | str, tuple[Tensor, Fresh]]

_noise: Iterator[int] | None = None
_rounds = False  # under noise: fp32 operations round as hardware does
_bounds_only = False
_ids = itertools.count()


@contextlib.contextmanager
def noise(seed: int) -> Iterator[None]:
    """Inside, a reference returns the output of one random correct kernel in its `v`.

    Every place that rounds draws an error of its variance, as a hash of the value: equal values have equal errors. With
    an even seed, single fp32 operations round to nearest instead, as a kernel's do: a constant times short numbers may
    err with a mean (beta = 1.1845699 times the 2^10 mantissas of tf32: 0.29 of the largest error), which no hash has.
    """
    global _noise, _rounds
    _noise, _rounds = itertools.count(seed * 1000003 + 1), seed % 2 == 0
    try:
        yield
    finally:
        _noise, _rounds = None, False


@contextlib.contextmanager
def bounds_only(on: bool = True) -> Iterator[None]:
    """Inside, a reference carries bounds but no variances, in half the time: for data that no statistics apply to."""
    global _bounds_only  # noqa: PLW0603 - as above
    before, _bounds_only = _bounds_only, on
    try:
        yield
    finally:
        _bounds_only = before


def bounded() -> bool:
    """Whether variances are left out."""
    return _bounds_only


def new_term() -> int:
    """A key for a shared term that no value stands for."""
    return next(_ids)


def noisy() -> int | None:
    """Under `noise`, the number of this rounding site; else None."""
    return next(_noise) if _noise else None


def draw(site: int, v: Tensor, deviation: Tensor, drift: Tensor | None = None) -> Value:
    """Give v a uniform error of the given deviation, a hash of v and the site; half of the kernels truncate, too."""
    if drift is not None and site % 2:
        v = v - drift
    mix = -7046029254386353131
    h = ((v + 0.0).view(torch.int64) ^ (site * mix % 2**62)) * mix
    h = (h ^ (h >> 29)) * mix
    return Value(v + SQRT3 * deviation * ((h >> 12 & (2**40 - 1)).to(F64) / 2.0**39 - 1))


class Value:
    """float64 values with error bars, of any shape; without `b` they are exact.

    An element whose bound and variance are both infinite (or NaN) is free: the contract says nothing about it.
    """

    __slots__ = ("b", "exact", "id", "s2", "shared", "v")

    def __init__(
        self, v: Tensor, b: Tensor | None = None, s2: Tensor | None = None, shared: Shared | None = None
    ) -> None:
        self.v = v.to(F64)
        self.exact = b is None
        zero = number(0.0, self.v.device).expand(self.v.shape)
        # NaN and infinity themselves must come out exactly. A bound of NaN (0 times infinity) says nothing; it stays
        # NaN on its way, and the judge reads it as no bound.
        self.b = zero if b is None else pick(finite(self.v), b, 0.0)
        self.s2 = zero if s2 is None else s2.expand(self.v.shape)
        self.shared: Shared = shared or {}
        self.id = new_term()

    @property
    def errors(self) -> Shared:
        """The shared terms that are random errors (neither named constants nor truncation)."""
        return {k: t for k, t in self.shared.items() if isinstance(k, int)}

    @property
    def drift(self) -> Tensor | None:
        """Largest mean error by truncation, with the sign of what it takes away; None where nothing truncates."""
        return self.shared[TRUNCATION][0] if TRUNCATION in self.shared else None

    @property
    def probes(self) -> dict[str, Tensor]:
        """Derivatives by the logarithm of each named constant."""
        return {k: c for k, (c, _) in self.shared.items() if isinstance(k, str) and k != TRUNCATION}

    @property
    def var(self) -> Tensor:
        """Mean square error of each element, by all causes."""
        total = self.s2
        for key, (c, _) in self.shared.items():
            if isinstance(key, int) or key == TRUNCATION:
                total = total + c * c
        return total

    def map(self, move: Callable[[Tensor], Tensor], move_fresh: Callable[[Fresh], Fresh] = lambda t: t) -> Value:
        """A pure movement of data, applied to all parts; `move_fresh` does the same to a tuple over the dimensions."""
        shared: Shared = {k: (move(c.expand(self.v.shape)), move_fresh(t)) for k, (c, t) in self.shared.items()}
        return Value(move(self.v), None if self.exact else move(self.b), None if self.exact else move(self.s2), shared)

    @property
    def mT(self) -> Value:  # noqa: N802 - torch's name
        """The last two dimensions exchanged."""
        return self.map(lambda x: x.transpose(-1, -2), lambda t: (*t[:-2], t[-1], t[-2]))

    def __neg__(self) -> Value:
        shared: Shared = {k: (-c, t) for k, (c, t) in self.shared.items()}
        return Value(-self.v, None if self.exact else self.b, self.s2, shared)

    def __add__(self, other: Any) -> Value:
        a, o = _pair(self, other)
        return rounded(a.v + o.v, [(a, 1.0), (o, 1.0)], a.b + o.b)

    def __sub__(self, other: Any) -> Value:
        a, o = _pair(self, other)
        return rounded(a.v - o.v, [(a, 1.0), (o, -1.0)], a.b + o.b)

    def __mul__(self, other: Any) -> Value:
        a, o = _pair(self, other)
        b = a.v.abs() * o.b + a.b * o.v.abs() + a.b * o.b
        return rounded(a.v * o.v, [(a, o.v), (o, a.v)], b, a.s2 * o.s2)

    def __truediv__(self, other: Any) -> Value:
        a, o = _pair(self, other)
        q = a.v / o.v
        b = (a.b + q.abs() * o.b) / (o.v.abs() - o.b).clamp(min=0)
        return rounded(q, [(a, 1 / o.v), (o, -q / o.v)], b, local=(DIV * (q.abs() + b), DIV * q.abs() / SQRT3))

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> Value:
        return lift(other) - self

    def __rtruediv__(self, other: Any) -> Value:
        return lift(other) / self


def lift(x: Any) -> Value:
    """A Value as it is, a tensor as exact values, a number as a constant."""
    if isinstance(x, Value):
        return x
    return Value(x) if isinstance(x, Tensor) else const(x)


def _pair(a: Value, other: Any) -> tuple[Value, Value]:
    """Both operands as Values on one device."""
    o = const(other, device=a.v.device) if isinstance(other, int | float) else lift(other)
    if a.v.device != o.v.device:  # a constant made before any tensor was seen
        to = a.v.device if o.v.dim() == 0 else o.v.device
        a, o = a.map(lambda x: x.to(to)), o.map(lambda x: x.to(to))
    return a, o


def const(c: float, name: str | None = None, device: torch.device | str = "cpu") -> Value:
    """A constant as a kernel holds it, in fp32. A named one is probed: the judge tests the outputs along it."""
    held = float(torch.tensor(c, dtype=torch.float32))

    def made(x: float) -> Tensor:
        return number(x, torch.device(device))

    if _noise:
        return Value(made(held))
    shared: Shared = {name: (made(c), ())} if name else {}
    if held == c or not math.isfinite(c):
        return Value(made(c), shared=shared)
    off = U * abs(c)
    return Value(made(c), made(off), made(off * off / 3), shared)


def read(x: Value, f: Format) -> Value:
    """An input that the kernel itself converts to format f, by rounding or by truncation: up to one spacing off.

    Exact elements on the grid of f stay exact. The error of an element is shared by all outputs that it enters, which
    no variance here says: judge such cases by the hard bound only.
    """
    kept = ((x.b == 0) & (rne(x.v, f) == x.v)) | ~finite(x.v)
    off = pick(kept, 0.0, ulp(x.v.abs() + x.b, f))
    return Value(x.v, x.b + off, x.s2 + off * off / 3, x.shared)


Part = tuple[Value, Tensor | float]


def rounded(
    v: Tensor,
    parts: list[Part],
    b: Tensor,
    extra: Tensor | float = 0.0,
    local: tuple[Tensor, Tensor] | None = None,
) -> Value:
    """Value of v, computed from parts (x, dv/dx), with the propagated bound b, and rounded once.

    The rounding is to fp32 (none where exact parts give an fp32 number) or a function's own (bound, deviation) `local`;
    `extra` is a second-order variance. A part that is broadcast leaves a shared term behind.
    """
    size = v.abs()
    bound, deviation = local or (U * (size + b), (U / SQRT3) * size)
    if not local:
        inexact = ((b != 0) | (rne(v, FP32) != v)).to(F64)
        bound, deviation = bound * inexact, deviation * inexact
    if site := noisy():
        return Value(rne(v, FP32)) if _rounds and not local else draw(site, v, deviation)
    flush = pick(size < TINY, size, 0.0)
    if bounded():  # a free part leaves nothing to say
        return Value(v, b + bound + flush, sum((x.s2 for x, _ in parts if not x.exact), number(0.0, v.device)))
    s2 = (deviation + flush) ** 2 + extra
    shared: Shared = {}
    for x, slope in parts:
        sizes = (1,) * (v.dim() - x.v.dim()) + tuple(x.v.shape)
        fresh = tuple(not (own == 1 and out > 1) for own, out in zip(sizes, v.shape, strict=True))
        terms = dict(x.shared)
        if isinstance(slope, float) and not all(fresh):
            shared[new_term()] = _addend(x, v, deviation), fresh
        if all(fresh):
            s2 = s2 + slope * slope * x.s2
        elif not x.exact:
            terms[x.id] = (x.s2.sqrt(), (True,) * x.v.dim())
        for key, (c, t) in terms.items():
            padded = (False,) * (v.dim() - len(t)) + t
            merge(shared, key, (slope * c).expand(v.shape), tuple(p and q for p, q in zip(padded, fresh, strict=True)))
    return Value(v, b + bound + flush, s2, shared)


def _addend(x: Value, v: Tensor, deviation: Tensor) -> Tensor:
    """Shared term of adding one x to many: bits of x below the sum's grid are cut off alike, the same way each time.

    With the sum's sign: rounding to nearest is symmetric.
    """
    return torch.copysign(pick(lowbit(x.v) < ulp(v, FP32), deviation, 0.0), v)


def merge(shared: Shared, key: int | str, c: Tensor, fresh: Fresh) -> None:
    """Add a shared term; coefficients of the same error add up, and it is fresh only where both are."""
    if key in shared:
        old, old_fresh = shared[key]
        c, fresh = c + old, tuple(p and q for p, q in zip(fresh, old_fresh, strict=True))
    shared[key] = (c, fresh)
