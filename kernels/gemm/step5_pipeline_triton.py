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
from rooftest_kernels.gemm.operands import (
    POINTERS,
    SIZES_AND_STRIDES,
    addends,
    index_type,
    is_plain,
    operands,
    vector,
)
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
    acc, z, m0, n0,
    c_ptr, stride_cz, stride_cm, stride_cn,
    c0_ptr, stride_c0z, stride_c0m, stride_c0n,
    bias_ptr, stride_bias, bias_size,
    M, N, alpha, beta,
    INDEX: tl.constexpr, VECTOR: tl.constexpr, PLAIN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write alpha acc + beta C0 + bias to the tile at (m0, n0); all in float32, rounded once by the store.

    VECTOR: the elements in 16 bytes, where C and C0 can be read and written so, else 1. PLAIN: only acc is written.
    """
    z = z.to(tl.int64)
    c_ptr += z * stride_cz
    c0_ptr += z * stride_c0z
    if VECTOR > 1:  # what the host has checked, in forms that the compiler understands: 16 bytes a load and a store
        c_ptr = tl.multiple_of(c_ptr, 16)
        c0_ptr = tl.multiple_of(c0_ptr, 16)
        N = N // VECTOR * VECTOR
        stride_cm, stride_cn = stride_cm // VECTOR * VECTOR, 1
        stride_c0m, stride_c0n = stride_c0m // VECTOR * VECTOR, 1
    m = m0 + tl.arange(0, BM)[:, None]
    n = n0 + tl.arange(0, BN)[None, :]
    inside = (m < M) & (n < N)
    m, n = m.to(INDEX), n.to(INDEX)
    if not PLAIN:  # what is absent is masked, so not read, and 0
        acc *= alpha
        c0_ptrs = c0_ptr + (m * stride_c0m + n * stride_c0n)
        acc += beta * tl.load(c0_ptrs, mask=inside & (beta != 0), other=0.0).to(tl.float32)
        acc += tl.load(bias_ptr + n * stride_bias, mask=n < bias_size, other=0.0).to(tl.float32)
    tl.store(c_ptr + (m * stride_cm + n * stride_cn), acc.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=SIZES_AND_STRIDES, do_not_specialize_on_alignment=POINTERS)
def gemm_descriptors(
    a_desc, b_desc,
    c_ptr, stride_cz, stride_cm, stride_cn,
    c0_ptr, stride_c0z, stride_c0m, stride_c0n,
    bias_ptr, stride_bias, bias_size,
    M, N, K, alpha, beta,
    A_TRANS: tl.constexpr, B_TRANS: tl.constexpr, INDEX: tl.constexpr, VECTOR: tl.constexpr, PLAIN: tl.constexpr,
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
        acc, z, m0, n0, c_ptr, stride_cz, stride_cm, stride_cn,
        c0_ptr, stride_c0z, stride_c0m, stride_c0n, bias_ptr, stride_bias, bias_size,
        M, N, alpha, beta, INDEX, VECTOR, PLAIN, BM, BN,
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
    ops = operands(a, b, out, beta, c0, bias, DTYPES)
    if ops.B * ops.M * ops.N == 0:
        return
    descriptors.require_descriptors(a=ops.a, b=ops.b)
    BM, BN, BK, num_warps, num_stages = CONFIGS[config] if isinstance(config, str) else config or pick(ops.M, ops.N)
    width = vector(rows=(ops.out, ops.c0))
    gemm_descriptors[(ops.B * triton.cdiv(ops.M, BM) * triton.cdiv(ops.N, BN),)](
        describe(ops.a, BM, BK), describe(ops.b, BK, BN), ops.out, *ops.out.stride(), *addends(ops),
        ops.M, ops.N, ops.K, alpha, beta,
        A_TRANS=descriptors.is_transposed(ops.a), B_TRANS=descriptors.is_transposed(ops.b),
        INDEX=index_type(ops.out, ops.c0), VECTOR=width, PLAIN=width > 1 and is_plain(ops, alpha),
        BM=BM, BN=BN, BK=BK, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
