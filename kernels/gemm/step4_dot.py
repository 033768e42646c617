"""Step 4: tensor cores through `tl.dot`, in plain Triton.

Against step 3: the multiply-adds leave the FMA units. `tl.dot` becomes `wgmma` on Hopper (`mma` before it), where one
SM does 4096 dense bfloat16 FLOP a clock; its FMA units do 256 in float32.
The tile grows, because so fast an engine must be fed: a [BM, BN] tile of C reads BK (BM + BN) elements for
2 BM BN BK FLOP, so BM BN / (BM + BN) FLOP a byte in a 16-bit dtype: 64 at 128 x 128. Triton keeps the next
`num_stages` - 1 tiles in flight with `cp.async`, a copy that every thread issues for 16 bytes.

This file is also the ladder's complete kernel: any size, zero included, any strides, a batch, four precisions
(float32 on the FMA units, tf32, float16, bfloat16). The later steps send what lies outside their domain here.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from rooftest_kernels.gemm.operands import (
    POINTERS,
    SIZES_AND_STRIDES,
    addends,
    index_type,
    is_plain,
    operands,
    unit_dimension,
    vector,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Config(NamedTuple):
    """Tile [BM, BN] of C and BK_bytes of K at a time; warps a program; tiles of A and B on their way or in use.

    K is counted in bytes, so that shared memory is num_stages (BM + BN) BK_bytes in every dtype.
    """

    BM: int
    BN: int
    BK_bytes: int
    num_warps: int
    num_stages: int


CONFIGS = {
    "16x16x64B": Config(16, 16, 64, num_warps=1, num_stages=2),
    "16x64x256B": Config(16, 64, 256, num_warps=4, num_stages=4),
    "64x64x64B": Config(64, 64, 64, num_warps=4, num_stages=3),
    "64x64x128B": Config(64, 64, 128, num_warps=4, num_stages=4),
    "128x128x128B": Config(128, 128, 128, num_warps=8, num_stages=4),
    "128x128x128B-one-stage": Config(128, 128, 128, num_warps=8, num_stages=1),
}


def pick(M: int, N: int, dtype: torch.dtype, precision: str) -> Config:
    """Choose by the size of C: few rows stream B, few tiles must be small; on FMA units the tile fills registers."""
    if dtype == torch.float32 and precision == "float32":
        return CONFIGS["64x64x64B"]
    if M <= 16:
        return CONFIGS["16x64x256B"]
    if M * N <= 1024 * 1024:  # 64 tiles of 128 x 128 would leave half of 132 SMs idle
        return CONFIGS["64x64x128B"]
    return CONFIGS["128x128x128B"]


@triton.jit
def known(rows, columns, UNIT: tl.constexpr, VECTOR: tl.constexpr):
    """Return the strides of a matrix, so that the compiler sees which is 1 and where VECTOR neighbours are one load."""
    if UNIT == 2:
        return rows // VECTOR * VECTOR, 1
    elif UNIT == 1:  # noqa: RET505  (the compiler needs all branches where a constant decides the type)
        return 1, columns // VECTOR * VECTOR
    else:
        return rows, columns


@triton.jit(do_not_specialize=SIZES_AND_STRIDES, do_not_specialize_on_alignment=POINTERS)
def gemm_dot(
    a_ptr, stride_az, stride_am, stride_ak,
    b_ptr, stride_bz, stride_bk, stride_bn,
    c_ptr, stride_cz, stride_cm, stride_cn,
    c0_ptr, stride_c0z, stride_c0m, stride_c0n,
    bias_ptr, stride_bias, bias_size,
    M, N, k_vectors, alpha, beta,
    A_UNIT: tl.constexpr, B_UNIT: tl.constexpr, VECTOR: tl.constexpr, PLAIN: tl.constexpr,
    PRECISION: tl.constexpr, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute one [BM, BN] tile of one batch element of C.

    *_UNIT: the dimension with stride 1, 2 for rows, 1 for columns, 0 for neither. VECTOR: the elements in 16 bytes,
    where all of A, B, C and C0 can be read and written so, else 1; k_vectors of them are K. PLAIN: there is no alpha,
    C0 or bias. INDEX: the integer type of an offset within a matrix.
    """
    K = k_vectors * VECTOR
    # Programs along N are neighbours, so those that run together share rows of A.
    tiles_n = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * tiles_n
    tile = tl.program_id(0) % tiles
    z = (tl.program_id(0) // tiles).to(tl.int64)
    m = (tile // tiles_n) * BM + tl.arange(0, BM)
    n = (tile % tiles_n) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    # The offsets in a tile stay; the two pointers walk along K, in int64 because a step times a stride may pass 2^31.
    a_ptr += z * stride_az
    b_ptr += z * stride_bz
    if VECTOR > 1:  # what the host has checked, in forms that the compiler understands
        a_ptr = tl.multiple_of(a_ptr, 16)
        b_ptr = tl.multiple_of(b_ptr, 16)
        N = N // VECTOR * VECTOR
        if A_UNIT == 1:
            M = M // VECTOR * VECTOR
    stride_am, stride_ak = known(stride_am, stride_ak, A_UNIT, VECTOR)
    stride_bk, stride_bn = known(stride_bk, stride_bn, B_UNIT, VECTOR)
    in_m, in_n = m < M, n < N
    m, n, k = m.to(INDEX), n.to(INDEX), k.to(INDEX)
    a_offsets = m[:, None] * stride_am + k[None, :] * stride_ak
    b_offsets = k[:, None] * stride_bk + n[None, :] * stride_bn
    step = tl.full((), BK, tl.int64)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(0, K, BK):
        # A masked element is 0 in both factors, so it adds exactly 0 whatever lies behind the tensors.
        in_k = tl.arange(0, BK) < K - k0
        a = tl.load(a_ptr + a_offsets, mask=in_m[:, None] & in_k[None, :], other=0.0)
        b = tl.load(b_ptr + b_offsets, mask=in_k[:, None] & in_n[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptr += step * stride_ak
        b_ptr += step * stride_bk

    # All in float32; the store below is the only rounding to C's dtype.
    c_ptr += z * stride_cz
    c0_ptr += z * stride_c0z
    if VECTOR > 1:
        c_ptr = tl.multiple_of(c_ptr, 16)
        c0_ptr = tl.multiple_of(c0_ptr, 16)
        stride_cm, stride_cn = known(stride_cm, stride_cn, 2, VECTOR)
        stride_c0m, stride_c0n = known(stride_c0m, stride_c0n, 2, VECTOR)
    in_c = in_m[:, None] & in_n[None, :]
    if not PLAIN:  # what is absent is masked, so not read, and 0
        acc *= alpha
        c0_ptrs = c0_ptr + (m[:, None] * stride_c0m + n[None, :] * stride_c0n)
        acc += beta * tl.load(c0_ptrs, mask=in_c & (beta != 0), other=0.0).to(tl.float32)
        bias_ptrs = bias_ptr + n * stride_bias
        acc += tl.load(bias_ptrs, mask=n < bias_size, other=0.0).to(tl.float32)[None, :]
    tl.store(c_ptr + (m[:, None] * stride_cm + n[None, :] * stride_cn), acc.to(c_ptr.dtype.element_ty), mask=in_c)


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
    precision: str = "float32",
) -> None:
    """Write alpha A B + beta C0 + bias to out, accumulated in float32 and rounded once.

    a: (M, K) or (B, M, K); b: (K, N) or (B, K, N); out, c0: (M, N) or (B, M, N); bias: (N,); any strides.
    precision: how float32 storage is multiplied, "float32" or "tf32". config: a name out of CONFIGS.
    Raises ValueError where shapes, dtypes or the precision do not fit.
    """
    if precision not in {"float32", "tf32"}:
        raise ValueError(f"precision is {precision!r}: it must be 'float32' or 'tf32'")
    ops = operands(a, b, out, beta, c0, bias, DTYPES)
    if ops.B * ops.M * ops.N == 0:
        return
    config = CONFIGS[config] if isinstance(config, str) else config or pick(ops.M, ops.N, a.dtype, precision)
    grid = (ops.B * triton.cdiv(ops.M, config.BM) * triton.cdiv(ops.N, config.BN),)
    width = vector(ops.a, ops.b, rows=(ops.out, ops.c0), K=ops.K)
    gemm_dot[grid](
        ops.a, *ops.a.stride(), ops.b, *ops.b.stride(), ops.out, *ops.out.stride(), *addends(ops),
        ops.M, ops.N, ops.K // width, alpha, beta,
        A_UNIT=unit_dimension(ops.a), B_UNIT=unit_dimension(ops.b),
        VECTOR=width, PLAIN=width > 1 and is_plain(ops, alpha),
        PRECISION="tf32" if precision == "tf32" else "ieee", INDEX=index_type(ops.a, ops.b, ops.out, ops.c0),
        BM=config.BM, BN=config.BN, BK=config.BK_bytes // a.element_size(),
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
