"""The ladder's step for Blackwell (sm_100): tcgen05, accumulators in tensor memory, three kinds of warps. Gluon.

COMPILED, NOT RUN: no such GPU has executed it. What is known of it is its machine code (tests/test_blackwell.py).

What changes against step 8, which is for Hopper:

* A product is started by one thread and reads both operands from shared memory, as wgmma does, but its result stays in
  tensor memory (TMEM, 128 lanes x 512 columns of 32 bits an SM) and in no register. So one warp multiplies, and the
  tile of C costs the warps that store it no registers while it grows.
* A tile of 128 x 256 takes 256 of the 512 columns: there are two. While one warpgroup converts and stores the tile in
  one half, the products of the next one are written to the other.
* Nobody waits for a product to free its stage: the tensor core itself arrives at the stage's `empty` when it has read
  it, and at `done` of the accumulator after the last product of a tile.

    produce (1 warp)   wait empty[stage]    -> copy A and B into the stage; their bytes arrive at full[stage]
    multiply (1 warp)  wait drained[half]   -> for each k: wait full[stage], multiply; done[half] after the last
    drain (4 warps)    wait done[half]      -> read the half part by part, convert, store; arrive at drained[half]

TMEM lets warp i of a warpgroup read lanes 32 i to 32 i + 31, so a thread holds one row of a part. A part is 128 x 32:
32 registers of C a thread, and as many pairs of them for addresses where C0 is read.

Sizes of shared memory: a stage is (128 + 256) x 64 x 2 = 48 KB, a part of C 8 KB; four stages and two parts are 208 of
the 227 KB that a CTA may have, and 2 KB more turn a part from one row a thread to rows that lie in a line for C0.

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
)
from rooftest_kernels.gemm.step7_persistent import produce, tile_origin
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
    tma,
)

HALVES = gl.constexpr(2)  # accumulators in tensor memory
PART = gl.constexpr(32)  # columns of C that are drained at a time; with 64, C0 and bias spill registers


class Config(NamedTuple):
    """Tile of C (block_m x block_n), extent of a k-step, stages of shared memory, rows of tiles walked together.

    block_m is 128, the lanes of tensor memory; two tiles take 2 block_n of its 512 columns.
    """

    block_m: int = 128
    block_n: int = 256
    block_k: int = 64
    stages: int = 4
    group_m: int = 16


CONFIGS = {
    "128x256": Config(),
    "128x128": Config(block_n=128, stages=6),
}


@gluon.jit
def multiply(a_bufs, b_bufs, full, empty, accs, done, drained, k_tiles, tiles,
             STAGES: gl.constexpr, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr):  # fmt: skip
    """The warp that multiplies: it starts products, and leaves it to them to say when they have ended."""
    step = 0
    turn = 0
    for _tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        half = turn % HALVES
        acc = accs.index(half)
        # A half is free at first, as a stage is: the phase before the first one has ended.
        mbarrier.wait(drained.index(half), ((turn // HALVES) & 1) ^ 1)
        for k in range(k_tiles):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            a = as_matrix(a_bufs.index(stage), TRANS_A)
            b = as_matrix(b_bufs.index(stage), TRANS_B)
            tcgen05_mma(a, b, acc, use_acc=k > 0, mbarriers=[empty.index(stage)])
            step += 1
        tcgen05_commit(done.index(half))
        turn += 1  # noqa: SIM113  (no enumerate in a kernel)


@gluon.jit
def drain(c_desc, c_bufs, accs, done, drained, M, N, tiles, terms,
          BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, PLAIN: gl.constexpr):  # fmt: skip
    """The warpgroup that stores: tensor memory -> registers -> shared memory -> the copy engine, part by part."""
    layout: gl.constexpr = gl.BlockedLayout([1, PART], [32, 1], [gl.num_warps(), 1], [0, 1])
    # Eight neighbours a thread, so that a warp reads C0 in whole sectors.
    in_rows: gl.constexpr = gl.BlockedLayout([1, 8], [256 // PART, PART // 8], [gl.num_warps(), 1], [1, 0])
    parts: gl.constexpr = BLOCK_N // PART
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, row, column = tile_origin(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        half = turn % HALVES
        acc = accs.index(half)
        mbarrier.wait(done.index(half), (turn // HALVES) & 1)
        for part in gl.static_range(parts):
            values = acc.slice(part * PART, PART).load(layout)
            if part == parts - 1:  # all of it is in registers or stored: the next tile but one may be written here
                mbarrier.arrive(drained.index(half))
            if not PLAIN:
                values = gl.convert_layout(values, in_rows)
            values = finish(values, batch, row, column + part * PART, M, N, terms, PLAIN, 1)
            c_buf = c_bufs.index(part % 2)
            tma.store_wait(pendings=1)  # the store before the last one has read this buffer
            as_matrix(c_buf, False).store(values.to(c_desc.dtype))
            fence_async_shared()
            async_store(c_desc, [batch, row, column + part * PART], c_buf)
        turn += 1  # noqa: SIM113  (no enumerate in a kernel)
    tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=NOT_SPECIALISED, do_not_specialize_on_alignment=["c0_ptr", "bias_ptr"])
def gemm_blackwell(a_desc, b_desc, c_desc, M, N, K, tiles,
                   c0_ptr, adds_c0, stride_c0z, stride_c0m, stride_c0n, bias_ptr, adds_bias, stride_bias, alpha, beta,
                   PLAIN: gl.constexpr,
                   BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
                   GROUP_M: gl.constexpr, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr):  # fmt: skip
    """One CTA, every P-th tile of C: set up memory and barriers, then divide the warps."""
    terms = (c0_ptr, adds_c0, stride_c0z, stride_c0m, stride_c0n, bias_ptr, adds_bias, stride_bias, alpha, beta)
    k_tiles = gl.cdiv(K, BLOCK_K)
    a_bufs = allocate_boxes(a_desc, STAGES)
    b_bufs = allocate_boxes(b_desc, STAGES)
    c_bufs = allocate_boxes(c_desc, 2)
    full, empty = allocate_barriers(STAGES, 1)
    done, drained = allocate_barriers(HALVES, 1)
    in_lanes: gl.constexpr = TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
    accs = allocate_tensor_memory(gl.float32, [HALVES, BLOCK_M, BLOCK_N], in_lanes)

    gl.warp_specialize(
        [
            (drain, (c_desc, c_bufs, accs, done, drained, M, N, tiles, terms, BLOCK_M, BLOCK_N, GROUP_M, PLAIN)),
            (produce, (a_desc, b_desc, a_bufs, b_bufs, full, empty, M, N, k_tiles, tiles,
                       BLOCK_M, BLOCK_N, BLOCK_K, STAGES, GROUP_M, TRANS_A, TRANS_B)),
            (multiply, (a_bufs, b_bufs, full, empty, accs, done, drained, k_tiles, tiles, STAGES, TRANS_A, TRANS_B)),
        ],
        worker_num_warps=[1, 1],
        worker_num_regs=[24, 24],
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
    gemm_blackwell[(min(tiles, sms),)](
        describe(ops.a, config.block_m, config.block_k), describe(ops.b, config.block_k, config.block_n),
        describe(ops.out, config.block_m, PART.value), ops.M, ops.N, ops.K, tiles, *epilogue(ops, alpha, beta),
        *config, is_transposed(ops.a), is_transposed(ops.b), num_warps=4,
    )  # fmt: skip
