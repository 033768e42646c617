"""A matrix unit as a row of the engine table states it, bit for bit: to hold beside what the silicon gives.

The algorithm is public (arXiv 2511.10909, 2512.07004). Its numbers are the row's, so that comparing its bits with
those of a GPU verifies the row. `rooftest.engines` gives bounds instead, which hold for any order.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rooftest.engines import Row
from rooftest.formats import F64, FP32, Format, rne, ulp

_BIAS, _WIDTH = 1023, 52  # of float64's exponent
NAN = 0x7FFFFFFF  # the NaN of every matrix unit, as fp32 bits
NO_PART = -2000  # an exponent below all others: on an H200 zeros take no part in the alignment
_LEAST = -400  # a step whose exponents are all lower holds zeros only: the smallest product of subnormals is 2**-298


def exponents(x: Tensor, least: int, zero: int) -> Tensor:
    """floor(log2 |x|) as int64, `least` for smaller numbers (subnormals), `zero` for zeros, 0 for infinity and NaN."""
    e = ((x.view(torch.int64) >> _WIDTH) & 0x7FF) - _BIAS
    e = torch.where(x == 0, zero, e.clamp(min=least))
    return torch.where(x.isfinite(), e, 0)


def _power(e: Tensor) -> Tensor:
    """2**e as float64, for normal results."""
    return ((e + _BIAS) << _WIDTH).view(F64)


def _rounded(row: Row, x: Tensor) -> Tensor:
    """A step's sum in the accumulator: fp32's range and as many significant bits as `row.u` says."""
    f = Format("accumulator", round(-math.log2(row.u)), FP32.emin, FP32.max)
    if not row.truncates:
        return rne(x, f)
    q = ulp(x, f)
    y = (x / q).trunc() * q
    return torch.where(y.abs() > FP32.max, y * math.inf, y)


def emulate(
    row: Row, a: Tensor, b: Tensor, inputs: Format, *, start: Tensor | None = None, zero: int = NO_PART
) -> Tensor:
    """The sum start + a @ b as the row's matrix unit gives it, float32.

    a (..., M, K) and b (..., K, N) are float64 and hold numbers of the format `inputs`; `start` (..., M, N) is what the
    accumulator holds before, zero by default. Steps of `row.group` take K in ascending order. In a step every product,
    and the running sum, is cut off (towards zero) `-log2(row.align)` bits below the largest exponent; a product's is
    the sum of its operands', before normalisation, with a subnormal's taken to be the format's smallest. The exact sum
    of what is left goes to the accumulator, rounded by `row.u` and `row.truncates`. A sum of zero is +0.

    `zero` is the exponent of a zero, operand or accumulator, in the search for the largest. Raises ValueError for a row
    without alignment, which is no matrix unit.
    """
    if not row.align:
        raise ValueError(f"{row.name} aligns nothing: it is no matrix unit")
    fraction = round(-math.log2(row.align))
    left, right = a.unsqueeze(-2), b.mT.unsqueeze(-3)  # (..., M, 1, K), (..., 1, N, K)
    left_e, right_e = (exponents(x, inputs.emin, zero) for x in (left, right))
    total = torch.zeros((), dtype=F64, device=a.device) if start is None else start.to(F64)
    for k in range(0, a.shape[-1], row.group):
        part = slice(k, k + row.group)
        products = left[..., part] * right[..., part]  # exact: 2 x 11 bits at most
        top = (left_e[..., part] + right_e[..., part]).amax(-1)
        top = torch.maximum(top, exponents(total, FP32.emin, zero)).clamp(min=_LEAST)
        scale = _power(fraction - top)
        kept = (products * scale.unsqueeze(-1)).trunc_().sum(-1) + (total * scale).trunc()  # integers below 2**53
        total = _rounded(row, kept * _power(top - fraction))
    bits = (total + 0.0).float()  # -0 + 0 = +0
    return torch.where(bits.isnan(), torch.tensor(NAN, dtype=torch.int32, device=a.device).view(torch.float32), bits)
