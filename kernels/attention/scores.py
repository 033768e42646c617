"""What all steps compute alike on the device: which keys a query sees, and what becomes of a product Q K^T."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def key_range(m0, Sq, Sk, left, right, BM: tl.constexpr):
    """Return the first key that one of the queries m0 to m0 + BM - 1 sees, and the one after the last.

    Every key between them is seen by one of these queries, as each query's keys begin one after its predecessor's. What
    lies outside is never read, so it may hold anything, NaN too.
    """
    first = m0 + Sk - Sq
    last = tl.minimum(m0 + BM, Sq) - 1 + Sk - Sq
    return tl.maximum(first - left, 0), tl.minimum(last + right + 1, Sk)


@triton.jit
def visible(m, n, Sq, Sk, left, right):
    """Return which of the queries m (a column) see which of the keys n (a row)."""
    p = m + (Sk - Sq)
    return (n >= p - left) & (n <= p + right) & (n < Sk)


@triton.jit
def tanh(x):
    """Return tanh of float32 with a relative error below 2^-21, an exponential's own being 2^-22.

    (1 - t) / (1 + t) with t = exp(-2 |x|) loses digits where t is near 1. Below 0.5 stands x plus x^3 times a cubic in
    x^2 in its place, fitted in float64 to the least relative error, 1.5e-8.
    """
    z = x * x
    cubic = ((0.017239923 * z - 0.053044833) * z + 0.1332587) * z - 0.33333144
    t = tl.exp2(tl.abs(x) * (-2 * LOG2_E))
    large = (1 - t) / (1 + t)
    return tl.where(z < 0.25, x + x * z * cubic, tl.where(x < 0, -large, large))


@triton.jit
def score(qk, m, n, Sq, Sk, scale, softcap, slope, SOFTCAP: tl.constexpr, SLOPES: tl.constexpr):
    """Return the scores of products qk: scaled, capped by softcap * tanh(s / softcap), less slope * |p - n| (ALiBi)."""
    s = qk * scale
    if SOFTCAP:
        s = softcap * tanh(s / softcap)
    if SLOPES:
        s -= slope * tl.abs(m + (Sk - Sq) - n).to(tl.float32)
    return s


@triton.jit
def finite(m):
    """Return the maximum m of a row's scores, or 0 for a row that has seen no key.

    So exp(s - finite(m)) is exp(-inf) = 0 there, and not NaN, as -inf - -inf would be.
    """
    return tl.where(m == float("-inf"), 0.0, m)
