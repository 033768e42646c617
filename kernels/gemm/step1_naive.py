"""Step 1: the definition. One thread, one element of C; for each k two loads from device memory, one multiply-add.

A multiply-add is 2 FLOP and asks for two elements: 8 bytes in float32, so 0.25 FLOP a byte, 0.5 in a 16-bit dtype.
Without caches, 4.8 TB/s of device memory would feed 1.2 TFLOP/s of float32, where the FMA units could do 67. The
caches do help (neighbours ask for the same elements at nearly the same time), so the limit is how fast the load units
answer: two load instructions stand beside every FMA. All later steps are about getting more FLOP out of a byte.

Triton has no threads, so they are said in the sizes: a [BM, BN] tile has exactly as many elements as the program has
threads, and both loads have the shape of the tile, one element a thread.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from rooftest_kernels.gemm.operands import POINTERS, SIZES_AND_STRIDES, addends, operands

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Config(NamedTuple):
    """Tile [BM, BN] of C: a thread for each of its elements, so BM BN / 32 warps."""

    BM: int
    BN: int


CONFIGS = {"16x16": Config(16, 16), "32x32": Config(32, 32)}


@triton.jit(do_not_specialize=SIZES_AND_STRIDES, do_not_specialize_on_alignment=POINTERS)
def gemm_naive(
    a_ptr, stride_az, stride_am, stride_ak,
    b_ptr, stride_bz, stride_bk, stride_bn,
    c_ptr, stride_cz, stride_cm, stride_cn,
    c0_ptr, stride_c0z, stride_c0m, stride_c0n,
    bias_ptr, stride_bias, bias_size,
    M, N, K, alpha, beta,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute one [BM, BN] tile of one batch element of C, one element a thread."""
    tiles_n = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * tiles_n
    tile = tl.program_id(0) % tiles
    z = (tl.program_id(0) // tiles).to(tl.int64)
    m = ((tile // tiles_n) * BM + tl.arange(0, BM))[:, None]
    n = ((tile % tiles_n) * BN + tl.arange(0, BN))[None, :]
    inside = (m < M) & (n < N)
    m, n = m.to(tl.int64), n.to(tl.int64)  # an index times a stride may pass 2^31

    # Each of the two has the shape of the tile: row m of A for every n, column n of B for every m.
    a_ptrs = tl.broadcast_to(a_ptr + z * stride_az + m * stride_am, (BM, BN))
    b_ptrs = tl.broadcast_to(b_ptr + z * stride_bz + n * stride_bn, (BM, BN))
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(K):
        a = tl.load(a_ptrs, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(b_ptrs, mask=inside, other=0.0).to(tl.float32)
        acc += a * b
        a_ptrs += stride_ak
        b_ptrs += stride_bk

    # All in float32; the store below is the only rounding to C's dtype. What is absent is masked: not read, and 0.
    acc *= alpha
    c0_ptrs = c0_ptr + z * stride_c0z + m * stride_c0m + n * stride_c0n
    acc += beta * tl.load(c0_ptrs, mask=inside & (beta != 0), other=0.0).to(tl.float32)
    acc += tl.load(bias_ptr + n * stride_bias, mask=n < bias_size, other=0.0).to(tl.float32)
    c_ptrs = c_ptr + z * stride_cz + m * stride_cm + n * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=inside)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor,
    alpha: float = 1.0,
    beta: float = 0.0,
    c0: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    config: str | Config | None = None,
) -> None:
    """Write alpha A B + beta C0 + bias to out, accumulated in float32 and rounded once.

    a: (M, K) or (B, M, K); b: (K, N) or (B, K, N); out, c0: (M, N) or (B, M, N); bias: (N,); any strides.
    config: a name out of CONFIGS, or 16x16. Raises ValueError where shapes or dtypes do not fit.
    """
    ops = operands(a, b, out, beta, c0, bias, DTYPES)
    if ops.B * ops.M * ops.N == 0:
        return
    BM, BN = CONFIGS[config] if isinstance(config, str) else config or CONFIGS["16x16"]
    gemm_naive[(ops.B * triton.cdiv(ops.M, BM) * triton.cdiv(ops.N, BN),)](
        ops.a, *ops.a.stride(), ops.b, *ops.b.stride(), ops.out, *ops.out.stride(), *addends(ops),
        ops.M, ops.N, ops.K, alpha, beta,
        BM=BM, BN=BN, num_warps=BM * BN // 32,
    )  # fmt: skip
