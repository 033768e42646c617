"""Number formats as data, and the few exact operations on them: spacing, rounding, rounding cells, lowest set bit.

Tensors are float64 throughout: every format here is a subset of float64, so nothing below rounds on the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

F64 = torch.float64


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with subnormals.

    `p` significant bits (the leading one included), `emin` exponent of the smallest normal number, `max` largest finite
    value; beyond it a rounding gives infinity, or `max` itself where the format saturates.
    """

    name: str
    p: int
    emin: int
    max: float
    saturate: bool = False

    @property
    def u(self) -> float:
        """Unit roundoff: the largest relative error of one rounding to nearest."""
        return 2.0**-self.p

    @property
    def eta(self) -> float:
        """Largest absolute error of a rounding to nearest among the subnormals: half their spacing."""
        return 2.0 ** (self.emin - self.p)


FP32 = Format("fp32", 24, -126, (2 - 2.0**-23) * 2.0**127)
TF32 = Format("tf32", 11, -126, (2 - 2.0**-10) * 2.0**127)
BF16 = Format("bf16", 8, -126, (2 - 2.0**-7) * 2.0**127)
FP16 = Format("fp16", 11, -14, 65504.0)
# OCP 8-bit floating point: E4M3 has no infinity and saturates in every quantiser of ours; E5M2 is IEEE-like.
E4M3 = Format("e4m3", 4, -6, 448.0, saturate=True)
E5M2 = Format("e5m2", 3, -14, 57344.0)

FORMATS = {f.name: f for f in (FP32, TF32, BF16, FP16, E4M3, E5M2)}


@dataclass(frozen=True)
class Precision:
    """A stated precision of an op: how elements are stored, which values its inputs hold, how the output is rounded.

    Integers up to 2**`integer_bits` in magnitude are exact as inputs.
    """

    name: str
    storage: torch.dtype
    input: Format
    output: Format

    @property
    def integer_bits(self) -> int:
        """All integers up to 2**p need p significant bits at most."""
        return self.input.p


# tf32 is float32 storage whose inputs lie on the tf32 grid; its output is float32.
PRECISIONS = {
    p.name: p
    for p in (
        Precision("float32", torch.float32, FP32, FP32),
        Precision("tf32", torch.float32, TF32, FP32),
        Precision("float16", torch.float16, FP16, FP16),
        Precision("bfloat16", torch.bfloat16, BF16, BF16),
    )
}


def pow2(e: Tensor) -> Tensor:
    """2**e, exact, for integer exponents from -1022 to 1023."""
    return ((e.to(torch.int64) + 1023) << 52).view(F64)


def exponent(x: Tensor) -> Tensor:
    """floor(log2 |x|) as int64 for normal float64 values; below them (zero too) -1023, for infinity and NaN 1024."""
    return (x.view(torch.int64) >> 52 & 0x7FF) - 1023


def ulp(x: Tensor, f: Format) -> Tensor:
    """Spacing of format f at x, at a power of two the one above it; for infinity and NaN that of the largest number."""
    return pow2(exponent(x).clamp(f.emin, math.frexp(f.max)[1] - 1) - (f.p - 1))


def rne(x: Tensor, f: Format) -> Tensor:
    """Round x to nearest, ties to even, in format f, with subnormals; then saturation or infinity. NaN stays NaN."""
    q = ulp(x, f)
    y = torch.round(x / q) * q
    return torch.where(y.abs() > f.max, torch.sign(x) * (f.max if f.saturate else math.inf), y)


def cell(y: Tensor, f: Format) -> tuple[Tensor, Tensor]:
    """The interval of reals (low, high) that round to y, for y in format f. At a power of two the lower half is q/4."""
    a, q = y.abs(), ulp(y, f)
    below = torch.where((a == pow2(exponent(a).clamp(-1022, 1023))) & (a > 2.0**f.emin), q / 4, q / 2)
    # The first real that overflows: half a spacing above the largest number.
    top = f.max + 2.0 ** (math.frexp(f.max)[1] - 1 - f.p)
    inf = a.isinf()
    low = torch.where(inf, top, a - below)
    high = torch.where(inf | ((a >= f.max) & f.saturate), math.inf, a + q / 2)
    return torch.where(y < 0, -high, low), torch.where(y < 0, -low, high)


def lsb(x: Tensor) -> Tensor:
    """Exponent of the lowest set bit of x, 900 for zero, infinity and NaN.

    Multiples of 2**lsb whose magnitudes sum to at most 2**(bits + lsb) add up exactly in `bits` bits, in any order.
    """
    e = exponent(x)
    i = x.view(torch.int64) & (2**52 - 1) | 2**52  # the significand, as an integer of 53 bits
    low = exponent((i & -i).to(F64)) - 52
    return torch.where((e > -1023) & (e < 1024), e + low, 900).clamp(-900, 900)
