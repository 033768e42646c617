"""Step 4: FlashAttention-3's idea in Gluon, for Hopper. The exponentials run while the tensor cores multiply.

What changed against step 3: there, a warp multiplies or exponentiates, and the other unit waits for it. Here

* one warp only copies: Q, K and V come by bulk tensor copies, whose addresses no register holds;
* two warpgroups of 64 queries each are programs of their own, so that one may multiply while the other exponentiates;
* within one, too: the products S = Q K^T of the next tile are asked for before the products P V of this one, and while
  the tensor cores do both, the softmax of the next tile starts as soon as its S is there. P never leaves the registers:
  wgmma takes it from there;
* with `turns` the two do not only happen to alternate: a warpgroup asks for its products when the other has asked for
  its own, so that the softmax of each runs during the products of the other;
* CTAs are persistent. The next block's Q, K and V are on their way while this one's output is written, and the order of
  blocks turns round in every round (longest first, then shortest first), so that every CTA gets about the same work.

What it should buy: a 128 x 128 tile of scores at D = 128 is 2048 clocks of the tensor cores of an SM, and 1024 of its
exponentials, beside which the other work on the scores fits (step 3 counts both). Overlapped, the lesser hides behind
the greater.
Registers decide what is possible: of a thread's 240 the output takes 64, the scores 64, and P of the tile before 32.
Shared memory: Q and the output 32 KB each, a stage of K and V 64 KB; two of them make 192 of the 227 KB of a CTA.

Domain: float16 and bfloat16, D = Dv of 64 or 128, causal or full, scale > 0, every query sees a key, last dimension
contiguous, other strides and bases multiples of 16 bytes. Everything else goes to step3_flash.
"""

from typing import NamedTuple

import torch
import triton
from rooftest_kernels.attention import step3_flash
from rooftest_kernels.attention.operands import Operands, operands, vector
from rooftest_kernels.attention.step3_flash import together
from rooftest_kernels.gemm.descriptors import GLUON_DTYPE, async_load, async_store
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ROWS = gl.constexpr(64)  # of Q in one consumer: the rows of one wgmma
LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)


class Config(NamedTuple):
    """Keys a step; tiles of K and of V in shared memory; whether the consumers take turns at the tensor cores."""

    BN: int
    stages: int
    turns: bool


CONFIGS = {
    "128": Config(128, 2, turns=False),
    "128-turns": Config(128, 2, turns=True),
}


@gluon.jit
def locate(round_, heads, H, Sq):
    """Return batch element, head and first query of this CTA's block in a round.

    Blocks of `heads` heads are walked together, the longest (in a causal kernel) first; `heads` divides B H.
    """
    P = gl.num_programs(0)
    tile = round_ * P + gl.where(round_ % 2 == 0, gl.program_id(0), P - 1 - gl.program_id(0))
    blocks = gl.cdiv(Sq, 2 * ROWS)
    within = tile % (heads * blocks)
    head = tile // (heads * blocks) * heads + within % heads
    return head // H, head % H, (blocks - 1 - within // heads) * (2 * ROWS)


@gluon.jit
def rounds(tiles):
    """Return how many of the blocks are this CTA's: one in each whole round, perhaps one of the rest."""
    P = gl.num_programs(0)
    whole = tiles // P
    place = gl.where(whole % 2 == 0, gl.program_id(0), P - 1 - gl.program_id(0))
    return whole + (place < tiles - whole * P).to(gl.int32)


@gluon.jit
def key_tiles(m0, Sq, Sk, CAUSAL: gl.constexpr, BN: gl.constexpr):
    """Return how many tiles of keys the block of queries at m0 sees."""
    last = gl.minimum(m0 + 2 * ROWS, Sq) + Sk - Sq if CAUSAL else Sk
    return gl.cdiv(last, BN)


@gluon.jit
def as_matrix(box):
    """A (1, 1, rows, columns) box in shared memory as a matrix."""
    return box.reshape([box.shape[2], box.shape[3]])


@gluon.jit
def produce(q_desc, k_desc, v_desc, q_bufs, k_bufs, v_bufs, q_bars, k_bars, v_bars, sizes,
            CAUSAL: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """The producer warp: keep every free stage filled, in the order in which the consumers read."""
    tiles, heads, H, R, Sq, Sk = sizes
    step = 0
    for r in range(rounds(tiles)):
        b, h, m0 = locate(r, heads, H, Sq)
        g = h // R
        count = key_tiles(m0, Sq, Sk, CAUSAL, BN)
        for i in range(count + 1):  # K of tile i, then V of the one before; from the last keys to the first
            if i < count:
                stage = (step + i) % STAGES
                # A stage is free at first: waiting for the phase before the first one returns at once.
                mbarrier.wait(k_bars.index(STAGES + stage), (((step + i) // STAGES) & 1) ^ 1)
                mbarrier.expect(k_bars.index(stage), k_desc.block_type.nbytes)
                async_load(k_desc, [b, g, (count - 1 - i) * BN, 0], k_bars.index(stage), k_bufs.index(stage))
            if i == 0:
                mbarrier.wait(q_bars.index(1), (r & 1) ^ 1)
                mbarrier.expect(q_bars.index(0), 2 * q_desc.block_type.nbytes)
                async_load(q_desc, [b, h, m0, 0], q_bars.index(0), q_bufs.index(0))
                async_load(q_desc, [b, h, m0 + ROWS, 0], q_bars.index(0), q_bufs.index(1))
            if i > 0:
                stage = (step + i - 1) % STAGES
                mbarrier.wait(v_bars.index(STAGES + stage), (((step + i - 1) // STAGES) & 1) ^ 1)
                mbarrier.expect(v_bars.index(stage), v_desc.block_type.nbytes)
                async_load(v_desc, [b, g, (count - i) * BN, 0], v_bars.index(stage), v_bufs.index(stage))
        step += count


@gluon.jit
def soften(s, maximum, total, c, p0, n0, Sk, CAUSAL: gl.constexpr, MASKED: gl.constexpr):
    """Return the shares of a tile of scores, and the new maximum (times log2 e), sum, and factor of what was before.

    p0: the position of the first query, n0: the first key; both only matter where MASKED.
    """
    layout: gl.constexpr = s.type.layout
    if MASKED:
        column = gl.arange(0, s.shape[1], gl.SliceLayout(0, layout))[None, :]
        if CAUSAL:  # p < Sk, so that this is the end of the keys as well
            p = p0 + gl.arange(0, s.shape[0], gl.SliceLayout(1, layout))
            s = gl.where(column <= (gl.minimum(p, Sk - 1) - n0)[:, None], s, float("-inf"))
        else:
            s = gl.where(column < Sk - n0, s, float("-inf"))
    larger = gl.maximum(maximum, gl.max(s, 1) * c)
    # A row that has seen no key yet has the maximum -inf, and -inf - -inf would be NaN.
    base = gl.where(larger == float("-inf"), 0.0, larger) if MASKED else larger
    e = gl.exp2(s * c - base[:, None])
    shrink = gl.exp2(maximum - base)
    total = total * shrink + gl.sum(e, 1)
    return e, larger, total, shrink


@gluon.jit
def after(total):
    """Return the sums unchanged, and keep what stands behind from being done before they are known.

    ptxas knows no reason why a wait for wgmma should come after arithmetic that does not need its result, and moves it
    up: before the exponentials, which then overlap nothing. It keeps waits and memory accesses in order. So here is a
    store to shared memory that never happens, because no sum is negative.
    """
    store: gl.constexpr = """{
        .reg .pred negative;
        .reg .b32 nowhere;
        mov.b32 nowhere, 0;
        setp.lt.f32 negative, $1, 0f00000000;
        @negative st.volatile.shared.f32 [nowhere], $1;
        mov.f32 $0, $1;
    }"""
    return gl.inline_asm_elementwise(store, "=f,f", [total], gl.float32, False, 1)


@gluon.jit
def pack(e, dtype: gl.constexpr):
    """Round shares to 16 bits; two neighbours of a row are one int32."""
    low, high = e.reshape([e.shape[0], e.shape[1] // 2, 2]).split()
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", [high, low], gl.int32, True, 1)
    else:  # noqa: RET505 - the compiler needs both branches of a condition on a constant
        return gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $1, $2;", "=r,f,f", [high, low], gl.int32, True, 1)


@gluon.jit
def unpack(packed, dtype: gl.constexpr, operand: gl.constexpr):
    """Return what `pack` rounded, as an operand of wgmma. Both only say where registers are: nothing moves."""
    low = packed.to(gl.int16).to(dtype, bitcast=True)
    high = (packed >> 16).to(gl.int16).to(dtype, bitcast=True)
    pairs = gl.join(low, high)
    return gl.convert_layout(pairs.reshape([packed.shape[0], 2 * packed.shape[1]]), operand)


@gluon.jit
def advance(acc, p, maximum, total, q, k_bufs, v_bufs, k_bars, v_bars, turn, step, c, p0, n0, Sk,
            INDEX: gl.constexpr, CAUSAL: gl.constexpr, MASKED: gl.constexpr, TURNS: gl.constexpr, STAGES: gl.constexpr,
            s_layout: gl.constexpr, operand: gl.constexpr):  # fmt: skip
    """Add P V of tile `step` - 1 to acc while the scores of tile `step`, whose first key is n0, become its shares.

    e: the shares of tile `step` - 1 in float32. They are rounded here, under way, and not where they were computed: a
    loop would carry 16-bit elements one by one, and pack them again in every round (64 of 522 instructions).
    """
    BN: gl.constexpr = k_bufs.shape[3]
    stage = step % STAGES
    before = (step + STAGES - 1) % STAGES
    mbarrier.wait(k_bars.index(stage), (step // STAGES) & 1)
    if TURNS:
        mbarrier.wait(turn.index(INDEX), step & 1)
    s = warpgroup_mma(q, as_matrix(k_bufs.index(stage)).permute((1, 0)),
                      gl.zeros([ROWS, BN], gl.float32, s_layout), use_acc=False, is_async=True)  # fmt: skip
    mbarrier.wait(v_bars.index(before), ((step - 1) // STAGES) & 1)
    acc = warpgroup_mma(unpack(p, v_bufs.dtype, operand), as_matrix(v_bufs.index(before)), acc, is_async=True)
    if TURNS:
        mbarrier.arrive(turn.index(1 - INDEX))
    s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
    mbarrier.arrive(k_bars.index(STAGES + stage))
    e, maximum, total, shrink = soften(s, maximum, total, c, p0, n0, Sk, CAUSAL, MASKED)
    total = after(total)
    acc, e = warpgroup_mma_wait(num_outstanding=0, deps=(acc, e))
    p = pack(e, v_bufs.dtype)
    mbarrier.arrive(v_bars.index(STAGES + before))
    acc *= gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
    return acc, p, maximum, total


@gluon.jit
def consume(given, sizes, INDEX: gl.constexpr, CAUSAL: gl.constexpr, TURNS: gl.constexpr,
            BN: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Consumer INDEX, one warpgroup: queries 64 INDEX to 64 INDEX + 63 of every block of this CTA."""
    out_desc, q_bufs, k_bufs, v_bufs, out_bufs, q_bars, k_bars, v_bars, turn, lse_ptr, c = given
    tiles, heads, H, _, Sq, Sk = sizes
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], instr_shape=[16, BN, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], instr_shape=[16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc_layout, k_width=2)
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    dtype: gl.constexpr = out_desc.dtype
    q = as_matrix(q_bufs.index(INDEX))
    step = 0
    for r in range(rounds(tiles)):
        b, h, m0 = locate(r, heads, H, Sq)
        count = key_tiles(m0, Sq, Sk, CAUSAL, BN)
        m0 += INDEX * ROWS
        p0 = m0 + Sk - Sq
        # The tiles before `full` are seen by every query of this consumer, key by key.
        full = Sk // BN
        if CAUSAL:
            full = gl.minimum(gl.minimum(p0 + 1, Sk) // BN, count)
        acc = gl.zeros([ROWS, D], gl.float32, acc_layout)
        maximum = gl.full([ROWS], float("-inf"), gl.float32, row_layout)
        total = gl.zeros([ROWS], gl.float32, row_layout)

        mbarrier.wait(q_bars.index(0), r & 1)
        stage = step % STAGES
        mbarrier.wait(k_bars.index(stage), (step // STAGES) & 1)
        if TURNS:
            mbarrier.wait(turn.index(INDEX), step & 1)
        s = warpgroup_mma(q, as_matrix(k_bufs.index(stage)).permute((1, 0)),
                          gl.zeros([ROWS, BN], gl.float32, s_layout), use_acc=False, is_async=True)  # fmt: skip
        if TURNS:
            mbarrier.arrive(turn.index(1 - INDEX))
        s = warpgroup_mma_wait(num_outstanding=0, deps=(s,))
        mbarrier.arrive(k_bars.index(STAGES + stage))
        e, maximum, total, _ = soften(s, maximum, total, c, p0, (count - 1) * BN, Sk, CAUSAL, True)
        p = pack(e, dtype)
        step += 1
        masked = gl.maximum(count - 1 - full, 0)  # of the tiles that remain
        for i in range(masked):
            acc, p, maximum, total = advance(
                acc, p, maximum, total, q, k_bufs, v_bufs, k_bars, v_bars, turn, step, c, p0, (count - 2 - i) * BN, Sk,
                INDEX, CAUSAL, True, TURNS, STAGES, s_layout, operand,
            )  # fmt: skip
            step += 1
        for _ in range(count - 1 - masked):
            acc, p, maximum, total = advance(
                acc, p, maximum, total, q, k_bufs, v_bufs, k_bars, v_bars, turn, step, c, p0, 0, Sk,
                INDEX, CAUSAL, False, TURNS, STAGES, s_layout, operand,
            )  # fmt: skip
            step += 1
        mbarrier.arrive(q_bars.index(1))
        before = (step + STAGES - 1) % STAGES
        mbarrier.wait(v_bars.index(before), ((step - 1) // STAGES) & 1)
        acc = warpgroup_mma(unpack(p, v_bufs.dtype, operand), as_matrix(v_bufs.index(before)), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(v_bars.index(STAGES + before))

        m = m0 + gl.arange(0, ROWS, row_layout)
        if lse_ptr is not None:
            gl.store(lse_ptr + ((b * H + h).to(gl.int64) * Sq + m), (maximum + gl.log2(total)) * LN_2, m < Sq)
        acc *= gl.convert_layout(1 / total, gl.SliceLayout(1, acc_layout))[:, None]
        out = out_bufs.index(INDEX)
        tma.store_wait(pendings=0)  # the copy of the block before has read the buffer
        as_matrix(out).store(acc.to(dtype))
        fence_async_shared()
        async_store(out_desc, [b, h, m0, 0], out)
    tma.store_wait(pendings=0)


@gluon.jit
def allocate(desc, COUNT: gl.constexpr):
    """Shared memory for COUNT boxes of a descriptor."""
    rows: gl.constexpr = desc.block_type.shape[2]
    columns: gl.constexpr = desc.block_type.shape[3]
    return gl.allocate_shared_memory(desc.dtype, [COUNT, 1, 1, rows, columns], desc.layout)


@gluon.jit
def allocate_barriers(STAGES: gl.constexpr):
    """An mbarrier `full` for each stage, which counts bytes, then an `empty` for each, which counts both consumers."""
    bars = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(bars.index(stage), count=1)
        mbarrier.init(bars.index(STAGES + stage), count=2)
    return bars


@gluon.jit(
    do_not_specialize=["tiles", "heads", "H", "R", "Sq", "Sk"],
    do_not_specialize_on_alignment=["lse_ptr"],
)  # fmt: skip
def attention_hopper(q_desc, k_desc, v_desc, out_desc, lse_ptr,
                     tiles, heads, H, R, Sq, Sk, scale,
                     CAUSAL: gl.constexpr, TURNS: gl.constexpr, BN: gl.constexpr, D: gl.constexpr,
                     STAGES: gl.constexpr):  # fmt: skip
    """One CTA: a block of 128 queries of one head in every round."""
    q_bufs, out_bufs = allocate(q_desc, 2), allocate(out_desc, 2)
    k_bufs, v_bufs = allocate(k_desc, STAGES), allocate(v_desc, STAGES)
    q_bars, k_bars, v_bars = allocate_barriers(1), allocate_barriers(STAGES), allocate_barriers(STAGES)
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(turn.index(0), count=1)
    mbarrier.init(turn.index(1), count=1)
    fence_async_shared()  # what threads wrote is read by the TMA unit, which counts bytes on these barriers
    mbarrier.arrive(turn.index(0))  # consumer 0 has the first turn

    sizes = (tiles, heads, H, R, Sq, Sk)
    given = (out_desc, q_bufs, k_bufs, v_bufs, out_bufs, q_bars, k_bars, v_bars, turn, lse_ptr, scale * LOG2_E)
    gl.warp_specialize(
        [
            (consume, (given, sizes, 0, CAUSAL, TURNS, BN, D, STAGES)),
            (consume, (given, sizes, 1, CAUSAL, TURNS, BN, D, STAGES)),
            (produce, (q_desc, k_desc, v_desc, q_bufs, k_bufs, v_bufs, q_bars, k_bars, v_bars, sizes,
                       CAUSAL, BN, STAGES)),
        ],
        worker_num_warps=[4, 1],
        worker_num_regs=[240, 24],
    )  # fmt: skip


def takes(ops: Operands, causal: float, window: float) -> bool:
    """Return whether this kernel is made for the operands."""
    return (
        ops.q.element_size() == 2
        and ops.Dv == ops.D
        and ops.D in {64, 128}
        and ops.Sk > 0
        and not (causal and ops.Sq > ops.Sk)
        and window <= 0
        and ops.scale > 0
        and ops.softcap == 0
        and ops.slopes is None
        and (ops.lse is None or ops.lse.is_contiguous())
        and vector(ops.q, ops.k, ops.v, ops.out) > 1
        and all(s for t in (ops.q, ops.k, ops.v, ops.out) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1)
    )


def describe(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """Return a descriptor of boxes of `rows` positions of one head of a (B, S, H, D) tensor."""
    view = tensor.transpose(1, 2)
    # A dimension of size 1 is never stepped along, so torch gives it any stride; the descriptor wants a legal one.
    strides = [s if size > 1 else 8 for size, s in zip(view.shape, view.stride(), strict=True)]
    box = [1, 1, rows, view.shape[3]]
    layout = gl.NVMMASharedLayout.get_default_for(box, GLUON_DTYPE[tensor.dtype])
    return TensorDescriptor(view, list(view.shape), [*strides[:3], 1], box, layout)


def launch(ops: Operands, causal: float, config: Config) -> None:
    """Compute the output for operands that `takes` accepts, with one persistent CTA an SM."""
    sms = torch.cuda.get_device_properties(ops.out.device).multi_processor_count
    tiles = ops.B * ops.H * triton.cdiv(ops.Sq, 128)
    attention_hopper[(min(tiles, sms),)](
        describe(ops.q, 64), describe(ops.k, config.BN), describe(ops.v, config.BN), describe(ops.out, 64),
        ops.lse, tiles, together(ops), ops.H, ops.H // ops.G,
        ops.Sq, ops.Sk, float(ops.scale),
        CAUSAL=bool(causal), TURNS=config.turns, BN=config.BN, D=ops.D, STAGES=config.stages, num_warps=4,
    )  # fmt: skip


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    out: torch.Tensor,
    lse: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    causal: float = 0.0,
    window: float = 0.0,
    scale: float = 0.0,
    softcap: float = 0.0,
    config: str | Config | None = None,
) -> None:
    """Write softmax(scores) V to out, and the logarithm of each row's sum of exponentials to lse.

    Shapes, parameters and errors as step1_naive.attention. config: a name out of CONFIGS, or None for 128.
    """
    ops = operands(q, k, v, out, lse, slopes, causal, window, scale, softcap)
    if ops.B * ops.Sq * ops.H == 0:
        return
    if not takes(ops, causal, window):
        step3_flash.launch(ops, step3_flash.pick(ops))
        return
    launch(ops, causal, CONFIGS[config] if isinstance(config, str) else config or CONFIGS["128"])
