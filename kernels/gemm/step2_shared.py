"""Step 2: coalesced loads and a tile in shared memory. Gluon, because the threads must be told where to stand.

Against step 1: the threads of a program load a [BM, BK] tile of A and a [BK, BN] tile of B together, each element
once, put them into shared memory, and all read them there. Device memory (or L2) delivers BK (BM + BN) elements for
2 BM BN BK FLOP, so in float32 BM BN / (2 (BM + BN)) FLOP a byte: 8 at 32 x 32, against 0.25.
The loads are coalesced: the 32 lanes of a warp read neighbours in memory, along K or across it, as the operand lies.
What stays: one element of C a thread, so each multiply-add still needs two loads, now from shared memory (one
element of A that the whole warp shares, 32 neighbours of B). Those loads, not the FMA units, are the limit.

Where step 1 has a loop over K, this has one over tiles of K, and inside it one over BK that is unrolled.
Gluon inserts the barriers between writing a tile, reading it, and writing the next.
"""

from typing import NamedTuple

import torch
import triton
from rooftest_kernels.gemm.operands import POINTERS, SIZES_AND_STRIDES, addends, near_dimension, operands
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Config(NamedTuple):
    """Tile [BM, BN] of C, BK elements of K at a time; a thread for each element of C, so BM BN / 32 warps."""

    BM: int
    BN: int
    BK: int


CONFIGS = {"8x32x32": Config(8, 32, 32), "16x16x16": Config(16, 16, 16), "32x32x32": Config(32, 32, 32)}


@gluon.constexpr_function
def along(rows, columns, columns_first, num_warps):
    """Return the layout that walks a [rows, columns] tile along one dimension, one element a thread at a time."""
    if columns_first:
        return gl.BlockedLayout([1, 1], [max(1, 32 // columns), min(32, columns)], [num_warps, 1], [1, 0])
    return gl.BlockedLayout([1, 1], [min(32, rows), max(1, 32 // rows)], [1, num_warps], [0, 1])


@gluon.jit(do_not_specialize=SIZES_AND_STRIDES, do_not_specialize_on_alignment=POINTERS)
def gemm_shared(
    a_ptr, stride_az, stride_am, stride_ak,
    b_ptr, stride_bz, stride_bk, stride_bn,
    c_ptr, stride_cz, stride_cm, stride_cn,
    c0_ptr, stride_c0z, stride_c0m, stride_c0n,
    bias_ptr, stride_bias, bias_size,
    M, N, K, alpha, beta,
    A_ALONG_K: gl.constexpr, B_ALONG_N: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
):  # fmt: skip
    """Compute one [BM, BN] tile of one batch element of C; the two flags say how A and B lie in memory."""
    tiles_n = gl.cdiv(N, BN)
    tiles = gl.cdiv(M, BM) * tiles_n
    tile = gl.program_id(0) % tiles
    z = (gl.program_id(0) // tiles).to(gl.int64)
    m0 = (tile // tiles_n) * BM
    n0 = (tile % tiles_n) * BN

    # Who loads what: a layout each for A and B, as they lie.
    a_layout: gl.constexpr = along(BM, BK, A_ALONG_K, gl.num_warps())
    b_layout: gl.constexpr = along(BK, BN, B_ALONG_N, gl.num_warps())
    a_m = m0 + gl.arange(0, BM, gl.SliceLayout(1, a_layout))[:, None]
    a_k = gl.arange(0, BK, gl.SliceLayout(0, a_layout))[None, :]
    b_k = gl.arange(0, BK, gl.SliceLayout(1, b_layout))[:, None]
    b_n = n0 + gl.arange(0, BN, gl.SliceLayout(0, b_layout))[None, :]
    a_ptrs = a_ptr + z * stride_az + a_m.to(gl.int64) * stride_am + a_k.to(gl.int64) * stride_ak
    b_ptrs = b_ptr + z * stride_bz + b_k.to(gl.int64) * stride_bk + b_n.to(gl.int64) * stride_bn
    step = gl.to_tensor(BK).to(gl.int64)

    # The tiles are kept in float32. One word of padding a row of 32 banks, so that a column lies in 32 banks too.
    a_shared_layout: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[BK, 1]], [BM, BK], [1, 0])
    b_shared_layout: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[BN, 1]], [BK, BN], [1, 0])
    a_shared = gl.allocate_shared_memory(gl.float32, [BM, BK], a_shared_layout)
    b_shared = gl.allocate_shared_memory(gl.float32, [BK, BN], b_shared_layout)

    # Who computes what: neighbours along N, so that the store to C is coalesced as well.
    layout: gl.constexpr = along(BM, BN, True, gl.num_warps())
    acc = gl.zeros([BM, BN], gl.float32, layout)
    for k0 in range(0, K, BK):
        a = gl.load(a_ptrs, mask=(a_m < M) & (a_k < K - k0), other=0.0)
        b = gl.load(b_ptrs, mask=(b_k < K - k0) & (b_n < N), other=0.0)
        a_shared.store(a.to(gl.float32))
        b_shared.store(b.to(gl.float32))
        for k in gl.static_range(BK):
            acc += a_shared.slice(k, 1, dim=1).load(layout) * b_shared.slice(k, 1, dim=0).load(layout)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk

    # All in float32; the store below is the only rounding to C's dtype. What is absent is masked: not read, and 0.
    m = m0 + gl.arange(0, BM, gl.SliceLayout(1, layout))[:, None]
    n = n0 + gl.arange(0, BN, gl.SliceLayout(0, layout))[None, :]
    inside = (m < M) & (n < N)
    m, n = m.to(gl.int64), n.to(gl.int64)
    acc *= alpha
    c0_ptrs = c0_ptr + z * stride_c0z + m * stride_c0m + n * stride_c0n
    acc += beta * gl.load(c0_ptrs, mask=inside & (beta != 0), other=0.0).to(gl.float32)
    acc += gl.load(bias_ptr + n * stride_bias, mask=n < bias_size, other=0.0).to(gl.float32)
    c_ptrs = c_ptr + z * stride_cz + m * stride_cm + n * stride_cn
    gl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=inside)


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
    config: a name out of CONFIGS, or 32x32x32. Raises ValueError where shapes or dtypes do not fit.
    """
    ops = operands(a, b, out, beta, c0, bias, DTYPES)
    if ops.B * ops.M * ops.N == 0:
        return
    BM, BN, BK = CONFIGS[config] if isinstance(config, str) else config or CONFIGS["32x32x32"]
    gemm_shared[(ops.B * triton.cdiv(ops.M, BM) * triton.cdiv(ops.N, BN),)](
        ops.a, *ops.a.stride(), ops.b, *ops.b.stride(), ops.out, *ops.out.stride(), *addends(ops),
        ops.M, ops.N, ops.K, alpha, beta,
        A_ALONG_K=near_dimension(ops.a) == 2, B_ALONG_N=near_dimension(ops.b) == 2,
        BM=BM, BN=BN, BK=BK, num_warps=BM * BN // 32,
    )  # fmt: skip
