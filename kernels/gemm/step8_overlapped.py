"""Step 8: nothing waits for the epilogue, and the tile fits the problem. The complete kernel.

What changed against step 7:

* Each consumer warpgroup is a program of its own, with 64 rows of the tile. It waits for, multiplies and releases
  stages without asking the other one, so a barrier of 128 threads replaces one of 256, and while one of them converts
  and stores its rows the other may keep the tensor cores busy.
* The tile of C leaves in parts: as soon as a part is converted, the TMA unit stores it, and nobody waits for that
  before the same shared memory is needed again, one tile later. Small parts also need few registers, so that the
  terms alpha, beta and bias do not spill.
* The first stages are filled before the warps are divided, which takes about as long as the first answer of DRAM.
* The tile is chosen by the shape (`pick`): a 128 x 256 tile moves the fewest bytes, but at 1024 x 1024 only 32 of 132
  SMs would have one.
* A with few rows is computed as the transpose, C^T = B^T A^T: wgmma multiplies 64 rows by as few as 8 columns, so the
  long side must be the rows. What is left is a stream of B through a deep ring of stages; 16 columns of products cost
  the tensor cores next to nothing. A single row of A is a matter for `skinny.matmul`.
* Operands that no descriptor can express go to `step4_dot.matmul`, so that every operand is taken.

What it should buy: in step 7 the tensor cores wait for the epilogue of each tile. Its 64 KB leave an SM at 64 bytes a
clock at best, 1024 clocks beside the 65536 of the products at K = 4096, and beside 16384 at K = 1024. Here the last
epilogue of a CTA is left, and what the two consumers do not hide from each other. The rest is bound by the tensor
cores, at the clock that the power limit leaves, and by whole waves: 4096 cubed has 512 tiles for 132 SMs, 3.9 waves.
Smaller tiles are bound by the L2 before that: 128 x 128 asks for 64 bytes a clock and SM, and Gluon in Triton 3.6
cannot let two CTAs share one copy (multicast), as cuBLAS does.
"""

from typing import NamedTuple

import torch
import triton
from rooftest_kernels.gemm import skinny, step4_dot
from rooftest_kernels.gemm.descriptors import DTYPES, async_store, describe, is_transposed, obstacle
from rooftest_kernels.gemm.operands import Operands, operands
from rooftest_kernels.gemm.step6_specialised import (
    NOT_SPECIALISED,
    allocate_barriers,
    allocate_boxes,
    as_matrix,
    epilogue,
    finish,
    load_box,
)
from rooftest_kernels.gemm.step7_persistent import tile_origin
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ROWS = gl.constexpr(64)  # of C in one consumer: the rows of one wgmma


class Config(NamedTuple):
    """A tile of C and how it is computed.

    Fields
        consumers: warpgroups of 64 rows each, 1 or 2.
        block_n, block_k: columns of the tile; extent of a k-step.
        stages: k-steps in flight; (64 * consumers + block_n) * block_k * 2 bytes each.
        parts: pieces, along N, in which the tile is stored.
        group_m: rows of tiles that are walked together.
        clocks: of one SM for the tile and 64 of K, measured on the H200 (pick compares them).
    """

    consumers: int
    block_n: int
    block_k: int
    stages: int
    parts: int
    group_m: int
    clocks: int


CONFIGS = {
    "128x256": Config(2, 256, 64, 3, 4, 16, 1024),
    "128x128": Config(2, 128, 64, 5, 2, 16, 532),
    "128x64": Config(2, 64, 64, 8, 1, 16, 316),
    "64x64": Config(1, 64, 128, 6, 1, 16, 200),
    # A transposed problem has at most 32 or 16 columns: a stream of the other operand, as fast as DRAM.
    "64x32": Config(1, 32, 128, 8, 1, 16, 0),
    "64x16": Config(1, 16, 256, 5, 1, 16, 0),
}


def pick(batches: int, M: int, N: int, sms: int) -> Config:
    """Choose the tile: narrow where C is, otherwise the one with the fewest clocks in its waves of tiles.

    A wave is one tile on every SM. All of K costs the same number of k-steps in every candidate, so K does not count.
    """
    if min(M, N) <= 16:
        return CONFIGS["64x16"]
    if min(M, N) <= 32:
        return CONFIGS["64x32"]

    def clocks(config: Config) -> int:
        tiles = batches * triton.cdiv(M, 64 * config.consumers) * triton.cdiv(N, config.block_n)
        return triton.cdiv(tiles, sms) * config.clocks

    return min((config for config in CONFIGS.values() if config.clocks), key=clocks)


@gluon.jit
def split_columns(tile, PARTS: gl.constexpr):
    """A tile as a tuple of PARTS tiles, left to right. A thread holds its columns in registers, so nothing moves."""
    if PARTS == 1:
        return (tile,)
    else:  # noqa: RET505 - the compiler needs both branches of a condition on a constant
        left, right = tile.reshape([tile.shape[0], 2, tile.shape[1] // 2]).permute(0, 2, 1).split()
        return split_columns(left, PARTS // 2) + split_columns(right, PARTS // 2)


@gluon.jit
def load_stage(a_desc, b_desc, a_bufs, b_bufs, full, stage, batch, row, column, k, pred,
               CONSUMERS: gl.constexpr, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr):  # fmt: skip
    """Start the copies of one k-step: one box of B for all, one box of A for each consumer."""
    bar = full.index(stage)
    mbarrier.expect(bar, CONSUMERS * a_desc.block_type.nbytes + b_desc.block_type.nbytes, pred=pred)
    load_box(b_desc, batch, k, column, bar, b_bufs.index(stage), pred, TRANS_B)
    for i in gl.static_range(CONSUMERS):
        load_box(a_desc, batch, row + i * ROWS, k, bar, a_bufs.index(stage * CONSUMERS + i), pred, TRANS_A)


@gluon.jit
def produce(a_desc, b_desc, a_bufs, b_bufs, full, empty, M, N, k_tiles, tiles,
            CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
            GROUP_M: gl.constexpr, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr):  # fmt: skip
    """The producer warp: step 7's, but the first stages of the first tile are on their way already."""
    step = gl.minimum(k_tiles, STAGES)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, row, column = tile_origin(tile, M, N, CONSUMERS * ROWS, BLOCK_N, GROUP_M)
        begin = gl.where(tile == gl.program_id(0), gl.minimum(k_tiles, STAGES), 0)
        for k in range(begin, k_tiles):
            stage = step % STAGES
            mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
            load_stage(a_desc, b_desc, a_bufs, b_bufs, full, stage, batch, row, column, k * BLOCK_K, True,
                       CONSUMERS, TRANS_A, TRANS_B)  # fmt: skip
            step += 1


@gluon.jit
def consume(given, INDEX: gl.constexpr, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
            PARTS: gl.constexpr, GROUP_M: gl.constexpr,
            TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, TRANS_C: gl.constexpr,
            PLAIN: gl.constexpr, BIAS_AXIS: gl.constexpr):  # fmt: skip
    """Consumer INDEX, one warpgroup: rows 64 INDEX to 64 INDEX + 63 of every tile of this CTA."""
    c_desc, c_bufs, a_bufs, b_bufs, full, empty, M, N, k_tiles, tiles, terms = given
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, row, column = tile_origin(tile, M, N, CONSUMERS * ROWS, BLOCK_N, GROUP_M)
        row += INDEX * ROWS
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        for k in range(k_tiles):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            a = as_matrix(a_bufs.index(stage * CONSUMERS + INDEX), TRANS_A)
            b = as_matrix(b_bufs.index(stage), TRANS_B)
            acc = warpgroup_mma(a, b, acc, is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=k > 0)
            step += 1
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))

        parts = split_columns(acc, PARTS)
        for i in gl.static_range(PARTS):
            n = column + i * (BLOCK_N // PARTS)
            part = finish(parts[i], batch, row, n, M, N, terms, PLAIN, BIAS_AXIS)
            buf = c_bufs.index(INDEX * PARTS + i)
            # All but the last PARTS - 1 stores have been read, among them the one that last used this buffer.
            tma.store_wait(pendings=PARTS - 1)
            as_matrix(buf, TRANS_C).store(part.to(c_desc.dtype))
            fence_async_shared()
            if TRANS_C:
                async_store(c_desc, [batch, n, row], buf)
            else:
                async_store(c_desc, [batch, row, n], buf)
    tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=NOT_SPECIALISED, do_not_specialize_on_alignment=["c0_ptr", "bias_ptr"])
def gemm_overlapped(a_desc, b_desc, c_desc, M, N, K, tiles,
                    c0_ptr, adds_c0, stride_c0z, stride_c0m, stride_c0n, bias_ptr, adds_bias, stride_bias, alpha, beta,
                    PLAIN: gl.constexpr,
                    CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
                    PARTS: gl.constexpr, GROUP_M: gl.constexpr,
                    TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, TRANS_C: gl.constexpr,
                    BIAS_AXIS: gl.constexpr):  # fmt: skip
    """One CTA, every P-th tile of C."""
    terms = (c0_ptr, adds_c0, stride_c0z, stride_c0m, stride_c0n, bias_ptr, adds_bias, stride_bias, alpha, beta)
    k_tiles = gl.cdiv(K, BLOCK_K)
    a_bufs = allocate_boxes(a_desc, STAGES * CONSUMERS)
    b_bufs = allocate_boxes(b_desc, STAGES)
    c_bufs = allocate_boxes(c_desc, CONSUMERS * PARTS)
    full, empty = allocate_barriers(STAGES, CONSUMERS)
    batch, row, column = tile_origin(gl.program_id(0), M, N, CONSUMERS * ROWS, BLOCK_N, GROUP_M)
    for stage in gl.static_range(STAGES):
        load_stage(a_desc, b_desc, a_bufs, b_bufs, full, stage, batch, row, column, stage * BLOCK_K, stage < k_tiles,
                   CONSUMERS, TRANS_A, TRANS_B)  # fmt: skip

    given = (c_desc, c_bufs, a_bufs, b_bufs, full, empty, M, N, k_tiles, tiles, terms)
    if CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consume, (given, 0, CONSUMERS, BLOCK_N, STAGES, PARTS, GROUP_M,
                           TRANS_A, TRANS_B, TRANS_C, PLAIN, BIAS_AXIS)),
                (produce, (a_desc, b_desc, a_bufs, b_bufs, full, empty, M, N, k_tiles, tiles,
                           CONSUMERS, BLOCK_N, BLOCK_K, STAGES, GROUP_M, TRANS_A, TRANS_B)),
            ],
            worker_num_warps=[1],
            worker_num_regs=[24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (consume, (given, 0, CONSUMERS, BLOCK_N, STAGES, PARTS, GROUP_M,
                           TRANS_A, TRANS_B, TRANS_C, PLAIN, BIAS_AXIS)),
                (consume, (given, 1, CONSUMERS, BLOCK_N, STAGES, PARTS, GROUP_M,
                           TRANS_A, TRANS_B, TRANS_C, PLAIN, BIAS_AXIS)),
                (produce, (a_desc, b_desc, a_bufs, b_bufs, full, empty, M, N, k_tiles, tiles,
                           CONSUMERS, BLOCK_N, BLOCK_K, STAGES, GROUP_M, TRANS_A, TRANS_B)),
            ],
            worker_num_warps=[4, 1],
            worker_num_regs=[240, 24],
        )  # fmt: skip


def launch(ops: Operands, alpha: float, beta: float, config: Config, sms: int) -> None:
    """Compute C, or for a narrow tile and M < N its transpose, with one persistent CTA an SM."""
    transposed = config.block_n < 64 and ops.M < ops.N
    if transposed:
        c0 = None if ops.c0 is None else ops.c0.mT
        ops = Operands(ops.b.mT, ops.a.mT, ops.out.mT, c0, ops.bias, ops.B, ops.N, ops.M, ops.K)
    tiles = ops.B * triton.cdiv(ops.M, 64 * config.consumers) * triton.cdiv(ops.N, config.block_n)
    gemm_overlapped[(min(tiles, sms),)](
        describe(ops.a, 64, config.block_k),
        describe(ops.b, config.block_k, config.block_n),
        describe(ops.out, 64, config.block_n // config.parts),
        ops.M, ops.N, ops.K, tiles, *epilogue(ops, alpha, beta),
        config.consumers, config.block_n, config.block_k, config.stages, config.parts, config.group_m,
        is_transposed(ops.a), is_transposed(ops.b), is_transposed(ops.out), 0 if transposed else 1,
        num_warps=4,
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

    a: (M, K) or (B, M, K); b: (K, N) or (B, K, N); out, c0: like C; bias: (N,); bfloat16 or float16, any size, any
    strides. config: a name out of CONFIGS, a Config, or None for `pick`'s choice.
    Raises ValueError where shapes or dtypes do not fit.
    """
    ops = operands(a, b, out, beta, c0, bias, DTYPES)
    if config is None and ops.M == 1 and skinny.takes(ops):
        skinny.launch(ops, alpha, beta)
        return
    # No descriptor has a dimension of 0; and some strides no descriptor can express.
    if 0 in {ops.B, ops.M, ops.N, ops.K} or any(map(obstacle, (ops.a, ops.b, ops.out))):
        step4_dot.matmul(a, b, out=out, alpha=alpha, beta=beta, c0=c0, bias=bias)
        return
    sms = torch.cuda.get_device_properties(out.device).multi_processor_count
    if not isinstance(config, Config):
        config = CONFIGS[config] if config else pick(ops.B, ops.M, ops.N, sms)
    launch(ops, alpha, beta, config, sms)
