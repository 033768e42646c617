"""GEMM: C = alpha A B + beta C0 + bias, accumulated in fp32, rounded once.

A (M, K), B (K, N), C and C0 (M, N), bias (N); with the optional axis B a batch of them, bias shared. Sizes from 0. A
product over K = 0 is zero. C0 is not read where beta is 0, so whatever it holds (NaN too) has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from rooftest.engines import Contract
from rooftest.errorbar import Value, bounded, lift, new_term, noisy
from rooftest.laws import changed, not_scaled
from rooftest.primitives import either, matmul, total
from rooftest.spec import FLOATS, Axis, Large, Law, Spec, Workload, tensor


def reference(
    given: Mapping[str, Value | torch.Tensor], params: Mapping[str, float], contract: Contract
) -> dict[str, Value]:
    """C before its last rounding, on error-carrying values; the addends may come in any order, or first.

    alpha = 1 and beta = 1 add no rounding. A kernel may scale the sum by alpha, or in fp32 one factor of each product,
    as the reference BLAS does and cuBLAS for few rows; where partial sums may be rounded, before or after. With alpha =
    0 BLAS need not read A and B: where they hold NaN or infinity, C with and without their trace are both right.
    """
    values = {name: lift(x) for name, x in given.items()}
    alpha, beta = params.get("alpha", 1.0), params.get("beta", 0.0)
    addends = []
    if beta != 0 and "c0" in values:
        addends.append(values["c0"] if beta == 1 else values["c0"] * beta)
    if "bias" in values:
        addends.append(values["bias"])
    # A kernel may start its accumulator from the addends, where alpha then scales nothing or a factor. A power of two
    # rounds nowhere, so that it may stand anywhere: on A, or as here on the sum and inversely on what it starts from.
    start, power = total(*addends) if addends else None, math.frexp(abs(alpha))[0] == 0.5
    product = matmul(values["a"], values["b"], contract, Value(start.v / alpha) if start and power else None)
    c = total(product if alpha == 1 else product * alpha, *addends)
    # A power of two matters to the range of rounded partial sums only. A scaled factor is none of tf32: who scales it
    # reads all of it, as cuBLAS does for few rows.
    if alpha != 0 and (not power or (contract.partials is not None and abs(alpha) != 1)):
        a = Value(values["a"].v * alpha) if power else values["a"] * alpha
        other = total(matmul(a, values["b"], replace(contract, reads=None), start), *addends)
        c = either(c, other) if power else _shared_by_lines(either(c, other), a, values["b"])
    if alpha == 0:
        c = either(total(Value(torch.zeros_like(product.v)), *addends), c)
    return {"c": c}


def _shared_by_lines(c: Value, a: Value, b: Value) -> Value:
    """C, where the error of each factor of A, or else of B, that was scaled may be in a whole row, or column, of C.

    With data of random sign such errors do not correlate, one element with another, so each counts in full for its
    element; but as few of them make up many elements (K = 1: one a row), their squares scatter, and lean to the sign of
    C, as if all of a row or column were one. Declared as that one, to both sides: a kernel scales either factor.
    """
    if bounded() or noisy() is not None:
        return c
    size = torch.copysign((a.s2 @ b.v**2).sqrt(), c.v)
    batch = (True,) * (c.v.dim() - 2)
    rows, columns = (size, (*batch, True, False)), (size, (*batch, False, True))
    return Value(c.v, c.b, c.s2, {**c.shared, new_term(): rows, new_term(): columns})


def _scaled(values: dict[str, Any], factor: float) -> dict[str, Any]:
    """All terms of the sum times a power of two (or -1): the product through A alone."""
    return {name: value if name == "b" else value * factor for name, value in values.items()}


def _nan_in(values: dict[str, Any], name: str) -> dict[str, Any]:
    """A NaN in the middle of a matrix, the first one of a batch."""
    matrix = values[name]
    while matrix.dim() > 2:
        matrix = matrix[0]
    matrix[matrix.shape[0] // 2, matrix.shape[1] // 2] = math.nan
    return values


def _leaked(before: Any, after: Any, axis: int) -> Any:
    """Where a NaN is missing in its own row (axis -2) or column of C, and where any other element changed."""
    own = torch.zeros_like(after, dtype=torch.bool)
    matrix = own[0] if own.dim() > 2 else own
    matrix.select(axis, matrix.shape[axis] // 2).fill_(value=True)
    return torch.where(own, ~after.isnan(), changed(before, after))


LAWS = (
    Law(
        "negate",
        "A, C0 and bias times -1 give C times -1: rounding to nearest and truncation are symmetric",
        lambda values: _scaled(values, -1.0),
        lambda before, after: not_scaled(before, after, -1.0),
    ),
    Law(
        "double",
        "A, C0 and bias times 2 give C times 2: a power of two moves the exponent only",
        lambda values: _scaled(values, 2.0),
        lambda before, after: not_scaled(before, after, 2.0),
    ),
    Law(
        "nan-row",
        "a NaN in one row of A fills that row of C and reaches no other",
        lambda values: _nan_in(values, "a"),
        lambda before, after: _leaked(before, after, -2),
        unless=("alpha", 0.0),
    ),
    Law(
        "nan-column",
        "a NaN in one column of B fills that column of C and reaches no other",
        lambda values: _nan_in(values, "b"),
        lambda before, after: _leaked(before, after, -1),
        unless=("alpha", 0.0),
    ),
)

# Llama-3.1-8B: hidden 4096, 32 query and 8 key-value heads of 128 (QKV 6144 wide), MLP 14336, gate and up fused
# (28672). Weights are stored (N, K), activations (T, K): layout nt. Source: the model's public config.json.
_LLAMA_8B = {"qkv": (6144, 4096), "out": (4096, 4096), "gate-up": (28672, 4096), "down": (4096, 14336)}

_SQUARE = tuple(
    Workload(f"square-{n}", {"M": n, "N": n, "K": n}, "nn", smoke=n in (2048, 4096, 8192))
    for n in (1024, 2048, 4096, 8192, 16384)
)
_MODEL = tuple(
    Workload(
        f"llama-3.1-8b-{name}-{t}",
        {"M": t, "N": n, "K": k},
        "nt",
        smoke=(name, t) in (("gate-up", 1), ("gate-up", 16), ("qkv", 4096)),
    )
    for name, (n, k) in _LLAMA_8B.items()
    for t in (1, 16, 256, 4096)
)
_OTHER = (
    Workload("batched-8x1024", {"B": 8, "M": 1024, "N": 1024, "K": 1024}, "nn", smoke=True),
    Workload("odd-4093", {"M": 4096, "N": 4096, "K": 4093}, "nn"),  # 4093 is prime: no vector width, no tile divides it
)

# 65664 x 32768: past 2^31 by one tile of 128 rows. The largest case stands first, so that the shared memory grows once.
_LARGE = (
    # Rows 2^26 + 8 apart: row 32 of 40 starts past 2^31, and on 16 bytes, as bulk copies ask.
    Large("pitch", {"M": 40, "N": 40, "K": 40}, "nn", pitch=2**26 + 8),
    Large("c-unsigned", {"M": 131200, "N": 32768, "K": 16}, "nn"),  # past 2^32
    Large("c0", {"M": 65664, "N": 32768, "K": 16}, "nn", given=("c0",), params={"beta": 1.0}),
    Large("c", {"M": 65664, "N": 32768, "K": 16}, "nn"),
    Large("a", {"M": 65664, "N": 16, "K": 32768}, "nn"),
    Large("a-transposed", {"M": 65664, "N": 16, "K": 32768}, "tn"),
    Large("b", {"M": 16, "N": 65664, "K": 32768}, "nn"),
    Large("b-transposed", {"M": 16, "N": 65664, "K": 32768}, "nt"),
    Large("batch", {"B": 513, "M": 2048, "N": 2048, "K": 16}, "nn"),
)

SPEC = Spec(
    op="gemm",
    version=1,
    axes={"B": Axis(0, 65535), "M": Axis(0, 2**20), "N": Axis(0, 2**20), "K": Axis(0, 2**20)},
    optional_axes=("B",),
    inputs={
        "a": tensor("[B] M K"),
        "b": tensor("[B] K N"),
        "c0": tensor("[B] M N", optional=True, unread_if=("beta", 0.0)),
        "bias": tensor("N", optional=True),
    },
    # Exact binary fractions and one that is none; beta matters with c0 only. Any other number up to 2^20 too: with that
    # no sum of what is drawn overflows in float32, and none of its scaled factors is below the normal numbers.
    params={"alpha": (1.0, 2.0, 0.5, -1.5, 0.3, 0.0), "beta": (0.0, 1.0, -0.5, 0.7)},
    free={"alpha": 20, "beta": 20},
    outputs={"c": tensor("[B] M N")},
    layouts=("nn", "nt", "tn", "tt"),
    laid_out=("a", "b"),
    contraction="K",
    independent="M",
    tokens=("B", "M"),  # as in a linear layer, whose activations have a row for each token
    separate=("B", "M", "N"),
    large=_LARGE,
    precisions=FLOATS,
    reference=reference,
    flop=lambda s: 2 * s.B * s.M * s.N * s.K,
    workloads=(*_SQUARE, *_MODEL, *_OTHER),
    laws=LAWS,
    # torch's products with C0 are no GEMM of this contract (docs/found.md), so its rows take none.
    peers={
        "torch.matmul": {
            "call": "rooftest_kernels.gemm.torch_matmul:matmul",
            "args": {"c": "out"},
            "strides": ["dense", "padded", "ragged", "stepped", "offset", "broadcast", "transposed"],
            "without": ["B", "c0"],
            "claims": ["deterministic", "capturable", "stream-safe"],
            "peer": True,
        },
        # torch's flag against reduced-precision reductions does not reach its batched product.
        "torch.bmm": {
            "call": "rooftest_kernels.gemm.torch_matmul:matmul",
            "args": {"c": "out"},
            "strides": ["dense", "padded", "ragged", "stepped", "offset", "broadcast", "transposed"],
            "at_least": {"B": 1},
            "without": ["c0"],
            "contract": "partials",
            "claims": ["deterministic", "capturable"],  # not stream-safe: docs/found.md, alpha = 0
            "peer": True,
        },
        "torch.matmul-cpu": {
            "call": "rooftest_kernels.gemm.torch_matmul:matmul_cpu",
            "args": {"c": "out"},
            "devices": ["cpu"],
            "strides": ["dense", "padded", "ragged", "stepped", "offset", "broadcast", "transposed"],
            "claims": ["deterministic"],
            "peer": True,
        },
    },
)
