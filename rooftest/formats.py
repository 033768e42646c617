"""Number formats as data, and the few exact operations on them: spacing, rounding, rounding cells, lowest set bit.

Tensors are float64 throughout: every format here is a subset of float64, so nothing below rounds on the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

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


def storage(precision: str) -> torch.dtype:
    """How elements of a precision are stored. "int32" is one too: integers index, so nothing of them is rounded."""
    return torch.int32 if precision == "int32" else PRECISIONS[precision].storage


@lru_cache(maxsize=256)
def number(x: float, device: torch.device) -> Tensor:
    """A float64 scalar on the device, made once: a Python number beside a mask costs a launch each time."""
    return torch.full((), x, dtype=F64, device=device)


def pick(mask: Tensor, x: Tensor | float, y: Tensor | float) -> Tensor:
    """torch.where on float64, in one launch also where x or y is a number."""
    x, y = (n if isinstance(n, Tensor) else number(n, mask.device) for n in (x, y))
    return torch.where(mask, x, y)


def finite(x: Tensor) -> Tensor:
    """Where x is neither infinite nor NaN, in half the launches of x.isfinite: the rest minus itself is NaN."""
    return x - x == 0


_EXPONENT, _FRACTION = 0x7FF << 52, 2**52 - 1  # the fields of a float64


def binade(x: Tensor) -> Tensor:
    """2**floor(log2 |x|) for normal float64 values; 0 for zero, infinity for infinity and NaN."""
    return (x.view(torch.int64) & _EXPONENT).view(F64)


def ulp(x: Tensor, f: Format) -> Tensor:
    """Spacing of format f at x, at a power of two the one above it; for infinity and NaN that of the largest number."""
    return binade(x).clamp(2.0**f.emin, 2.0 ** (math.frexp(f.max)[1] - 1)) * 2.0 ** (1 - f.p)


def rne(x: Tensor, f: Format) -> Tensor:
    """Round x to nearest, ties to even, in format f, with subnormals; then saturation or infinity. NaN stays NaN."""
    if f is FP32:
        return x.float().to(F64)
    # Adding 1.5 2^52 spacings leaves no bits below one spacing: float64's own rounding to nearest even does the work.
    magic = ulp(x, f) * (1.5 * 2.0**52)
    y = (x + magic) - magic
    if f.saturate:
        return y.clamp(-f.max, f.max)
    return pick(y.abs() > f.max, y * math.inf, y)


def cell(y: Tensor, f: Format) -> tuple[Tensor, Tensor]:
    """The magnitudes (low, high) between which a real of y's sign must lie to round to y, for y in format f.

    For y = 0 the lower one is negative. At a power of two the lower half is a quarter of the spacing above.
    """
    a, q = y.abs(), ulp(y, f)
    power = ((y.view(torch.int64) & _FRACTION) == 0) & (a > 2.0**f.emin)
    low = a - q * pick(power, 0.25, 0.5)
    if f.saturate:
        return low, pick(a >= f.max, math.inf, a + q / 2)
    # The first real that overflows lies half a spacing above the largest number; infinity plus anything is itself.
    top = f.max + 2.0 ** (math.frexp(f.max)[1] - 1 - f.p)
    return low.clamp(max=top), a + q / 2


def lowbit(x: Tensor) -> Tensor:
    """The value of the lowest set bit of x, a power of two; infinity for zero and infinity, NaN for NaN.

    Multiples of it whose magnitudes sum to at most 2**bits times it add up exactly in `bits` bits, in any order.
    """
    i = x.view(torch.int64)
    fraction = i & _FRACTION
    # The fraction without its lowest bit, then the difference; a power of two is its own lowest bit.
    rest = pick(fraction == 0, 0.0, (i & (i - 1)).view(F64))
    return pick(x == 0, math.inf, (x - rest).abs())
