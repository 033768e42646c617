"""Step 7: a persistent grid. One CTA an SM, which walks over many tiles of C in an order that is kind to the L2.

What changed against step 6:

* The grid is as large as the GPU, not as the problem. CTA p computes tiles p, p + P, p + 2P, ... of P CTAs. The
  barriers are set up once, and the producer does not stop at the end of a tile: while the consumers convert and store
  one tile, the stages of the next are already on their way. In step 6 every tile began with empty stages, one trip to
  DRAM (about 1 us) before its first product.
* The tiles that run at the same time form a block of C that is nearly square, instead of a row of it: `group_m` rows
  of tiles are walked column by column. With 132 tiles of 128 x 256 in flight, 16 rows of tiles need
  16 x 128 rows of A and 8.25 x 256 columns of B, 4160 vectors of length K; in row-major order, at N = 8192, they need
  4.1 x 128 rows of A and all 8192 columns of B, 8720. Both fit the L2, but half the traffic from DRAM is saved.

What it should buy: the fill of the pipeline is paid once a CTA instead of once a tile, and so is the launch.

Domain: as step 6.
"""

from typing import NamedTuple

import torch
import triton
from rooftest_kernels.gemm import step4_dot
from rooftest_kernels.gemm.descriptors import DTYPES, async_store, describe, is_transposed, require_descriptors
from rooftest_kernels.gemm.operands import operands
from rooftest_kernels.gemm.step6_specialised import (
    NOT_SPECIALISED,
    allocate_barriers,
    allocate_boxes,
    as_matrix,
    epilogue,
    finish,
    load_box,
)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


class Config(NamedTuple):
    """Tile of C (block_m x block_n), extent of a k-step, stages of shared memory, rows of tiles walked together."""

    block_m: int = 128
    block_n: int = 256
    block_k: int = 64
    stages: int = 3
    group_m: int = 16


CONFIGS = {
    "128x256": Config(),
    "128x256-row-by-row": Config(group_m=1),
}


@gluon.jit
def tile_origin(tile, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr):
    """Batch, first row and first column of a tile: groups of GROUP_M rows of tiles, each walked column by column.

    An integer division by a number that is not known when the kernel is compiled takes about 100 clocks, and the first
    copy waits for all of them; so each stands behind a test of whether it is needed.
    """
    tiles_m = gl.cdiv(M, BLOCK_M)
    tiles_n = gl.cdiv(N, BLOCK_N)
    batch = 0
    if tile >= tiles_m * tiles_n:
        batch = tile // (tiles_m * tiles_n)
        tile -= batch * (tiles_m * tiles_n)
    first_m = 0
    if tile >= GROUP_M * tiles_n:
        group = tile // (GROUP_M * tiles_n)
        first_m = group * GROUP_M
        tile -= group * (GROUP_M * tiles_n)
    m, n = tile % GROUP_M, tile // GROUP_M
    if tiles_m - first_m < GROUP_M:  # the last group may be lower
        m, n = tile % (tiles_m - first_m), tile // (tiles_m - first_m)
    return batch, (first_m + m) * BLOCK_M, n * BLOCK_N


@gluon.jit
def produce(a_desc, b_desc, a_bufs, b_bufs, full, empty, M, N, k_tiles, tiles,
            BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
            GROUP_M: gl.constexpr, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr):  # fmt: skip
    """The producer warp. `step` counts k-steps over all tiles of this CTA: the stages know no tiles."""
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, row, column = tile_origin(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        for k in range(k_tiles):
            stage = step % STAGES
            mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
            mbarrier.expect(full.index(stage), a_desc.block_type.nbytes + b_desc.block_type.nbytes)
            load_box(a_desc, batch, row, k * BLOCK_K, full.index(stage), a_bufs.index(stage), True, TRANS_A)
            load_box(b_desc, batch, k * BLOCK_K, column, full.index(stage), b_bufs.index(stage), True, TRANS_B)
            step += 1


@gluon.jit
def consume(c_desc, a_bufs, b_bufs, c_buf, full, empty, M, N, k_tiles, tiles, terms,
            BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, GROUP_M: gl.constexpr,
            TRANS_A: gl.constexpr, TRANS_B: gl.constexpr,
            PLAIN: gl.constexpr):  # fmt: skip
    """The two consumer warpgroups: step 6's products and store, once a tile."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BLOCK_N, 16]
    )
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, row, column = tile_origin(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout)
        for k in range(k_tiles):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            a = as_matrix(a_bufs.index(stage), TRANS_A)
            b = as_matrix(b_bufs.index(stage), TRANS_B)
            acc = warpgroup_mma(a, b, acc, is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=k > 0)
            step += 1
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))  # the producer needs this stage for the next tile

        acc = finish(acc, batch, row, column, M, N, terms, PLAIN, 1)
        as_matrix(c_buf, False).store(acc.to(c_desc.dtype))
        fence_async_shared()
        async_store(c_desc, [batch, row, column], c_buf)
        tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=NOT_SPECIALISED, do_not_specialize_on_alignment=["c0_ptr", "bias_ptr"])
def gemm_persistent(a_desc, b_desc, c_desc, M, N, K, tiles,
                    c0_ptr, adds_c0, stride_c0z, stride_c0m, stride_c0n, bias_ptr, adds_bias, stride_bias, alpha, beta,
                    PLAIN: gl.constexpr,
                    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
                    GROUP_M: gl.constexpr, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr):  # fmt: skip
    """One CTA, every P-th tile of C."""
    terms = (c0_ptr, adds_c0, stride_c0z, stride_c0m, stride_c0n, bias_ptr, adds_bias, stride_bias, alpha, beta)
    k_tiles = gl.cdiv(K, BLOCK_K)
    a_bufs = allocate_boxes(a_desc, STAGES)
    b_bufs = allocate_boxes(b_desc, STAGES)
    c_buf = allocate_boxes(c_desc, 1).index(0)
    full, empty = allocate_barriers(STAGES, 1)

    gl.warp_specialize(
        [
            (consume, (c_desc, a_bufs, b_bufs, c_buf, full, empty, M, N, k_tiles, tiles, terms,
                       BLOCK_M, BLOCK_N, STAGES, GROUP_M, TRANS_A, TRANS_B, PLAIN)),
            (produce, (a_desc, b_desc, a_bufs, b_bufs, full, empty, M, N, k_tiles, tiles,
                       BLOCK_M, BLOCK_N, BLOCK_K, STAGES, GROUP_M, TRANS_A, TRANS_B)),
        ],
        worker_num_warps=[1],
        worker_num_regs=[24],
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

    a: (M, K) or (B, M, K); b: (K, N) or (B, K, N), both row-major or transposed; out: row-major, like C; c0: like C;
    bias: (N,); bfloat16 or float16. config: a name out of CONFIGS, a Config, or None for 128 x 256.
    Raises ValueError where shapes or dtypes do not fit, or where no descriptor can express a, b or out.
    """
    ops = operands(a, b, out, beta, c0, bias, DTYPES)
    if 0 in {ops.B, ops.M, ops.N, ops.K}:  # no descriptor has a dimension of 0, and there is nothing to be fast about
        step4_dot.matmul(a, b, out=out, alpha=alpha, beta=beta, c0=c0, bias=bias)
        return
    require_descriptors(a=ops.a, b=ops.b, out=ops.out)
    if is_transposed(ops.out):
        raise ValueError(f"out has strides {tuple(out.stride())}: this kernel writes rows")
    config = CONFIGS[config] if isinstance(config, str) else config or CONFIGS["128x256"]
    tiles = ops.B * triton.cdiv(ops.M, config.block_m) * triton.cdiv(ops.N, config.block_n)
    sms = torch.cuda.get_device_properties(out.device).multi_processor_count
    gemm_persistent[(min(tiles, sms),)](
        describe(ops.a, config.block_m, config.block_k), describe(ops.b, config.block_k, config.block_n),
        describe(ops.out, config.block_m, config.block_n), ops.M, ops.N, ops.K, tiles, *epilogue(ops, alpha, beta),
        *config, is_transposed(ops.a), is_transposed(ops.b), num_warps=8,
    )  # fmt: skip
