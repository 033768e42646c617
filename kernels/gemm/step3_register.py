"""Step 3: a tile of C in the registers of each thread, and 16 bytes a load.

Against step 2: a thread owns 8 x 8 elements of C. For each k it reads 8 elements of A and 8 of B from shared memory
and does 64 multiply-adds with them, an outer product in registers: 0.25 loads a multiply-add instead of 2, and
because four neighbours travel in one 16-byte load, 4 load instructions for 64 FMAs. The FMA units become the limit.
The tile in shared memory grows with it: a [128, 128] tile of C reads BM BN / (2 (BM + BN)) = 32 FLOP a byte in float32.
Loads from device memory are 16 bytes a thread too (where addresses and sizes allow), and the next tiles are on
their way into registers while the present ones are multiplied.

The 8 x 8 elements are four blocks of 4 x 4 at a distance of half a tile: then the lanes that read B together read
neighbouring 16 bytes, which the 32 banks of shared memory deliver at full rate; 8 x 8 in one block would not be so.
"""

from typing import NamedTuple

import torch
import triton
from rooftest_kernels.gemm.operands import (
    POINTERS,
    SIZES_AND_STRIDES,
    addends,
    index_type,
    is_plain,
    near_dimension,
    operands,
    vector,
)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Config(NamedTuple):
    """Tile [BM, BN] of C, BK_bytes of K at a time, warps a program; BM BN / (32 num_warps) elements of C a thread."""

    BM: int
    BN: int
    BK_bytes: int
    num_warps: int


CONFIGS = {
    "16x32x32B": Config(16, 32, 32, num_warps=1),
    "64x64x32B": Config(64, 64, 32, num_warps=4),
    "128x128x32B": Config(128, 128, 32, num_warps=8),
    "128x128x64B": Config(128, 128, 64, num_warps=8),
}


@gluon.constexpr_function
def vectors(rows, columns, columns_first, vector, num_warps):
    """Return the layout in which a thread loads `vector` neighbours of a [rows, columns] tile along one dimension."""
    if columns_first:
        lanes = min(32, max(1, columns // vector))
        return gl.BlockedLayout([1, vector], [32 // lanes, lanes], [num_warps, 1], [1, 0])
    lanes = min(32, max(1, rows // vector))
    return gl.BlockedLayout([vector, 1], [lanes, 32 // lanes], [1, num_warps], [0, 1])


@gluon.constexpr_function
def blocks(num_warps):
    """Return the layout of C: 4 x 4 elements a thread, 4 x 8 threads a warp, warps in two columns; then it repeats."""
    warps_n = min(2, num_warps)
    return gl.BlockedLayout([4, 4], [4, 8], [num_warps // warps_n, warps_n], [1, 0])


@gluon.jit
def known(rows, columns, ALONG_ROWS: gl.constexpr, VECTOR: gl.constexpr):
    """Return the strides of a matrix, so that the compiler sees where VECTOR neighbours can be one load."""
    if VECTOR == 1:
        return rows, columns
    elif ALONG_ROWS:  # noqa: RET505  (the compiler needs all branches where a constant decides the type)
        return rows // VECTOR * VECTOR, 1
    else:
        return 1, columns // VECTOR * VECTOR


@gluon.jit(do_not_specialize=SIZES_AND_STRIDES, do_not_specialize_on_alignment=POINTERS)
def gemm_register(
    a_ptr, stride_az, stride_am, stride_ak,
    b_ptr, stride_bz, stride_bk, stride_bn,
    c_ptr, stride_cz, stride_cm, stride_cn,
    c0_ptr, stride_c0z, stride_c0m, stride_c0n,
    bias_ptr, stride_bias, bias_size,
    M, N, k_vectors, alpha, beta,
    A_ALONG_K: gl.constexpr, B_ALONG_N: gl.constexpr, VECTOR: gl.constexpr, PLAIN: gl.constexpr,
    INDEX: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
):  # fmt: skip
    """Compute one [BM, BN] tile of one batch element of C; the two flags say how A and B lie in memory.

    VECTOR is the number of elements that a thread loads at a time: those of 16 bytes, where all of A, B, C and C0 lie
    so, else 1; k_vectors of them are K. PLAIN: there is no alpha, C0 or bias. INDEX is the integer type of an offset
    within a matrix.
    """
    K = k_vectors * VECTOR  # K // VECTOR * VECTOR would say the same and take one register too many
    tiles_n = gl.cdiv(N, BN)
    tiles = gl.cdiv(M, BM) * tiles_n
    tile = gl.program_id(0) % tiles
    z = (gl.program_id(0) // tiles).to(gl.int64)
    m0 = (tile // tiles_n) * BM
    n0 = (tile % tiles_n) * BN

    a_layout: gl.constexpr = vectors(BM, BK, A_ALONG_K, VECTOR, gl.num_warps())
    b_layout: gl.constexpr = vectors(BK, BN, B_ALONG_N, VECTOR, gl.num_warps())
    a_m = m0 + gl.arange(0, BM, gl.SliceLayout(1, a_layout))[:, None]
    a_k = gl.arange(0, BK, gl.SliceLayout(0, a_layout))[None, :]
    b_k = gl.arange(0, BK, gl.SliceLayout(1, b_layout))[:, None]
    b_n = n0 + gl.arange(0, BN, gl.SliceLayout(0, b_layout))[None, :]
    a_ptr += z * stride_az
    b_ptr += z * stride_bz
    if VECTOR > 1:  # what the host has checked, in forms that the compiler understands
        a_ptr = gl.multiple_of(a_ptr, 16)
        b_ptr = gl.multiple_of(b_ptr, 16)
        N = N // VECTOR * VECTOR
        if not A_ALONG_K:
            M = M // VECTOR * VECTOR
    stride_am, stride_ak = known(stride_am, stride_ak, A_ALONG_K, VECTOR)
    stride_bk, stride_bn = known(stride_bk, stride_bn, B_ALONG_N, VECTOR)
    # The offsets in a tile stay; the two pointers walk along K, in int64 because a step times a stride may pass 2^31.
    a_offsets = a_m.to(INDEX) * stride_am + a_k.to(INDEX) * stride_ak
    b_offsets = b_k.to(INDEX) * stride_bk + b_n.to(INDEX) * stride_bn
    step = gl.to_tensor(BK).to(gl.int64)

    # In float32, and so that 4 neighbours of a column of A, and of a row of B, are 16 bytes; 4 words of padding keep
    # them aligned, and columns written by lanes that loaded along K fall on different banks.
    a_shared_layout: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[BM, 4]], [BM, BK], [0, 1])
    b_shared_layout: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[BN, 4]], [BK, BN], [1, 0])
    a_shared = gl.allocate_shared_memory(gl.float32, [BM, BK], a_shared_layout)
    b_shared = gl.allocate_shared_memory(gl.float32, [BK, BN], b_shared_layout)

    layout: gl.constexpr = blocks(gl.num_warps())
    acc = gl.zeros([BM, BN], gl.float32, layout)
    a = gl.load(a_ptr + a_offsets, mask=(a_m < M) & (a_k < K), other=0.0)
    b = gl.load(b_ptr + b_offsets, mask=(b_k < K) & (b_n < N), other=0.0)
    for k0 in range(0, K, BK):
        a_shared.store(a.to(gl.float32))
        b_shared.store(b.to(gl.float32))
        # The next tiles; past the end nothing is loaded.
        a_ptr += step * stride_ak
        b_ptr += step * stride_bk
        a = gl.load(a_ptr + a_offsets, mask=(a_m < M) & (a_k < K - k0 - BK), other=0.0)
        b = gl.load(b_ptr + b_offsets, mask=(b_k < K - k0 - BK) & (b_n < N), other=0.0)
        for k in gl.static_range(BK):
            acc += a_shared.slice(k, 1, dim=1).load(layout) * b_shared.slice(k, 1, dim=0).load(layout)

    # All in float32; the store below is the only rounding to C's dtype.
    m = m0 + gl.arange(0, BM, gl.SliceLayout(1, layout))[:, None]
    n = n0 + gl.arange(0, BN, gl.SliceLayout(0, layout))[None, :]
    inside = (m < M) & (n < N)
    m, n = m.to(INDEX), n.to(INDEX)
    c_ptr += z * stride_cz
    c0_ptr += z * stride_c0z
    if VECTOR > 1:
        c_ptr = gl.multiple_of(c_ptr, 16)
        c0_ptr = gl.multiple_of(c0_ptr, 16)
    stride_cm, stride_cn = known(stride_cm, stride_cn, True, VECTOR)
    stride_c0m, stride_c0n = known(stride_c0m, stride_c0n, True, VECTOR)
    if not PLAIN:  # what is absent is masked, so not read, and 0
        acc *= alpha
        c0_ptrs = c0_ptr + (m * stride_c0m + n * stride_c0n)
        acc += beta * gl.load(c0_ptrs, mask=inside & (beta != 0), other=0.0).to(gl.float32)
        acc += gl.load(bias_ptr + n * stride_bias, mask=n < bias_size, other=0.0).to(gl.float32)
    gl.store(c_ptr + (m * stride_cm + n * stride_cn), acc.to(c_ptr.dtype.element_ty), mask=inside)


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
    config: a name out of CONFIGS; without one, the larger tile where C fills the device with it.
    Raises ValueError where shapes or dtypes do not fit.
    """
    ops = operands(a, b, out, beta, c0, bias, DTYPES)
    if ops.B * ops.M * ops.N == 0:
        return
    if config is None:  # 64 tiles of 128 x 128 would leave half of 132 SMs idle
        config = "128x128x32B" if ops.M * ops.N > 1024 * 1024 else "64x64x32B"
    BM, BN, BK_bytes, num_warps = CONFIGS[config] if isinstance(config, str) else config
    width = vector(ops.a, ops.b, rows=(ops.out, ops.c0), K=ops.K)
    gemm_register[(ops.B * triton.cdiv(ops.M, BM) * triton.cdiv(ops.N, BN),)](
        ops.a, *ops.a.stride(), ops.b, *ops.b.stride(), ops.out, *ops.out.stride(), *addends(ops),
        ops.M, ops.N, ops.K // width, alpha, beta,
        A_ALONG_K=near_dimension(ops.a) == 2, B_ALONG_N=near_dimension(ops.b) == 2,
        VECTOR=width, PLAIN=width > 1 and is_plain(ops, alpha), INDEX=index_type(ops.a, ops.b, ops.out, ops.c0),
        BM=BM, BN=BN, BK=BK_bytes // a.element_size(), num_warps=num_warps,
    )  # fmt: skip
