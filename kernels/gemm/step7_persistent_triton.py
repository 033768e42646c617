"""Step 7 in plain Triton: one program an SM, which takes tile after tile of C in an order that is kind to L2.

Against step 5: a program is started once, not once a tile, and `flatten` lets the compiler join the loop over tiles
and the loop over K, so the copies of the next tile can start while this one is finished and stored.
The order: programs that run together should ask for the same rows of A and columns of B. 132 tiles of 128 x 128 in
one row of tiles read 1 block of rows and 132 of columns; in a group of 8 rows they read 8 and 17, 25 blocks for the
same work instead of 133, and the rest of the requests is answered by L2.

Triton's interpreter can run this file, so the order is judged without a GPU; there a launch has 4 programs.

Domain: as step5_pipeline.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from rooftest_kernels.gemm import step4_dot
from rooftest_kernels.gemm.descriptors import is_transposed, require_descriptors
from rooftest_kernels.gemm.operands import (
    POINTERS,
    SIZES_AND_STRIDES,
    addends,
    index_type,
    is_plain,
    operands,
    vector,
)
from rooftest_kernels.gemm.step5_pipeline_triton import describe, finish, load_block

DTYPES = (torch.float16, torch.bfloat16)


class Config(NamedTuple):
    """Tile [BM, BN] of C, BK elements of K a stage, `group` rows of tiles; warps a program; stages."""

    BM: int
    BN: int
    BK: int
    group: int
    num_warps: int
    num_stages: int


CONFIGS = {
    "16x16x16": Config(16, 16, 16, group=2, num_warps=1, num_stages=2),
    "64x64x64": Config(64, 64, 64, group=8, num_warps=4, num_stages=4),
    "128x128x64": Config(128, 128, 64, group=8, num_warps=4, num_stages=4),
    "128x256x64": Config(128, 256, 64, group=8, num_warps=8, num_stages=3),
}


def pick(M: int, N: int) -> Config:
    """Choose the largest tile of which C has enough to give most of 132 SMs one."""
    for name in ("128x256x64", "128x128x64"):
        config = CONFIGS[name]
        if triton.cdiv(M, config.BM) * triton.cdiv(N, config.BN) >= 96:
            return config
    return CONFIGS["64x64x64"]


@triton.jit
def grouped(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Return row and column of a tile in the order: GROUP rows at a time, down each column of the group."""
    group = tile // (GROUP * tiles_n)
    rows = min(tiles_m - group * GROUP, GROUP)  # the last group may be lower
    place = tile % (GROUP * tiles_n)
    return group * GROUP + place % rows, place // rows


@triton.jit(do_not_specialize=SIZES_AND_STRIDES, do_not_specialize_on_alignment=POINTERS)
def gemm_persistent(
    a_desc, b_desc,
    c_ptr, stride_cz, stride_cm, stride_cn,
    c0_ptr, stride_c0z, stride_c0m, stride_c0n,
    bias_ptr, stride_bias, bias_size,
    B, M, N, K, alpha, beta,
    A_TRANS: tl.constexpr, B_TRANS: tl.constexpr, INDEX: tl.constexpr, VECTOR: tl.constexpr, PLAIN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute every num_programs-th tile of C; *_TRANS: the matrix is stored transposed."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    tiles = tiles_m * tiles_n
    for tile in tl.range(tl.program_id(0), B * tiles, tl.num_programs(0), flatten=True):
        z = tile // tiles
        tile_m, tile_n = grouped(tile % tiles, tiles_m, tiles_n, GROUP)
        m0 = tile_m * BM
        n0 = tile_n * BN
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
    require_descriptors(a=ops.a, b=ops.b)
    BM, BN, BK, group, num_warps, num_stages = (
        CONFIGS[config] if isinstance(config, str) else config or pick(ops.M, ops.N)
    )
    tiles = ops.B * triton.cdiv(ops.M, BM) * triton.cdiv(ops.N, BN)
    sms = torch.cuda.get_device_properties(a.device).multi_processor_count if a.is_cuda else 4
    width = vector(rows=(ops.out, ops.c0))
    gemm_persistent[(min(sms, tiles),)](
        describe(ops.a, BM, BK), describe(ops.b, BK, BN), ops.out, *ops.out.stride(), *addends(ops),
        ops.B, ops.M, ops.N, ops.K, alpha, beta,
        A_TRANS=is_transposed(ops.a), B_TRANS=is_transposed(ops.b),
        INDEX=index_type(ops.out, ops.c0), VECTOR=width, PLAIN=width > 1 and is_plain(ops, alpha),
        BM=BM, BN=BN, BK=BK, GROUP=group, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
