"""GEMM: C = alpha A B + beta C0 + bias, accumulated in fp32, rounded once.

A (M, K), B (K, N), C and C0 (M, N), bias (N); with the optional axis B a batch of them, bias shared. Sizes from 0. A product
over K = 0 is zero. C0 is not read where beta is 0, so whatever it holds (NaN too) has no effect.
"""

from __future__ import annotations

from typing import Any

from rooftest.spec import FLOATS, Axis, Spec, Workload, tensor


def reference(values: dict[str, Any], params: dict[str, float], contract: Any) -> dict[str, Any]:
    """C before its last rounding, on error-carrying values."""
    raise NotImplementedError


# Llama-3.1-8B: hidden 4096, 32 query and 8 key-value heads of 128 (QKV 6144 wide), MLP 14336, gate and up fused (28672).
# Weights are stored (N, K), activations (T, K): layout nt. Source: the model's public config.json.
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
    # Exact binary fractions and one that is none; beta matters with c0 only.
    params={"alpha": (1.0, 2.0, 0.5, -1.5, 0.3, 0.0), "beta": (0.0, 1.0, -0.5, 0.7)},
    outputs={"c": tensor("[B] M N")},
    layouts=("nn", "nt", "tn", "tt"),
    laid_out=("a", "b"),
    contraction="K",
    precisions=FLOATS,
    reference=reference,
    flop=lambda s: 2 * s.B * s.M * s.N * s.K,
    workloads=(*_SQUARE, *_MODEL, *_OTHER),
    peers={
        "torch.matmul": {
            "call": "rooftest_kernels.gemm.torch_matmul:matmul",
            "args": {"c": "out"},
            "devices": ["cuda", "cpu"],
            "strides": ["dense", "padded", "ragged", "stepped", "offset"],
            "peer": True,
        },
    },
)
