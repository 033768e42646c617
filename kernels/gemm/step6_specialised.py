"""Step 6: warp specialisation. One warp only copies, the others only multiply.

What changed against step 5: there, every warp issued copies, waited for them and multiplied, in turn, and each turn
ended at a barrier of the whole CTA. Here the CTA is divided into two programs that never execute the same
instruction:

* the producer, one warp, walks along K and asks the TMA unit for the next box of A and of B as soon as a stage of
  shared memory is free;
* the consumers, two warpgroups, wait for a full stage and feed it to the tensor cores with wgmma.

They meet only at mbarriers, two a stage: `full` counts the bytes that arrived, `empty` says that the products have
read them. The producer needs next to no registers, so `setmaxnreg` takes its registers away and gives them to the
consumers: a 128 x 256 tile of C in float32 is 128 registers in each of 256 threads, and what remains holds addresses.

What it should buy: a k-step is 128 x 256 x 64 products, 1024 clocks at the 4096 FLOP a clock of one SM. The copies
of the following stages (48 KB each) are in flight during all of it, and issuing them costs the consumers nothing.

Sizes of shared memory: a stage is (128 + 256) x 64 x 2 = 48 KB, the tile of C on its way out 64 KB; three stages and
the tile are 208 of the 227 KB that a CTA may have.

Domain: bfloat16 and float16; contiguous extents a multiple of 8, strides and bases of 16 bytes (ValueError otherwise).
"""

from typing import NamedTuple

import torch
import triton
from rooftest_kernels.gemm import step4_dot
from rooftest_kernels.gemm.descriptors import (
    DTYPES,
    async_load,
    async_store,
    describe,
    is_transposed,
    require_descriptors,
)
from rooftest_kernels.gemm.operands import Operands, operands
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
    """Tile of C (block_m x block_n), extent of a k-step, and stages of shared memory."""

    block_m: int = 128
    block_n: int = 256
    block_k: int = 64
    stages: int = 3


CONFIGS = {
    "128x256": Config(),
    "128x128": Config(128, 128, 64, 5),
}

MOST_BLOCKS = 65535  # along the second and third dimension of a CUDA grid

# One compiled kernel for all sizes and strides: none of them is in a loop that counts.
NOT_SPECIALISED = ["M", "N", "K", "tiles", "adds_c0", "stride_c0z", "stride_c0m", "adds_bias", "stride_bias"]


@gluon.jit
def allocate_boxes(desc, COUNT: gl.constexpr):
    """Shared memory for COUNT boxes of a descriptor."""
    rows: gl.constexpr = desc.block_type.shape[1]
    columns: gl.constexpr = desc.block_type.shape[2]
    return gl.allocate_shared_memory(desc.dtype, [COUNT, 1, rows, columns], desc.layout)


@gluon.jit
def allocate_barriers(STAGES: gl.constexpr, CONSUMERS: gl.constexpr):
    """Two mbarriers a stage: `full` waits for the producer and its bytes, `empty` for every consumer."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=CONSUMERS)
    fence_async_shared()  # what threads wrote is read by the TMA unit, which counts bytes on these barriers
    return full, empty


@gluon.jit
def as_matrix(box, transposed: gl.constexpr):
    """A (1, rows, columns) box in shared memory as the matrix that it holds: the view turns, the bytes stay."""
    flat = box.reshape([box.shape[1], box.shape[2]])
    if transposed:
        flat = flat.permute((1, 0))
    return flat


@gluon.jit
def load_box(desc, batch, row, column, full, box, pred, transposed: gl.constexpr):
    """Start the copy of one box of an operand. `full` counts its bytes when they have arrived."""
    if transposed:
        async_load(desc, [batch, column, row], full, box, pred)
    else:
        async_load(desc, [batch, row, column], full, box, pred)


@gluon.jit
def finish(acc, batch, row, column, M, N, terms, PLAIN: gl.constexpr, BIAS_AXIS: gl.constexpr):
    """Return alpha * acc + beta * C0 + bias in float32, for a tile at (row, column).

    PLAIN says that there is nothing to do, and leaves no instruction behind. Otherwise one compiled kernel takes every
    combination: what is absent is masked, so that it is not read. BIAS_AXIS is 1, or 0 in a transposed problem.
    """
    if PLAIN:
        return acc
    else:  # noqa: RET505 - the compiler needs both branches of a condition on a constant
        c0_ptr, adds_c0, stride_c0z, stride_c0m, stride_c0n, bias_ptr, adds_bias, stride_bias, alpha, beta = terms
        m = (row + gl.arange(0, acc.shape[0], gl.SliceLayout(1, acc.type.layout))).to(gl.int64)
        n = (column + gl.arange(0, acc.shape[1], gl.SliceLayout(0, acc.type.layout))).to(gl.int64)
        acc *= alpha
        c0_ptrs = c0_ptr + batch.to(gl.int64) * stride_c0z + m[:, None] * stride_c0m + n[None, :] * stride_c0n
        mask = (m < M)[:, None] & (n < N)[None, :] & (adds_c0 != 0)
        acc += beta * gl.load(c0_ptrs, mask, 0.0).to(gl.float32)
        if BIAS_AXIS == 1:
            bias = gl.load(bias_ptr + n * stride_bias, (n < N) & (adds_bias != 0), 0.0)[None, :]
        else:
            bias = gl.load(bias_ptr + m * stride_bias, (m < M) & (adds_bias != 0), 0.0)[:, None]
        return acc + bias.to(gl.float32)


def epilogue(ops: Operands, alpha: float, beta: float) -> tuple:
    """Return the arguments of a kernel that `finish` needs, PLAIN last.

    A pointer is passed in any case: out's where there is no tensor, which is then never read.
    """
    c0 = (ops.out, 0, 0, 0, 1) if ops.c0 is None else (ops.c0, 1, *ops.c0.stride())
    bias = (ops.out, 0, 0) if ops.bias is None else (ops.bias, 1, ops.bias.stride(0))
    return (*c0, *bias, alpha, beta, alpha == 1 and ops.c0 is None and ops.bias is None)


@gluon.jit
def produce(a_desc, b_desc, a_bufs, b_bufs, full, empty, batch, row, column, k_tiles,
            BLOCK_K: gl.constexpr, STAGES: gl.constexpr, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr):  # fmt: skip
    """The producer warp: keep every free stage filled with the next boxes of A and B."""
    for k in range(k_tiles):
        stage = k % STAGES
        # A stage is free at first: waiting for the phase before the first one returns at once.
        mbarrier.wait(empty.index(stage), ((k // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(stage), a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        load_box(a_desc, batch, row, k * BLOCK_K, full.index(stage), a_bufs.index(stage), True, TRANS_A)
        load_box(b_desc, batch, k * BLOCK_K, column, full.index(stage), b_bufs.index(stage), True, TRANS_B)


@gluon.jit
def consume(c_desc, a_bufs, b_bufs, c_buf, full, empty, batch, row, column, k_tiles,
            M, N, terms,
            BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
            TRANS_A: gl.constexpr, TRANS_B: gl.constexpr,
            PLAIN: gl.constexpr):  # fmt: skip
    """The two consumer warpgroups: multiply stage after stage, then hand the tile to the TMA unit."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BLOCK_N, 16]
    )
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout)
    for k in range(k_tiles):
        stage = k % STAGES
        mbarrier.wait(full.index(stage), (k // STAGES) & 1)
        a = as_matrix(a_bufs.index(stage), TRANS_A)
        b = as_matrix(b_bufs.index(stage), TRANS_B)
        acc = warpgroup_mma(a, b, acc, is_async=True)
        # One product stays in flight, so that the tensor cores never wait for us; the one before it is done,
        # and its stage can be filled again.
        acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
        mbarrier.arrive(empty.index((k + STAGES - 1) % STAGES), pred=k > 0)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))

    acc = finish(acc, batch, row, column, M, N, terms, PLAIN, 1)
    as_matrix(c_buf, False).store(acc.to(c_desc.dtype))
    fence_async_shared()
    async_store(c_desc, [batch, row, column], c_buf)
    tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=NOT_SPECIALISED, do_not_specialize_on_alignment=["c0_ptr", "bias_ptr"])
def gemm_specialised(a_desc, b_desc, c_desc, M, N, K,
                     c0_ptr, adds_c0, stride_c0z, stride_c0m, stride_c0n, bias_ptr, adds_bias, stride_bias, alpha, beta,
                     PLAIN: gl.constexpr,
                     BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
                     TRANS_A: gl.constexpr, TRANS_B: gl.constexpr):  # fmt: skip
    """One CTA, one tile of C: set up the stages and their barriers, then divide the warps."""
    row = gl.program_id(0) * BLOCK_M
    column = gl.program_id(1) * BLOCK_N
    batch = gl.program_id(2)
    terms = (c0_ptr, adds_c0, stride_c0z, stride_c0m, stride_c0n, bias_ptr, adds_bias, stride_bias, alpha, beta)
    k_tiles = gl.cdiv(K, BLOCK_K)

    a_bufs = allocate_boxes(a_desc, STAGES)
    b_bufs = allocate_boxes(b_desc, STAGES)
    c_buf = allocate_boxes(c_desc, 1).index(0)
    full, empty = allocate_barriers(STAGES, 1)  # the two warpgroups are one program and arrive together

    gl.warp_specialize(
        [
            (consume, (c_desc, a_bufs, b_bufs, c_buf, full, empty, batch, row, column, k_tiles,
                       M, N, terms, BLOCK_M, BLOCK_N, STAGES, TRANS_A, TRANS_B, PLAIN)),
            (produce, (a_desc, b_desc, a_bufs, b_bufs, full, empty, batch, row, column, k_tiles,
                       BLOCK_K, STAGES, TRANS_A, TRANS_B)),
        ],
        worker_num_warps=[1],
        worker_num_regs=[24],  # the least that setmaxnreg accepts
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
    grid = (triton.cdiv(ops.M, config.block_m), triton.cdiv(ops.N, config.block_n), ops.B)
    if max(grid[1:]) > MOST_BLOCKS:
        raise ValueError(f"{grid[1]} columns of tiles, {ops.B} matrices: at most {MOST_BLOCKS} of each fit a grid")
    gemm_specialised[grid](
        describe(ops.a, config.block_m, config.block_k), describe(ops.b, config.block_k, config.block_n),
        describe(ops.out, config.block_m, config.block_n), ops.M, ops.N, ops.K, *epilogue(ops, alpha, beta),
        *config, is_transposed(ops.a), is_transposed(ops.b), num_warps=8,
    )  # fmt: skip
