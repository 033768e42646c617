"""What the arithmetic units of each GPU generation do when they accumulate, as a table, and the contracts built on it.

A row bounds the rounding error of one accumulation; an accumulator is the set of rows that a contract admits, for a
kernel may use the tensor cores or a plain chain of fp32 multiply-adds in any order: its bound and its variance are the
largest of its rows'.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rooftest.errors import UsageError
from rooftest.formats import PRECISIONS, TF32, Format

U32 = 2.0**-24  # unit roundoff of fp32


@dataclass(frozen=True)
class Sums:
    """Sums over the K products p of each output element, float64 and broadcastable.

    `v` = sum p, `g` = sum |p|, `s2` = sum p^2, `signs` = sum sign(p); `count` the number of products that are not zero,
    or a bound of it; `length` is K.
    """

    v: Tensor
    g: Tensor
    s2: Tensor
    signs: Tensor
    count: Tensor
    length: int

    @property
    def scale(self) -> Tensor:
        """Mean square of the running sum over its way from 0 to v.

        With terms of random sign at most (s2 + v^2) / 2: s2 / 2 where v is small, v^2 / 3 where all terms agree.
        """
        return (self.s2 + self.v**2) / 2


@dataclass(frozen=True)
class Row:
    """One way to accumulate.

    Products enter in steps of `group`. A step aligns its products and the running sum to the largest of them and cuts
    each off at `align` times that largest magnitude (0: no alignment), then rounds the sum with unit roundoff `u`, to
    nearest or, where `truncates`, towards zero. Sums that fit `bits` bits are exact. `source` says who vouches for it.
    """

    name: str
    source: str
    group: int = 1
    u: float = U32
    truncates: bool = False
    align: float = 0.0
    bits: int = 24

    def steps(self, sums: Sums) -> Tensor:
        """Most steps that can round: one for each product at most.

        One for each `group` of K, and, as a kernel may split K into parts (none shorter than 128), one ragged group and
        one addition more for each part. A step that only moves one product into an empty accumulator is exact.
        """
        if self.group == 1:
            return sums.count
        return sums.count.clamp(max=-(-sums.length // self.group) + 1 + sums.length // 128)

    def bound(self, sums: Sums) -> Tensor:
        """Largest |error| in units of `sums.g`.

        Each step cuts off at most `align` of each of its group + 1 terms, and rounds once. `sums.g` counts a subnormal
        operand as large as the alignment does (`Contract.least`).
        """
        return self.steps(sums) * (self.u * (1 + self.truncates) + (self.group + 1) * self.align)

    def spread(self, sums: Sums) -> Tensor:
        """Variance in units of `sums.scale`: independent errors, one for each step.

        Rounding to nearest, uniform on [-u, u]: u^2 / 3. Truncation, uniform on [0, 2 u), about its mean: the same.
        Alignment takes a uniform share of `align` from each product, and once a step from the running sum.
        """
        steps = self.steps(sums)
        spread = steps * (self.u**2 / 3)
        return spread + (sums.count + steps) * (self.align**2 / 12) if self.align else spread

    def drift(self, sums: Sums) -> Tensor:
        """Mean error of truncation in units of the root of `sums.scale`, towards zero.

        Each step takes u of the running sum on average, which keeps its sign for long; alignment takes align / 2 from
        each product, which adds up as far as the products agree in sign, and from the running sum.
        """
        steps = self.steps(sums)
        return steps * (self.u * self.truncates) + (sums.signs.abs() + steps) * (self.align / 2)


Accumulator = tuple[Row, ...]

CHAIN = Row("fp32 chain", "IEEE 754: one rounding to nearest for each fused multiply-add, any order")


# Who vouches for a row: the public model, or a comparison with a GPU, bit for bit (tests/device/verify_engines.py).
MODEL = "from model"
H200 = "verified on an H200 bit for bit (results/engines/h200.json)"


def _tensor_core(name: str, group: int, fraction: int, *, u: float = U32, bits: int = 24, source: str = MODEL) -> Row:
    """A truncating tensor core that keeps `fraction` bits below the largest exponent of a step."""
    return Row(name, source, group, u, truncates=True, align=2.0**-fraction, bits=bits)


def _fp8_short(name: str, group: int, source: str = MODEL) -> Row:
    """Hopper's and Ada's FP8 accumulator keeps 13 fraction bits, and its result has no more (e8m13).

    The H200 log of FP8 products reads rms z 0.08 to 0.33 against truncating contracts of 13 and 14 bits, 10 to 21
    against 20 bits.
    """
    return _tensor_core(name, group, 13, u=2.0**-14, bits=14, source=source)


# Terms a step, fraction bits: the bit-accurate public model of NVIDIA's matrix units (arXiv 2511.10909, 2512.07004).
_MATRIX_UNITS: dict[str, dict[str, Row]] = {
    "sm_80": {
        "tf32": _tensor_core("mma tf32", 4, 24),
        "float16": _tensor_core("mma fp16", 8, 24),
        "bfloat16": _tensor_core("mma bf16", 8, 24),
    },
    "sm_89": {
        "tf32": _tensor_core("mma tf32", 4, 24),
        "float16": _tensor_core("mma fp16", 8, 24),
        "bfloat16": _tensor_core("mma bf16", 8, 24),
        "e4m3": _fp8_short("mma fp8", 16),
        "e5m2": _fp8_short("mma fp8", 16),
    },
    "sm_90": {
        # One output of 7 million differs, by one spacing of a subnormal result: not verified in the strict sense.
        "tf32": _tensor_core("wgmma tf32", 8, 25),
        "float16": _tensor_core("wgmma fp16", 16, 25, source=H200),
        "bfloat16": _tensor_core("wgmma bf16", 16, 25, source=H200),
        "e4m3": _fp8_short("wgmma fp8", 32, H200),
        "e5m2": _fp8_short("wgmma fp8", 32, H200),
    },
    "sm_100": {
        "tf32": _tensor_core("tcgen05 tf32", 8, 25),
        "float16": _tensor_core("tcgen05 fp16", 16, 25),
        "bfloat16": _tensor_core("tcgen05 bf16", 16, 25),
        "e4m3": _tensor_core("tcgen05 fp8", 32, 25),
        "e5m2": _tensor_core("tcgen05 fp8", 32, 25),
    },
    "sm_120": {
        "tf32": _tensor_core("mma tf32", 8, 25),
        "float16": _tensor_core("mma fp16", 16, 25),
        "bfloat16": _tensor_core("mma bf16", 16, 25),
        "e4m3": _tensor_core("mma fp8", 32, 25),
        "e5m2": _tensor_core("mma fp8", 32, 25),
    },
}
ENGINES = ("cpu", *_MATRIX_UNITS)
INPUTS = ("float32", "tf32", "float16", "bfloat16", "e4m3", "e5m2")


def engine_of(device: str | torch.device) -> str:
    """The engine name of a torch device: "cpu" (the interpreter too), or the table's row for its compute capability.

    Raises UsageError for a GPU generation that the table does not have.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return "cpu"
    major, minor = torch.cuda.get_device_capability(device)
    exact, family = f"sm_{major}{minor}", f"sm_{major}0"
    for name in (exact, family):
        if name in _MATRIX_UNITS:
            return name
    raise UsageError(f"no accumulator row for {exact}; rooftest.engines knows {', '.join(ENGINES)}")


def accumulator(engine: str, inputs: str) -> Accumulator:
    """The rows that "fp32 accumulation" admits for these inputs on this engine: chain, tensor cores where they exist.

    Raises UsageError for an engine or an input format that the table does not have.
    """
    if engine not in ENGINES:
        raise UsageError(f"no engine {engine!r}; rooftest.engines knows {', '.join(ENGINES)}")
    if inputs not in INPUTS:
        raise UsageError(f"no input format {inputs!r}; rooftest.engines knows {', '.join(INPUTS)}")
    unit = _MATRIX_UNITS.get(engine, {}).get(inputs)
    return (CHAIN, unit) if unit else (CHAIN,)


@dataclass(frozen=True)
class Contract:
    """What a matrix product may do on its way.

    `accumulator`: the rows by which it may accumulate. `partials`: the format to which sums over parts of K may be
    rounded before they are added in fp32 (None: they stay in fp32). `reads`: the format to which the kernel converts
    its operands, by rounding or truncation (None: it takes them as they are). `least`: an operand that is smaller and
    not 0 is aligned as if it had this magnitude, its format's smallest normal number (0: nothing aligns).
    """

    accumulator: Accumulator = (CHAIN,)
    partials: Format | None = None
    reads: Format | None = None
    least: float = 0.0


ACCUMULATIONS = ("fp32", "partials")


def contract(accumulation: str, engine: str, precision: str) -> Contract:
    """The contract by name: "fp32" accumulation, or "partials" rounded to the output format as well.

    The second is what cuBLAS does under torch's default flags.

    Raises UsageError for a name that is none of ACCUMULATIONS.
    """
    if accumulation not in ACCUMULATIONS:
        raise UsageError(f"no accumulation contract {accumulation!r}; there are {', '.join(ACCUMULATIONS)}")
    row, rows = PRECISIONS[precision], accumulator(engine, precision)
    return Contract(
        rows,
        partials=row.output if accumulation == "partials" else None,
        reads=row.input if row.input is TF32 else None,
        least=2.0**row.input.emin if any(unit.align for unit in rows) else 0.0,
    )
