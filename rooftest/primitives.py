"""The operations in which references are written, on values that carry their error bars (`rooftest.errorbar`)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from rooftest.engines import CHAIN, Accumulator, Contract, Sums
from rooftest.errorbar import (
    SQRT3,
    TINY,
    TRUNCATION,
    Fresh,
    Shared,
    U,
    Value,
    bounded,
    const,
    draw,
    lift,
    merge,
    new_term,
    noisy,
    read,
    rounded,
)
from rooftest.formats import F64, FP32, Format, finite, lowbit, number, pick, rne, ulp
from rooftest.units import UNITS

# Errors of the transcendental units, as documented; `rooftest.units` knows the measured ones of a device.
EXP, LOG, RSQRT, TANH = (UNITS[name].error for name in ("exp", "log", "rsqrt", "tanh"))

# A sum of k equal terms rounds by the same amount at each step within one binade, so its errors agree in sign there.
# With the final sum v = m 2^e (m in [1, 2)), a share 1 - 1/m of the steps lies in the top binade, where a step errs
# uniformly up to u v / m, then 1/(2m) of them at u v / (2m), and so on: the root of the summed squares is at most 0.26
# (at m = 1 and m = 2), over sqrt(3) for the uniform error of each binade.
ALIKE = 0.26 / SQRT3


@dataclass(frozen=True)
class Accumulated:
    """Error of an accumulation: bound, variance and mean truncation, and the elements where it rounds at all."""

    bound: Tensor
    variance: Tensor
    drift: Tensor | None
    rounds: Tensor


def _accumulate(rows: Accumulator, sums: Sums, grid: Tensor | None) -> Accumulated:
    """What the rows may err by.

    `grid`: a power of two of which all products are multiples (None, or 0 for an element: inexact inputs). A sum is
    exact where sum |p| fits the bits of every row, or where there is one product only and it is an fp32 number.
    """
    bound = rows[0].bound(sums)
    for row in rows[1:]:
        bound = torch.maximum(bound, row.bound(sums))
    bits = min(row.bits for row in rows)
    if grid is None:
        rounds = torch.ones_like(sums.v, dtype=torch.bool)
    elif bits <= 0:
        rounds = sums.g > 0
    else:
        fits = (sums.g <= 2.0**bits * grid) & (grid >= TINY)
        single = (sums.g * sums.g == sums.s2) & (rne(sums.v, FP32) == sums.v) & (sums.g >= TINY) & (grid > 0)
        rounds = ~(fits | single)
    bound = pick(rounds, bound * sums.g, 0.0)
    if bounded():
        return Accumulated(bound, number(0.0, bound.device), None, rounds)
    spread, drift, scale = rows[0].spread(sums), None, sums.scale
    for row in rows[1:]:
        spread = torch.maximum(spread, row.spread(sums))
    for row in rows:
        if row.truncates:
            drift = row.drift(sums) if drift is None else torch.maximum(drift, row.drift(sums))
    if drift is not None:
        drift = torch.copysign(pick(rounds, drift * scale.sqrt(), 0.0), sums.v)
    return Accumulated(bound, pick(rounds, spread * scale, 0.0), drift, rounds)


def _partials(f: Format, sums: Sums, grid: Tensor | None) -> tuple[Tensor, Tensor]:
    """What rounding the partial sums p of any split of K to format f adds to the bound and to the variance.

    |error| <= u sum |p| <= u g, whatever the split, and half a subnormal spacing for each part, of which there are as
    many as products at most. Variance: u^2/3 sum p^2. For S parts of random-sign terms sum p^2 has the mean s2 (1 -
    1/S) + v^2 / S, at most max(s2, (s2 + v^2) / 2) from S = 2 on; but for few parts it is itself spread (a part may be
    several deviations large), so that the error's tail is heavier than normal: twice the mean covers this.
    """
    eta = f.eta * sums.count
    # A partial sum may overflow: then nothing is known of the result.
    lost = pick(sums.g <= f.max, 0.0, math.inf)
    bound = f.u * sums.g + eta + lost
    variance = f.u**2 / 3 * (sums.s2 + sums.v**2) + eta**2 / 3 + lost
    if grid is not None:
        # Every partial sum is a multiple of the grid below 2^p grids, hence a number of f.
        fits = (sums.g <= 2.0**f.p * grid) & (grid >= 2.0 ** (f.emin - f.p + 1))
        single = (sums.g * sums.g == sums.s2) & (rne(sums.v, f) == sums.v) & (grid > 0)
        inexact = ~(fits | single)
        bound, variance = pick(inexact, bound, 0.0), pick(inexact, variance, 0.0)
    return bound, variance


def _alike(x: Tensor, dim: int) -> Tensor:
    """1.0 where all elements along dim that are not zero have the same magnitude (x >= 0), else 0.0; dim is kept."""
    low = pick(x > 0, x, math.inf).amin(dim, keepdim=True)
    return (x.amax(dim, keepdim=True) <= low).to(F64)


def _aligned(size: Tensor, contract: Contract) -> Tensor:
    """Magnitudes of operands as large as a matrix unit's alignment takes them."""
    if contract.least <= TINY:  # below, products are flushed anyway
        return size
    return pick(size > 0, size.clamp(min=contract.least), 0.0)


def matmul(a: Value, b: Value, contract: Contract | None = None, start: Value | None = None) -> Value:
    """Product of a (..., M, K) and b (..., K, N): exact products, added as the contract allows, in any order and split.

    `start`, broadcastable to the result: addends that a kernel may put into the accumulator before the products. They
    are not part of the value returned, but they make the running sums larger.
    """
    contract = contract or Contract()
    if contract.reads:
        a, b = read(a, contract.reads), read(b, contract.reads)
    v, length = a.v @ b.v, a.v.shape[-1]
    if length == 0:
        return Value(v)
    size_a, size_b = a.v.abs(), b.v.abs()
    propagated = size_a @ b.b if not b.exact else 0.0
    propagated = propagated + (a.b @ (size_b + b.b) if not a.exact else 0.0)
    g, s2 = _aligned(size_a, contract) @ _aligned(size_b, contract) + propagated, a.v**2 @ b.v**2
    # Only rows that align look at the signs; whole numbers up to 2^24 are exact in float32.
    aligns = any(row.align for row in contract.accumulator) and not bounded()
    signs = (a.v.sign().float() @ b.v.sign().float()).to(F64) if aligns else v
    count = torch.minimum((a.v != 0).sum(-1, keepdim=True), (b.v != 0).sum(-2, keepdim=True)).to(F64)
    # Operands may be exact in every element, or, where the kernel converts them, in those that lie on its grid.
    grid = None
    if (a.exact and b.exact) or contract.reads:
        grid = lowbit(a.v).amin(-1, keepdim=True) * lowbit(b.v).amin(-2, keepdim=True)
        grid = pick(torch.as_tensor(propagated) == 0, grid, 0.0) if contract.reads else grid
    reach = v
    if start is not None:
        reach, g, s2, count = v.abs() + start.v.abs(), g + start.v.abs(), s2 + start.v**2, count + 1
        grid = None if grid is None else torch.minimum(grid, lowbit(start.v))
    sums = Sums(reach, g, s2, signs, count, length)
    made = _accumulate(contract.accumulator, sums, grid)
    bound, variance = made.bound, made.variance
    extra_variance: Tensor | float = 0.0
    if contract.partials:
        extra_bound, extra_variance = _partials(contract.partials, sums, grid)
        bound, variance = bound + extra_bound, variance + extra_variance
    # Each product below fp32's normal range may be flushed; those of exact sums lie above it.
    flush = made.rounds * (count * TINY)
    # Second order: (1 + u)^K - 1 < K u (1 + K u) for K u < 1; the last factor covers the rounding of this very
    # evaluation.
    bound = (propagated + bound * (1 + length * U) + flush) * (1 + 1e-6)
    if bounded():
        if not (a.exact and b.exact):  # a free factor leaves nothing to say
            extra_variance = extra_variance + pick(finite(bound), 0.0, math.inf)
        return Value(v, bound, extra_variance if isinstance(extra_variance, Tensor) else None)
    variance = variance + flush**2
    if site := noisy():
        return draw(site, v, variance.sqrt(), made.drift)
    shared: Shared = {}
    if made.drift is not None:
        shared[TRUNCATION] = (made.drift.expand(v.shape), (False,) * v.dim())
    if grid is not None:
        # The same products everywhere have the same error: shared by all elements.
        equal = ALIKE * U * count * reach * made.rounds
        drift = (equal * equal + extra_variance).sqrt() * _alike(size_a, -1) * _alike(size_b, -2)
        shared[new_term()] = (drift.expand(v.shape), (False,) * v.dim())
    if contract.partials:
        # A number of p bits has 2^(p-1) mantissas, and so many different errors at least has what is rounded to p bits
        # once more: a sum before alpha scales it, a part of one product where A has one row. The mean of so many is
        # not 0, but has 2^-(p-1) of the variance, and it is in every element, along its sign.
        common = torch.as_tensor(extra_variance / 2.0 ** (contract.partials.p - 1)).sqrt()
        shared[new_term()] = (torch.copysign(common, v), (False,) * v.dim())
    return Value(v, bound, _through_matmul(a, b, variance, shared), shared)


def _through_matmul(a: Value, b: Value, variance: Tensor, shared: Shared) -> Tensor:
    """Pass the errors of both operands through the product; returns the private variance, adds to `shared`."""
    nd = max(a.v.dim(), b.v.dim())
    for x, other, axis in ((a, b, -1), (b, a, -2)):
        product = (lambda m, n: m @ n) if axis == -1 else (lambda m, n: n @ m)
        if not x.exact:
            variance = variance + product(x.s2, other.v**2)
        for key, (c, fresh) in x.shared.items():
            full = c.expand(x.v.shape)
            if fresh[axis]:
                variance = variance + product(full * full, other.v**2)
            else:
                batch = (False,) * (nd - len(fresh)) + fresh[:-2]
                kept: Fresh = (*batch, fresh[-2], False) if axis == -1 else (*batch, False, fresh[-1])
                merge(shared, key, product(full, other.v), kept)
    return variance if a.exact or b.exact else variance + a.s2 @ b.s2


def total(*terms: Value) -> Value:
    """The sum of a few broadcastable values in any order: n - 1 roundings, each at most of the sum of magnitudes.

    An inner sum of three terms has a square of at most twice the sum of their squares.
    """
    if len(terms) <= 2:
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]

    def add(part: Callable[[Value], Tensor]) -> Tensor:
        return reduce(operator.add, map(part, terms))

    v, b, squares = add(lambda t: t.v), add(lambda t: t.b), add(lambda t: t.v**2)
    g = b + add(lambda t: t.v.abs())
    grid = lowbit(terms[0].v.expand(v.shape))
    for t in terms[1:]:
        grid = torch.minimum(grid, lowbit(t.v))
    inexact = ((b != 0) | (g > 2.0**24 * grid)).to(F64)
    inner = len(terms) - 2
    local = (inexact * (inner + 1) * U * g, inexact * U / SQRT3 * (2 * inner * squares + v**2).sqrt())
    return rounded(v, [(t, 1.0) for t in terms], b, local=local)


def sum_(x: Value, dim: int = -1, accumulator: Accumulator = (CHAIN,)) -> Value:
    """Sum along dim (kept), in any order.

    Exact terms (squares of bf16 data, repeated values) have few or alike low bits: in a long sequential sum their
    rounding errors are alike too, and drift as equal terms do.
    """

    def add(y: Tensor) -> Tensor:
        return y.sum(dim, keepdim=True)

    d, v, length = dim % x.v.dim(), add(x.v), x.v.shape[dim]
    live = (add((x.v != 0).to(F64)) - 1).clamp(min=0)  # n terms take n - 1 additions
    count = live if all(row.bits > 0 for row in accumulator) else torch.full_like(v, max(length - 1, 0))
    sums = Sums(v, add(x.v.abs() + x.b), add(x.v**2), add(x.v.sign()), count, length)
    # Under noise, inputs that carry an error are no fp32 numbers, and so not exact.
    known = ((x.b == 0) & (rne(x.v, FP32) == x.v)).all(dim, keepdim=True)
    made = _accumulate(accumulator, sums, pick(known, lowbit(x.v).amin(dim, keepdim=True), 0.0))
    variance = made.variance + (known * made.rounds * ALIKE * U * count * v) ** 2
    if site := noisy():
        return draw(site, v, variance.sqrt(), made.drift)
    if not x.exact:
        variance = variance + add(x.s2)
    shared: Shared = {}
    if made.drift is not None:
        shared[TRUNCATION] = (made.drift, (False,) * v.dim())
    for key, (c, fresh) in x.shared.items():
        full = c.expand(x.v.shape)
        if fresh[d]:
            variance = variance + add(full * full)
        else:
            merge(shared, key, add(full), (*fresh[:d], key != TRUNCATION, *fresh[d + 1 :]))
    return Value(v, add(x.b) + made.bound, variance, shared)


def mean(x: Value, dim: int = -1, name: str | None = None, accumulator: Accumulator = (CHAIN,)) -> Value:
    """Mean along dim (kept), its 1/N a constant that is probed where it has a name."""
    return sum_(x, dim, accumulator) * const(1.0 / x.v.shape[dim], name)


def square(x: Value) -> Value:
    """Product of x with itself, whose two factors have the same error."""
    return rounded(x.v**2, [(x, 2 * x.v)], 2 * x.v.abs() * x.b + x.b**2, 2 * x.s2**2)


def exp_shift(x: Value, m: Tensor) -> Value:
    """exp(x - m), m a plain tensor: a kernel may take another shift, for it cancels.

    Covers exp2 and fma(x, c, -(m c)) too, where the rounding of m c is shared by all elements with that m.
    """
    a = (x.v - m).clamp(max=300.0)  # beyond fp32's range either way
    v = a.exp()
    argument = pick(a > -math.inf, a.abs(), 0.0)
    b = v * torch.expm1((x.b + 2 * U * (argument + m.abs())).clamp(max=700))
    var = x.var
    wide = torch.expm1(var.clamp(max=50.0))  # log-normal spread, once the deviation of x is not small
    shift = Value(m, torch.zeros_like(m, dtype=F64), (U * m.to(F64)) ** 2 / 3)
    local = (EXP * v, v * (EXP + U * argument) / SQRT3)
    return rounded(v, [(x, v), (shift, v)], b, v * v * (wide * (1 + wide) - var).clamp(min=0), local)


def log(x: Value) -> Value:
    """Natural logarithm; near 1 the error of log2 is absolute."""
    v = x.v.log()
    e = LOG * v.abs().clamp(min=1.0)
    return rounded(v, [(x, 1 / x.v)], -torch.log1p(-(x.b / x.v).clamp(max=1.0)), local=(e, e / SQRT3))


def rsqrt(x: Value) -> Value:
    """1 / sqrt(x)."""
    v = x.v.rsqrt()
    b = v * ((1 - (x.b / x.v).clamp(max=1.0)).rsqrt() - 1)
    return rounded(v, [(x, -(v**3) / 2)], b, local=(RSQRT * (v + b), RSQRT * v / SQRT3))


def tanh(x: Value) -> Value:
    """Hyperbolic tangent, also by way of exp(2 x): near 0 that loses digits, so its error is absolute there."""
    v = x.v.tanh()
    reach = torch.maximum((x.v.abs() + x.b).tanh() - v.abs(), v.abs() - (x.v.abs() - x.b).tanh())
    e = torch.full_like(v, 2 * EXP + TANH)
    return rounded(v, [(x, 1 - v * v)], reach, local=(e, e / SQRT3))


def rescaled(x: Value, times: int) -> Value:
    """exp(x - m) where the kernel's shift moves up to `times` times, and all before is multiplied by exp(m - m').

    Each time one exp and one rounding; the arguments' roundings, along with m, are those of `exp_shift`.
    """
    if times <= 0 or noisy():
        return x
    spread = times * ((EXP**2 + U**2) / 3) * x.v**2
    return Value(x.v, x.b + times * (EXP + U) * (x.v + x.b), x.s2 + spread, x.shared)


def rowmax(x: Value, dim: int = -1) -> Tensor:
    """The maximum along dim (kept) for use as a shift, hence a plain tensor: exact by definition."""
    return x.v.amax(dim, keepdim=True)


def where(mask: Tensor, a: Any, b: Any) -> Value:
    """Pick a where mask holds, else b."""
    a, b = lift(a), lift(b)

    def chosen(p: Tensor, q: Tensor) -> Tensor:
        return torch.where(mask, p.to(mask.device), q.to(mask.device))

    zero = a.v.new_zeros(())
    v = chosen(a.v, b.v)
    shared: Shared = {}
    for key in a.shared | b.shared:
        (p, tp), (q, tq) = a.shared.get(key, (zero, None)), b.shared.get(key, (zero, None))
        fresh = tp or tq or ()
        shared[key] = (chosen(p, q), (False,) * (v.dim() - len(fresh)) + fresh)
    return Value(v, None if a.exact and b.exact else chosen(a.b, b.b), chosen(a.s2, b.s2), shared)


def gather(x: Value, index: Tensor, dim: int = -1) -> Value:
    """x.gather(dim, index). Shared terms become private: use it to pick, not to sum afterwards along dim."""
    return Value(x.v.gather(dim, index), x.b.gather(dim, index), x.var.gather(dim, index))


def concat(xs: list[Value], dim: int = -1) -> Value:
    """Concatenation along dim. Shared terms become private."""
    return Value(
        torch.cat([x.v for x in xs], dim), torch.cat([x.b for x in xs], dim), torch.cat([x.var for x in xs], dim)
    )


def either(first: Value, *others: Value) -> Value:
    """The contract allows any of several formulas, or kernels that differ as they do; the first gives the value.

    Where one formula has NaN or infinity and another has not, the element is free (see `Value`).
    """
    if noisy():
        return first
    b, s2 = first.b, first.s2
    free = torch.zeros_like(first.v, dtype=torch.bool)
    for x in others:
        b, s2 = torch.maximum(b, x.b + (x.v - first.v).abs()), torch.maximum(s2, x.var)
        same = (x.v == first.v) | (x.v.isnan() & first.v.isnan())
        free = free | (~(finite(x.v) & finite(first.v)) & ~same)
    out = Value(first.v, b, pick(free, math.inf, s2), first.shared)
    out.b = pick(free, math.inf, out.b)
    return out


def may_round(x: Value, f: Format, running: Callable[[int], Tensor] | None = None) -> Value:
    """A kernel may hold this in format f, under a scale that the reference does not know: a relative uniform error.

    Example: softmax's P in bf16, relative to a running maximum; `running` then gives, for a number of keys that are
    taken at a time, what each element's scale is (0 where the element is 0). The reference's own kernels hold it under
    a scale of all elements, of each row, or that of a running maximum: rows of the same P err alike.
    """
    eta = f.eta * (x.v != 0)
    if site := noisy():
        generator = torch.Generator().manual_seed(site)
        if running and site % 3 == 0:
            scale = running(16 << site // 3 % 4)
            return Value(rne(x.v / pick(scale > 0, scale, 1.0), f) * scale)
        rows = x.v.shape[:-1] if site % 3 == 1 else (1,) * (x.v.dim() - 1)
        scale = 2 ** torch.rand((*rows, 1), generator=generator, dtype=F64).to(x.v.device)
        return Value(rne(x.v * scale, f) / scale)
    bound = x.b + f.u * (x.v.abs() + x.b) + eta
    return Value(x.v, bound, x.s2 + torch.maximum(f.u * x.v.abs(), eta) ** 2 / 3, x.shared)


def round_to(x: Value, f: Format) -> Value:
    """The contract rounds here.

    Where no likely error (8 deviations, at most b) crosses a rounding boundary, the result is the rounded value itself,
    without variance; elsewhere v stays and gains the variance of two points q apart (one boundary in reach: q^2 / 4) or
    of a uniform error (many: q^2 / 12).
    """
    if noisy():
        return Value(rne(x.v, f))
    s = x.var.sqrt()
    q, reach = ulp(x.v.abs() + s, f), torch.minimum(8 * s, x.b)
    low, high, far_low, far_high = (rne(x.v + e, f) for e in (-reach, reach, -x.b, x.b))
    same = (low == high) | ~finite(x.v)
    v = pick(same, rne(x.v, f), x.v)
    # An error beyond 8 deviations is not impossible: 1e-15 of the time, one spacing.
    rare = pick(far_low == far_high, 0.0, (3e-8 * q) ** 2)
    s2 = pick(same, rare, x.s2 + pick(reach < q / 2, q * q / 4, q * q / 12))
    shared: Shared = {k: (c if isinstance(k, str) else pick(same, 0.0, c), t) for k, (c, t) in x.shared.items()}
    return Value(v, torch.maximum((far_high - v).abs(), (v - far_low).abs()), s2, shared)
