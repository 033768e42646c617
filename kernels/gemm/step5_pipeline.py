"""Step 5: bulk tensor copies (TMA) into a ring of stages, and wgmma that does not wait. Gluon, all warps alike.

Against step 4: a tile of A or B is fetched by one instruction of one thread. A descriptor, made on the host, says
how the matrix lies in memory; the copy engine computes addresses, fills what lies outside with zeros, swizzles, and
counts the bytes that have arrived on an mbarrier. The threads need no addresses, masks or registers for it, so the
tile can grow to 128 x 256: BM BN / (BM + BN) = 85 FLOP a byte in a 16-bit dtype, 64 at 128 x 128.

The pipeline is said by hand. A ring of `stages` pairs of tiles lies in shared memory; at step k

    wait until stage k has arrived -> start wgmma(k) -> wait for wgmma(k - 1) -> refill the stage that it has read

so one product is always running while the next is started, and stages - 1 copies are on their way.
What stays: the warps that start copies are the ones that multiply, and they meet at a barrier before every refill,
so the tensor cores pause where a warp is late. One tile of C is one program: nothing is multiplied while it is stored.

Domain: bfloat16 and float16; A and B start on 16 bytes, one of their dimensions is contiguous with a multiple of 8
elements, their other strides are multiples of 16 bytes (ValueError otherwise). C, C0 and the bias: any strides.
"""

from typing import NamedTuple

import torch
import triton
from rooftest_kernels.gemm import step4_dot
from rooftest_kernels.gemm.descriptors import describe, is_transposed, require_descriptors
from rooftest_kernels.gemm.operands import (
    POINTERS,
    SIZES_AND_STRIDES,
    addends,
    index_type,
    is_plain,
    operands,
    vector,
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

DTYPES = (torch.float16, torch.bfloat16)
# Two names that changed after Triton 3.6.
start_copy = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
meet = getattr(gl, "barrier", None) or gl.thread_barrier


class Config(NamedTuple):
    """Tile [BM, BN] of C, BK elements of K a stage; stages in shared memory; warps a program, in groups of 4.

    Shared memory: 2 stages BK (BM + BN) bytes, of 227 KB. Registers: BM BN / (32 num_warps) a thread hold C, of 255.
    """

    BM: int
    BN: int
    BK: int
    stages: int
    num_warps: int


CONFIGS = {
    "64x32x32": Config(64, 32, 32, stages=2, num_warps=4),
    "64x64x64": Config(64, 64, 64, stages=4, num_warps=4),
    "128x128x64": Config(128, 128, 64, stages=3, num_warps=4),  # 96 KB, so two programs share an SM
    "128x256x64": Config(128, 256, 64, stages=4, num_warps=8),
}


def pick(M: int, N: int) -> Config:
    """Choose the largest tile of which C has enough to give most of 132 SMs one."""
    for name in ("128x256x64", "128x128x64"):
        config = CONFIGS[name]
        if triton.cdiv(M, config.BM) * triton.cdiv(N, config.BN) >= 96:
            return config
    return CONFIGS["64x64x64"]


@gluon.jit
def load_stage(
    a_desc, b_desc, a_ring, b_ring, arrived, z, m0, n0, k0, stage, wanted, A_TRANS: gl.constexpr, B_TRANS: gl.constexpr
):
    """Start the copies of A[m0:, k0:] and B[k0:, n0:] into a stage, if wanted; its barrier counts their bytes."""
    bar = arrived.index(stage)
    mbarrier.expect(bar, a_desc.block_type.nbytes + b_desc.block_type.nbytes, pred=wanted)
    if A_TRANS:
        start_copy(a_desc, [z, k0, m0], bar, a_ring.index(stage), pred=wanted)
    else:
        start_copy(a_desc, [z, m0, k0], bar, a_ring.index(stage), pred=wanted)
    if B_TRANS:
        start_copy(b_desc, [z, n0, k0], bar, b_ring.index(stage), pred=wanted)
    else:
        start_copy(b_desc, [z, k0, n0], bar, b_ring.index(stage), pred=wanted)


@gluon.jit
def as_matrix(box, TRANS: gl.constexpr):
    """View a (1, rows, columns) box as the operand it holds. Nothing moves: wgmma reads 16-bit tiles either way."""
    matrix = box.reshape([box.shape[1], box.shape[2]])
    if TRANS:
        return matrix.permute((1, 0))
    else:  # noqa: RET505  (Gluon needs both branches where a constexpr decides the type)
        return matrix


@gluon.jit(do_not_specialize=SIZES_AND_STRIDES, do_not_specialize_on_alignment=POINTERS)
def gemm_pipeline(
    a_desc, b_desc,
    c_ptr, stride_cz, stride_cm, stride_cn,
    c0_ptr, stride_c0z, stride_c0m, stride_c0n,
    bias_ptr, stride_bias, bias_size,
    M, N, K, alpha, beta,
    A_TRANS: gl.constexpr, B_TRANS: gl.constexpr, INDEX: gl.constexpr,
    VECTOR: gl.constexpr, PLAIN: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute one [BM, BN] tile of one batch element of C.

    *_TRANS: the matrix is stored transposed. VECTOR: the elements in 16 bytes, where C and C0 can be read and written
    so, else 1. PLAIN: there is no alpha, C0 or bias.
    """
    tiles_n = gl.cdiv(N, BN)
    tiles = gl.cdiv(M, BM) * tiles_n
    tile = gl.program_id(0) % tiles
    z = gl.program_id(0) // tiles
    m0 = (tile // tiles_n) * BM
    n0 = (tile % tiles_n) * BN
    steps = gl.cdiv(K, BK)

    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)  # noqa: RUF005  (no * in a kernel)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)  # noqa: RUF005  (no * in a kernel)
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for first in gl.static_range(STAGES):
        mbarrier.init(arrived.index(first), count=1)
    fence_async_shared()  # the copy engine must see the barriers that threads have written
    for first in gl.static_range(STAGES):
        load_stage(a_desc, b_desc, a_ring, b_ring, arrived, z, m0, n0, first * BK, first, first < steps,
                   A_TRANS, B_TRANS)  # fmt: skip

    # wgmma's own layout: each warp has 16 rows and all columns of the tile.
    mma_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BN, 16])
    acc = gl.zeros([BM, BN], gl.float32, mma_layout)
    for k in range(steps):
        stage = k % STAGES
        mbarrier.wait(arrived.index(stage), (k // STAGES) & 1)  # the phase turns each time round the ring
        a = as_matrix(a_ring.index(stage), A_TRANS)
        b = as_matrix(b_ring.index(stage), B_TRANS)
        acc = warpgroup_mma(a, b, acc, is_async=True)
        # All but the newest product are done, in every warp after the barrier: the stage before this one is free.
        acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
        meet()
        refill = k - 1 + STAGES
        load_stage(a_desc, b_desc, a_ring, b_ring, arrived, z, m0, n0, refill * BK, refill % STAGES,
                   (k > 0) & (refill < steps), A_TRANS, B_TRANS)  # fmt: skip
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))

    z = z.to(gl.int64)
    c_ptr += z * stride_cz
    c0_ptr += z * stride_c0z
    if VECTOR > 1:  # what the host has checked, in forms that the compiler understands: 16 bytes a load and a store
        c_ptr = gl.multiple_of(c_ptr, 16)
        c0_ptr = gl.multiple_of(c0_ptr, 16)
        N = N // VECTOR * VECTOR
        stride_cm, stride_cn = stride_cm // VECTOR * VECTOR, 1
        stride_c0m, stride_c0n = stride_c0m // VECTOR * VECTOR, 1
    # All in float32, in a layout whose rows are neighbours in memory; the store is the only rounding to C's dtype.
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // BN, BN // 8], [gl.num_warps(), 1], [1, 0])
    acc = gl.convert_layout(acc, layout)
    m = m0 + gl.arange(0, BM, gl.SliceLayout(1, layout))[:, None]
    n = n0 + gl.arange(0, BN, gl.SliceLayout(0, layout))[None, :]
    inside = (m < M) & (n < N)
    m, n = m.to(INDEX), n.to(INDEX)
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
    config = CONFIGS[config] if isinstance(config, str) else config or pick(ops.M, ops.N)
    BM, BN, BK, stages, num_warps = config
    width = vector(rows=(ops.out, ops.c0))
    gemm_pipeline[(ops.B * triton.cdiv(ops.M, BM) * triton.cdiv(ops.N, BN),)](
        describe(ops.a, BM, BK), describe(ops.b, BK, BN), ops.out, *ops.out.stride(), *addends(ops),
        ops.M, ops.N, ops.K, alpha, beta,
        A_TRANS=is_transposed(ops.a), B_TRANS=is_transposed(ops.b), INDEX=index_type(ops.out, ops.c0),
        VECTOR=width, PLAIN=width > 1 and is_plain(ops, alpha), BM=BM, BN=BN, BK=BK, STAGES=stages, num_warps=num_warps,
    )  # fmt: skip
