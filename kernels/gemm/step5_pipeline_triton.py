"""Step 5 in plain Triton: tensor descriptors say where the tiles lie, `num_stages` asks for the pipeline.

The idea is step5_pipeline's: bulk tensor copies, a ring of stages, wgmma that runs while the next copies arrive. Here
the compiler writes ring, barriers and waits. Against step 4 the source loses its pointers and its masks along K: a
descriptor is a base, a shape, strides and a block, and what lies outside the shape is read as zero.
Triton's interpreter can run this file, so it is judged without a GPU; the Gluon form cannot be.

Domain: as step5_pipeline.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from rooftest_kernels.gemm import descriptors, step4_dot
from rooftest_kernels.gemm.operands import index_type, operands, rows_by_8
from triton.tools.tensor_descriptor import TensorDescriptor

DTYPES = (torch.float16, torch.bfloat16)


class Config(NamedTuple):
    """Tile [BM, BN] of C, BK elements of K a stage; warps a program; stages in shared memory."""

    BM: int
    BN: int
    BK: int
    num_warps: int
    num_stages: int


CONFIGS = {
    "16x16x16": Config(16, 16, 16, num_warps=1, num_stages=2),
    "64x64x64": Config(64, 64, 64, num_warps=4, num_stages=4),
    "128x128x64": Config(128, 128, 64, num_warps=4, num_stages=3),
    "128x256x64": Config(128, 256, 64, num_warps=8, num_stages=4),
}


def pick(M: int, N: int) -> Config:
    """Choose the largest tile of which C has enough to give most of 132 SMs one."""
    for name in ("128x256x64", "128x128x64"):
        config = CONFIGS[name]
        if triton.cdiv(M, config.BM) * triton.cdiv(N, config.BN) >= 96:
            return config
    return CONFIGS["64x64x64"]


def describe(tensor: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Return a descriptor of (1, rows, columns) blocks of a (B, R, C) tensor, as it lies in memory."""
    laid_out = descriptors.describe(tensor, rows, columns)  # Gluon's also names a layout; here the compiler does
    return TensorDescriptor(laid_out.base, laid_out.shape, laid_out.strides, laid_out.block_shape)


@triton.jit
def load_block(desc, z, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TRANS: tl.constexpr):
    """Load the [ROWS, COLUMNS] block at (row, column) of matrix z, which lies transposed in memory where TRANS."""
    if TRANS:
        block = desc.load([z, column, row]).reshape(COLUMNS, ROWS).T
    else:
        block = desc.load([z, row, column]).reshape(ROWS, COLUMNS)
    return block


@triton.jit
def finish(
    acc, c_ptr, c0_ptr, bias_ptr, z, m0, n0, M, N, alpha, beta,
    stride_cz, stride_cm, stride_cn,
    stride_c0z, stride_c0m, stride_c0n,
    stride_bias,
    INDEX: tl.constexpr, C_BY_8: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write alpha acc + beta C0 + bias to the tile at (m0, n0); all in float32, rounded once by the store."""
    if C_BY_8:  # say so to the compiler, for 16 bytes a load and a store
        N = N // 8 * 8
        stride_cm = stride_cm // 8 * 8
        stride_c0m = stride_c0m // 8 * 8
    m = m0 + tl.arange(0, BM)[:, None]
    n = n0 + tl.arange(0, BN)[None, :]
    inside = (m < M) & (n < N)
    m, n, z = m.to(INDEX), n.to(INDEX), z.to(tl.int64)
    acc *= alpha
    if c0_ptr is not None:
        c0_ptrs = c0_ptr + z * stride_c0z + (m * stride_c0m + n * stride_c0n)
        acc += beta * tl.load(c0_ptrs, mask=inside, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + n * stride_bias, mask=n < N, other=0.0).to(tl.float32)
    c_ptrs = c_ptr + z * stride_cz + (m * stride_cm + n * stride_cn)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gemm_descriptors(
    a_desc, b_desc, c_ptr, c0_ptr, bias_ptr,
    M, N, K, alpha, beta,
    stride_cz, stride_cm, stride_cn,
    stride_c0z, stride_c0m, stride_c0n,
    stride_bias,
    A_TRANS: tl.constexpr, B_TRANS: tl.constexpr, INDEX: tl.constexpr, C_BY_8: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute one [BM, BN] tile of one batch element of C; *_TRANS: the matrix is stored transposed."""
    tiles_n = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * tiles_n
    tile = tl.program_id(0) % tiles
    z = tl.program_id(0) // tiles
    m0 = (tile // tiles_n) * BM
    n0 = (tile % tiles_n) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(0, K, BK):
        a = load_block(a_desc, z, m0, k0, BM, BK, A_TRANS)
        b = load_block(b_desc, z, k0, n0, BK, BN, B_TRANS)
        acc = tl.dot(a, b, acc)
    finish(
        acc, c_ptr, c0_ptr, bias_ptr, z, m0, n0, M, N, alpha, beta,
        stride_cz, stride_cm, stride_cn, stride_c0z, stride_c0m, stride_c0n, stride_bias,
        INDEX, C_BY_8, BM, BN,
    )  # fmt: skip


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

    a: (M, K) or (B, M, K); b: (K, N) or (B, K, N); out, c0: (M, N) or (B, M, N); bias: (N,).
    config: a name out of CONFIGS. Raises ValueError outside the domain that the module states.
    """
    if a.shape[-1] == 0:  # nothing to copy, and a descriptor cannot be empty
        step4_dot.matmul(a, b, out=out, beta=beta, c0=c0, bias=bias)
        return
    a, b, out, c0, bias, B, M, N, K = operands(a, b, out, beta, c0, bias, DTYPES)
    if B * M * N == 0:
        return
    descriptors.require_descriptors(a=a, b=b)
    BM, BN, BK, num_warps, num_stages = CONFIGS[config] if isinstance(config, str) else config or pick(M, N)
    gemm_descriptors[(B * triton.cdiv(M, BM) * triton.cdiv(N, BN),)](
        describe(a, BM, BK), describe(b, BK, BN), out, c0, bias,
        M, N, K, alpha, beta,
        *out.stride(),
        *(c0.stride() if c0 is not None else (0, 0, 0)),
        bias.stride(0) if bias is not None else 0,
        A_TRANS=descriptors.is_transposed(a), B_TRANS=descriptors.is_transposed(b), INDEX=index_type(out, c0),
        C_BY_8=rows_by_8(out, c0), BM=BM, BN=BN, BK=BK, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
