"""Run every operation that the interpreter shim replaces, and print how many values are wrong, as JSON.

A process of its own, because the interpreter is chosen when triton is imported: `python interpreter_probe.py shim`
counts with the shim, `python interpreter_probe.py bare` without it, where each count must be above zero.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import json
import sys
from fractions import Fraction

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder
from triton.tools.tensor_descriptor import TensorDescriptor

BF16 = torch.bfloat16
CODES = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16)  # every bfloat16 there is


def rich_codes():
    """128 codes: both signs of zero, the ends of the subnormals and normals, ones, Inf, NaN, and a spread."""
    picked = [0x0000, 0x0001, 0x0002, 0x007E, 0x007F, 0x0080, 0x0081, 0x00FF, 0x3F7F, 0x3F80, 0x3F81, 0x3FFF, 0x4000]
    picked += [0x4049, 0x437F, 0x4380, 0x7F00, 0x7F7E, 0x7F7F, 0x7F80, 0x7FC0]
    rng = np.random.default_rng(0)
    picked += list(rng.integers(0x3A00, 0x4500, 28)) + list(rng.integers(0, 0x7F80, 15))
    codes = np.array(picked, dtype=np.uint16)
    return torch.from_numpy(np.concatenate([codes, codes | 0x8000]).view(np.int16)).view(BF16)


def wrong(got, want):
    """Count elements that differ in any bit; a NaN equals any NaN, whose payload no operation promises."""
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    assert got.shape == want.shape, (got.shape, want.shape)
    if got.dtype.is_floating_point:
        nan = got.isnan() & want.isnan()
        as_int = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
        return int(((got.view(as_int) != want.view(as_int)) & ~nan).sum())
    return int((got != want).sum())


# --- casts ----------------------------------------------------------------------------------------------------------


@triton.jit
def cast_kernel(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at, mask=at < n).to(out.dtype.element_ty), mask=at < n)


@triton.jit
def truncate_kernel(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at, mask=at < n).to(tl.bfloat16, fp_downcast_rounding="rtz"), mask=at < n)


@triton.jit
def constant_kernel(out, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), tl.full((B,), 1.00390625 + 0.0078125, tl.bfloat16))


def cast(x, dtype, kernel=cast_kernel):
    out = torch.full(x.shape, 7, dtype=dtype)
    kernel[(triton.cdiv(x.numel(), 4096),)](x, out, x.numel(), B=4096)
    return out


def cast_to_float32():
    return wrong(cast(CODES, torch.float32), CODES.float())


def midpoints():
    """Every bfloat16, the midpoint to its successor, and the float32 values on both sides of it."""
    base = CODES.float().view(torch.int32)
    return torch.cat([base, base + 0x7FFF, base + 0x8000, base + 0x8001]).view(torch.float32)


def cast_from_float32():
    return wrong(cast(midpoints(), BF16), midpoints().to(BF16))


def cast_from_float32_random_bits():
    bits = torch.randint(-(2**31), 2**31, (1 << 18,), generator=torch.Generator().manual_seed(1))
    x = bits.to(torch.int32).view(torch.float32)
    return wrong(cast(x, BF16), x.to(BF16))


def cast_from_float16():
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    return wrong(cast(x, BF16), x.to(BF16))


def cast_to_float16():
    return wrong(cast(CODES, torch.float16), CODES.to(torch.float16))


def cast_to_float64():
    return wrong(cast(CODES, torch.float64), CODES.double())


def cast_from_float64():
    # One part in 2^50 above a midpoint: rounding to float32 first would land on the midpoint and then go to even.
    normal = torch.arange(0x0080, 0x7F80, dtype=torch.int32).to(torch.int16).view(BF16).double()
    middle = (normal[:-1] + normal[1:]) / 2
    return wrong(cast(middle * (1 + 2.0**-50), BF16), normal[1:].to(BF16))


def cast_from_int32():
    # An int32 rounds once: 2^24 + 2^16 + 1 is above the midpoint between two bfloat16, and float32 cannot hold it.
    x = torch.tensor([0, 1, -1, 257, -257, 2**24 + 2**16 + 1, 2**31 - 1, -(2**31), 12345678], dtype=torch.int32)
    want = [0, 1, -1, 256, -256, 2**24 + 2**17, 2**31, -(2**31), 12320768]
    return wrong(cast(x, BF16), torch.tensor(want, dtype=torch.float64).to(BF16))


def cast_to_int32():
    x = CODES[(CODES.float().abs() < 2.0**31)]
    return wrong(cast(x, torch.int32), x.to(torch.int32))


def cast_truncating():
    x = midpoints()
    want = x.view(torch.int32).bitwise_and(-65536).view(torch.float32)
    return wrong(cast(x, BF16, truncate_kernel), torch.where(x.isnan(), x, want).to(BF16))


def constant():
    out = torch.zeros(16, dtype=BF16)
    try:
        constant_kernel[(1,)](out, B=16)
    except Exception:  # noqa: BLE001  triton 3.6 has no such constant without the shim
        return 16
    return wrong(out, torch.full((16,), 1.00390625 + 0.0078125).to(BF16))


# --- elementwise ----------------------------------------------------------------------------------------------------


@triton.jit
def binary_kernel(x, y, out, n, OP: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    a = tl.load(x + at, mask=at < n)
    b = tl.load(y + at, mask=at < n)
    if OP == "add":
        c = a + b
    elif OP == "sub":
        c = a - b
    elif OP == "mul":
        c = a * b
    elif OP == "div":
        c = a / b
    elif OP == "maximum":
        c = tl.maximum(a, b)
    elif OP == "minimum":
        c = tl.minimum(a, b)
    elif OP == "maximum_nan":
        c = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "minimum_nan":
        c = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "clamp":
        c = tl.clamp(a, tl.minimum(b, -b), tl.maximum(b, -b))
    elif OP == "where":
        c = tl.where(a < b, a, b)
    elif OP == "lt":
        c = a < b
    elif OP == "le":
        c = a <= b
    elif OP == "gt":
        c = a > b
    elif OP == "ge":
        c = a >= b
    elif OP == "eq":
        c = a == b
    else:
        c = a != b
    tl.store(out + at, c.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def unary_kernel(x, out, n, OP: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    a = tl.load(x + at, mask=at < n)
    if OP == "neg":
        c = -a
    elif OP == "abs":
        c = tl.abs(a)
    else:
        c = a * 3.0
    tl.store(out + at, c, mask=at < n)


@triton.jit
def fma_kernel(x, y, z, out, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.fma(tl.load(x + at), tl.load(y + at), tl.load(z + at)))


PAIRS = tuple(t.reshape(-1).contiguous() for t in torch.meshgrid(rich_codes(), rich_codes(), indexing="ij"))
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    # triton divides bfloat16 in float32, and the quotient of two bfloat16 is then rounded twice without harm
    "div": torch.div,
    "maximum": torch.fmax,
    "minimum": torch.fmin,
    "maximum_nan": torch.maximum,
    "minimum_nan": torch.minimum,
    "clamp": lambda a, b: torch.fmin(torch.fmax(a, -b.abs()), b.abs()),
    "where": lambda a, b: torch.where(a < b, a, b),
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
}


def binary(op):
    a, b = PAIRS
    want = BINARY[op](a, b)
    if op in {"maximum", "minimum", "maximum_nan", "minimum_nan", "clamp"}:
        # numpy, torch and PTX choose differently between -0 and +0; adding +0 makes them one
        want = want + 0.0
    got = torch.zeros(a.shape, dtype=torch.int8 if want.dtype == torch.bool else BF16)
    binary_kernel[(a.numel() // 4096,)](a, b, got, a.numel(), OP=op, B=4096)
    if got.dtype == torch.int8:
        return wrong(got.bool(), want)
    return wrong(got + 0.0 if op.startswith(("max", "min", "clamp")) else got, want)


def unary(op):
    want = {"neg": torch.neg, "abs": torch.abs, "triple": lambda x: x * 3.0}[op](CODES)
    if op == "neg" and not hasattr(InterpreterBuilder, "create_fneg"):
        want = 0.0 - CODES  # so says triton 3.6's language itself, on the GPU too: -(+0) is +0
    got = torch.zeros_like(CODES)
    unary_kernel[(16,)](CODES, got, CODES.numel(), OP=op, B=4096)
    return wrong(got, want)


def round_exactly(value):
    """Return the bfloat16 nearest to a Fraction, ties to even, by arithmetic on integers."""
    if value == 0:
        return 0.0
    exponent = -133  # the smallest subnormal is 2^-133
    while abs(value) >= Fraction(2) ** (exponent + 8):
        exponent += 1
    steps = round(value / Fraction(2) ** exponent)  # Python rounds a Fraction's ties to even
    return float(steps * Fraction(2) ** exponent) if abs(steps * Fraction(2) ** exponent) < 2**128 else float("inf")


def fma():
    rng = np.random.default_rng(2)
    x, y = (rng.integers(128, 256, 4096) * 2.0 ** rng.integers(-20, 20, 4096) for _ in range(2))
    # addends from far below the last bit of the product to far above it: the far ones decide ties
    z = rng.integers(-255, 256, 4096) * 2.0 ** rng.integers(-90, 40, 4096)
    exact = [Fraction(a) * Fraction(b) + Fraction(c) for a, b, c in zip(x, y, z, strict=True)]
    want = torch.tensor([round_exactly(value) for value in exact])
    got = torch.zeros(4096, dtype=BF16)
    fma_kernel[(1,)](*(torch.from_numpy(t).to(BF16) for t in (x, y, z)), got, B=4096)
    return wrong(got, want.to(BF16))


# --- dot, reductions, atomics, descriptors --------------------------------------------------------------------------


@triton.jit
def dot_kernel(x, y, out, B: tl.constexpr, PRECISION: tl.constexpr):
    rows = tl.arange(0, B)
    at = rows[:, None] * B + rows[None, :]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(y + at), input_precision=PRECISION))


def dot(a, b, precision="ieee"):
    out = torch.zeros(a.shape, dtype=torch.float32)
    dot_kernel[(1,)](a, b, out, B=a.shape[0], PRECISION=precision)
    return out


def dot_integers():
    # |sum| <= 64 * 256 * 256 = 2^22: exact in float32 whatever the order
    a, b = (torch.randint(-256, 257, (64, 64), generator=torch.Generator().manual_seed(s)).to(BF16) for s in (3, 4))
    return wrong(dot(a, b), (a.double() @ b.double()).float())


def dot_random():
    a, b = (torch.randn(64, 64, generator=torch.Generator().manual_seed(s)).to(BF16) for s in (5, 6))
    allowed = 64 * 2.0**-24 * (a.double().abs() @ b.double().abs())  # Higham's bound: any order of 64 additions
    return int(((dot(a, b).double() - a.double() @ b.double()).abs() > allowed).sum())


def dot_tf32():
    a, b = (torch.randn(32, 32, generator=torch.Generator().manual_seed(s)) for s in (7, 8))
    a, b = (t.mul(2**10).round_().mul_(1 + 2.0**-11) for t in (a, b))  # a bit that the tensor core does not read
    ta, tb = (t.view(torch.int32).bitwise_and(-8192).view(torch.float32).double() for t in (a, b))
    allowed = 32 * 2.0**-24 * (ta.abs() @ tb.abs())
    return int(((dot(a, b, "tf32").double() - ta @ tb).abs() > allowed).sum())


@triton.jit
def reduce_kernel(x, out, index, OP: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    rows = tl.arange(0, M)
    tile = tl.load(x + rows[:, None] * N + tl.arange(0, N)[None, :])
    if OP == "sum":
        tl.store(out + rows, tl.sum(tile, axis=1).to(tl.bfloat16))
    elif OP == "sum_all":
        tl.store(out, tl.sum(tile).to(tl.bfloat16))
    elif OP == "max":
        tl.store(out + rows, tl.max(tile, axis=1).to(tl.bfloat16))
    elif OP == "min":
        tl.store(out + rows, tl.min(tile, axis=1).to(tl.bfloat16))
    elif OP == "argmax":
        value, where = tl.max(tile, axis=1, return_indices=True)
        tl.store(out + rows, value.to(tl.bfloat16))
        tl.store(index + rows, where)
    else:
        scan = tl.cumsum(tile, axis=1) if OP == "cumsum" else tl.cumprod(tile, axis=1)
        tl.store(out + rows[:, None] * N + tl.arange(0, N)[None, :], scan.to(tl.bfloat16))


def halves(x):
    while x.shape[-1] > 1:
        x = x[..., : x.shape[-1] // 2] + x[..., x.shape[-1] // 2 :]
    return x[..., 0]


def scanned(x, op):
    columns = [x[:, 0]]
    for i in range(1, x.shape[1]):
        columns.append(op(columns[-1], x[:, i]))
    return torch.stack(columns, 1)


def reduction(op):
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(9)).to(BF16)
    if op == "sum":
        want = halves(x)
    elif op == "sum_all":
        x = x.mul(64).round_().clamp_(-1, 1)  # every partial sum is an integer below 256 here: exact in any order
        want = x.double().sum().to(BF16).reshape(1)
    elif op in {"max", "min"}:
        x[3, 5] = float("nan")  # a number wins over a NaN
        x[4] = float("nan")
        want = torch.stack([getattr(row[~row.isnan()], op)() if not row.isnan().all() else row[0] for row in x])
    elif op == "argmax":
        want = x.max(1).values
    else:
        # triton 3.6 scans in float32, on the GPU too; 3.9 in bfloat16
        dtype = torch.float32 if hasattr(tl.core, "_promote_bfloat16_to_float32") else BF16
        want = scanned(x.to(dtype), torch.add if op == "cumsum" else torch.mul).to(BF16)
    got, index = torch.zeros_like(want), torch.zeros(32, dtype=torch.int32)
    reduce_kernel[(1,)](x, got, index, OP=op, M=32, N=64)
    return wrong(got, want) + (wrong(index.long(), x.max(1).indices) if op == "argmax" else 0)


@triton.jit
def atomic_kernel(out, x, slots, old, B: tl.constexpr):
    at = tl.arange(0, B)
    value = tl.load(x + at)
    tl.store(old + at, tl.atomic_add(out + tl.load(slots + at), value, mask=value < 2.0))


def atomic_add():
    x = torch.randn(256, generator=torch.Generator().manual_seed(10)).to(BF16)
    slots = torch.randint(0, 16, (256,), generator=torch.Generator().manual_seed(11), dtype=torch.int32)
    want, before = torch.zeros(16, dtype=BF16), torch.zeros(256, dtype=BF16)
    for i, (value, slot) in enumerate(zip(x, slots.tolist(), strict=True)):
        if value < 2:
            before[i] = want[slot]
            want[slot] += value
    got, old = torch.zeros(16, dtype=BF16), torch.zeros(256, dtype=BF16)
    try:
        atomic_kernel[(1,)](got, x, slots, old, B=256)
    except Exception:  # noqa: BLE001  without the shim it raises, which is the fault
        return 16
    return wrong(got, want) + wrong(torch.where(x < 2, old, 0), before)


@triton.jit
def scalar_mask_kernel(out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, at, mask=(at < 8) & (n > 3))


def scalar_mask():
    out = torch.full((16,), -1, dtype=torch.int32)
    scalar_mask_kernel[(1,)](out, 5, B=16)
    return wrong(out, torch.where(torch.arange(16) < 8, torch.arange(16), -1).to(torch.int32))


@triton.jit
def descriptor_kernel(src, dst, M: tl.constexpr, N: tl.constexpr):
    dst.store([0, 0], src.load([0, 0]))


def descriptor(padding):
    x = CODES[: 24 * 24].reshape(24, 24).contiguous()
    out = torch.zeros(32, 32, dtype=BF16)
    src, dst = TensorDescriptor.from_tensor(x, [32, 32], padding=padding), TensorDescriptor.from_tensor(out, [32, 32])
    descriptor_kernel[(1,)](src, dst, M=32, N=32)
    want = torch.full((32, 32), 0.0 if padding == "zero" else float("nan")).to(BF16)
    want[:24, :24] = x
    return wrong(out, want)


CHECKS = {
    "cast to float32": cast_to_float32,
    "cast to float16": cast_to_float16,
    "cast to float64": cast_to_float64,
    "cast to int32": cast_to_int32,
    "cast from float32, midpoints": cast_from_float32,
    "cast from float32, random bits": cast_from_float32_random_bits,
    "cast from float16": cast_from_float16,
    "cast from float64": cast_from_float64,
    "cast from int32": cast_from_int32,
    "cast truncating": cast_truncating,
    "constant": constant,
    **{op: lambda op=op: binary(op) for op in BINARY},
    **{op: lambda op=op: unary(op) for op in ("neg", "abs", "triple")},
    "fma": fma,
    "dot of integers": dot_integers,
    "dot of random numbers": dot_random,
    "dot in tf32": dot_tf32,
    **{op: lambda op=op: reduction(op) for op in ("sum", "sum_all", "max", "min", "argmax", "cumsum", "cumprod")},
    "atomic add": atomic_add,
    "mask of a vector and a scalar": scalar_mask,
    "descriptor, zero padding": lambda: descriptor("zero"),
    "descriptor, nan padding": lambda: descriptor("nan"),
}

if __name__ == "__main__":
    faults = {}
    if sys.argv[1] == "shim":
        from rooftest.interpreter import install

        faults = install()
    counts = {}
    for name, check in CHECKS.items():
        try:
            counts[name] = check()
        except Exception as error:  # noqa: BLE001  an operation that raises is wrong in every value
            counts[name] = repr(error)[:300]
    sys.stdout.write(json.dumps({"faults": faults, "wrong": counts}))
