"""Step 3: FlashAttention-2 in plain Triton. The complete kernel: what others cannot take comes here.

What changed against step 2, all of it about the work beside the products:

* Keys that no query of the block sees are not visited: a causal kernel computes half. Tiles that every query sees need
  no mask and have a loop of their own; only those at an edge pay for comparisons.
* The exponential is 2^x, the one that the hardware has. Scale and log2 e become one factor c, and 2^(c s - c m) takes
  one multiply-add and one ex2 a score.
* Programs walk so that the L2 serves them: a section of heads whose K and V fit into it, in it the heads of one group
  side by side, as they read the same K and V, and in it the longest query blocks first, so that the shortest are left
  for the end, when SMs would be idle.
* The tiles are those that fit: 128 queries halve the bytes that a product asks of the L2, and `num_stages` keeps the
  next tiles of K and V on their way.

What it should buy: on Hopper a 128 x 128 tile of scores at D = 128 is 2048 clocks of the tensor cores, and 16384
exponentials, of which an SM does 16 a clock: 1024 clocks. A score also takes a maximum, a multiply-add, a sum and half
a conversion, and the output as many multiplies as there are scores: 4.5 instructions of 128 lanes a clock, 576 clocks.
Where nothing overlaps, that leaves the tensor cores 56 % of their rate; two programs on an SM overlap a part of it. The
FLOP are 2 (D + Dv) a visible pair of query and key; the bytes are step 2's, and not what limits it.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from rooftest_kernels.attention.operands import (
    SIZES_AND_STRIDES,
    SMALL,
    Operands,
    arguments,
    columns,
    index_type,
    is_full,
    known,
    operands,
    vector,
)
from rooftest_kernels.attention.scores import LN_2, LOG2_E, finite, key_range, score, visible

# K and V of the heads that are walked together: a third of the 50 MB of Hopper's L2, as the sections before and after
# want theirs too while one gives way to the next.
SECTION_BYTES = 16 * 2**20


class Config(NamedTuple):
    """BM queries a program, BN keys a step; warps a program; tiles of K and V on their way or in use."""

    BM: int
    BN: int
    num_warps: int
    num_stages: int


CONFIGS = {
    "16x32": Config(16, 32, num_warps=4, num_stages=2),
    "32x16": Config(32, 16, num_warps=8, num_stages=1),
    "64x32": Config(64, 32, num_warps=8, num_stages=2),
    "64x64": Config(64, 64, num_warps=4, num_stages=3),
    "128x32": Config(128, 32, num_warps=8, num_stages=3),
    "128x64": Config(128, 64, num_warps=8, num_stages=3),
    "128x128": Config(128, 128, num_warps=8, num_stages=2),
}


def pick(ops: Operands) -> Config:
    """Choose the largest tile of which nothing spills, and no more rows than there are queries.

    float32 is multiplied in registers. So are the 16-bit dtypes by mma.sync; wgmma and tcgen05 (sm_90, sm_100) read Q
    and K in shared memory, which leaves registers for twice the keys.
    """
    widest = max(columns(ops.D), columns(ops.Dv))
    if ops.q.element_size() == 4:
        return CONFIGS["32x16"]
    if ops.Sq <= 16:
        return CONFIGS["16x32"]
    if widest > 128:
        return CONFIGS["64x32"]
    asynchronous = ops.q.is_cuda and torch.cuda.get_device_capability(ops.q.device)[0] in {9, 10}
    if ops.Sq <= 64:
        return CONFIGS["64x64" if asynchronous else "64x32"]
    if not asynchronous:
        return CONFIGS["128x32"]
    return CONFIGS["128x64" if widest > 64 else "128x128"]


def together(ops: Operands) -> int:
    """Return how many heads are walked together: the most that divide B H, are whole groups, and fit into the L2."""
    pairs, pair_bytes = ops.B * ops.G, ops.Sk * (ops.D + ops.Dv) * ops.q.element_size()
    most = min(pairs, SECTION_BYTES // max(1, pair_bytes))
    return ops.H // ops.G * next((n for n in range(most, 0, -1) if pairs % n == 0), 1)


@triton.jit
def locate(heads, H, Sq, BM: tl.constexpr):
    """Return batch element, head and first query of this program.

    Blocks of `heads` heads are neighbours, the longest (in a causal kernel) first; `heads` divides B H.
    """
    blocks = tl.cdiv(Sq, BM)
    within = tl.program_id(0) % (heads * blocks)
    head = tl.program_id(0) // (heads * blocks) * heads + within % heads
    return head // H, head % H, (blocks - 1 - within // heads) * BM


@triton.jit
def attend(
    acc, total, maximum, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, start, m, first, last,
    in_d, in_dv, Sq, Sk, left, right, scale, softcap, slope,
    MASKED: tl.constexpr, FULL: tl.constexpr, SOFTCAP: tl.constexpr, SLOPES: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Take BN keys from `start` into a block's weighted sum, sum of shares and maximum (of scores times log2 e)."""
    keys = start + tl.arange(0, BN)
    step = start.to(tl.int64)
    k_ptrs = k_ptr + step * stride_kn + k_offsets
    v_ptrs = v_ptr + step * stride_vn + v_offsets
    if MASKED:
        # A share of 0 times a NaN is NaN, so keys that nobody here sees are not read.
        seen = ((keys >= first) & (keys < last))[:, None]
        k = tl.load(k_ptrs, mask=seen & in_d, other=0.0)
    else:
        k = tl.load(k_ptrs) if FULL else tl.load(k_ptrs, mask=in_d, other=0.0)
    s = tl.dot(q, k.T, input_precision="ieee")
    if SOFTCAP or SLOPES:
        s = score(s, m, keys[None, :], Sq, Sk, scale, softcap, slope, SOFTCAP, SLOPES)
        c = LOG2_E
    else:
        c = scale * LOG2_E
    if MASKED:
        s = tl.where(visible(m, keys[None, :], Sq, Sk, left, right), s, float("-inf"))
    larger = tl.maximum(maximum, tl.max(s, 1) * c)
    p = tl.exp2(s * c - finite(larger)[:, None])
    shrink = tl.exp2(maximum - finite(larger))
    total = total * shrink + tl.sum(p, 1)
    if MASKED:
        v = tl.load(v_ptrs, mask=seen & in_dv, other=0.0)
    else:
        v = tl.load(v_ptrs) if FULL else tl.load(v_ptrs, mask=in_dv, other=0.0)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return acc, total, larger


@triton.jit(do_not_specialize=[*SIZES_AND_STRIDES, "heads"], do_not_specialize_on_alignment=SMALL)
def attention_flash(
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kg, stride_kd,
    v_ptr, stride_vb, stride_vn, stride_vg, stride_vd,
    out_ptr, stride_ob, stride_om, stride_oh, stride_od,
    lse_ptr, has_lse, stride_lb, stride_lh, stride_lm, slopes_ptr, stride_slopes,
    H, R, Sq, Sk, D, Dv, left, right, scale, softcap, heads,
    SOFTCAP: tl.constexpr, SLOPES: tl.constexpr, VECTOR: tl.constexpr, FULL: tl.constexpr, INDEX: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Compute BM rows of one head of one batch element.

    VECTOR: the elements in 16 bytes, where all of Q, K, V and the output can be read and written so, else 1. FULL: D
    and Dv are BLOCK_D and BLOCK_DV. INDEX: the integer type of an offset within a head.
    """
    b, h, m0 = locate(heads, H, Sq, BM)
    b, h = b.to(tl.int64), h.to(tl.int64)
    g = h // R
    if VECTOR > 1:  # what the host has checked, in forms that the compiler understands
        stride_qb, stride_qm, stride_qh, stride_qd = known(stride_qb, stride_qm, stride_qh, VECTOR)
        stride_kb, stride_kn, stride_kg, stride_kd = known(stride_kb, stride_kn, stride_kg, VECTOR)
        stride_vb, stride_vn, stride_vg, stride_vd = known(stride_vb, stride_vn, stride_vg, VECTOR)
        stride_ob, stride_om, stride_oh, stride_od = known(stride_ob, stride_om, stride_oh, VECTOR)
        D, Dv = D // VECTOR * VECTOR, Dv // VECTOR * VECTOR
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + g * stride_kg
    v_ptr += b * stride_vb + g * stride_vg
    out_ptr += b * stride_ob + h * stride_oh
    rows = m0 + tl.arange(0, BM)
    m = rows[:, None]
    d, dv = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    in_d, in_dv = d < D, dv < Dv
    tile = tl.arange(0, BN)[:, None].to(INDEX)
    k_offsets = tile * stride_kn + d.to(INDEX) * stride_kd
    v_offsets = tile * stride_vn + dv.to(INDEX) * stride_vd
    q = tl.load(q_ptr + (m.to(INDEX) * stride_qm + d.to(INDEX) * stride_qd), mask=(m < Sq) & in_d, other=0.0)
    q = tl.where(scale < 0, -q, q)  # so that the largest product is the largest score
    scale = tl.abs(scale)
    slope = tl.load(slopes_ptr + h * stride_slopes) if SLOPES else 0.0

    # Tiles from `begin`; those from `full` to `full_end` are seen by every query of the block, key by key.
    first, last = key_range(m0, Sq, Sk, left, right, BM)
    begin = first // BN * BN
    full = tl.cdiv(tl.maximum(tl.minimum(m0 + BM, Sq) - 1 + Sk - Sq - left, 0), BN) * BN
    full_end = tl.maximum(tl.minimum(m0 + Sk - Sq + right + 1, Sk), 0) // BN * BN
    full = tl.minimum(full, tl.maximum(last, begin))
    full_end = tl.maximum(full_end, full)

    maximum = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BLOCK_DV), tl.float32)
    edge = tl.cdiv(full - begin, BN) * BN  # keys of the tiles on the left; those on the right follow
    for i in range(0, edge + tl.maximum(last - full_end, 0), BN):
        start = tl.where(i < edge, begin + i, full_end + i - edge)
        acc, total, maximum = attend(
            acc, total, maximum, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, start, m, first, last,
            in_d, in_dv, Sq, Sk, left, right, scale, softcap, slope, True, FULL, SOFTCAP, SLOPES, BN,
        )  # fmt: skip
    for i in range(0, full_end - full, BN):
        acc, total, maximum = attend(
            acc, total, maximum, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, full + i, m, first, last,
            in_d, in_dv, Sq, Sk, left, right, scale, softcap, slope, False, FULL, SOFTCAP, SLOPES, BN,
        )  # fmt: skip

    total = tl.where(total == 0, 1.0, total)  # a row that sees no key: zeros, and an lse of maximum + 0 = -inf
    acc /= total[:, None]
    out_ptrs = out_ptr + (m.to(INDEX) * stride_om + dv.to(INDEX) * stride_od)
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(m < Sq) & in_dv)
    lse_ptrs = lse_ptr + b * stride_lb + h * stride_lh + rows.to(tl.int64) * stride_lm
    tl.store(lse_ptrs, (maximum + tl.log2(total)) * LN_2, mask=(rows < Sq) & (has_lse != 0))


def launch(ops: Operands, config: Config) -> None:
    """Compute the output for operands of which there is one at least."""
    BM, BN, num_warps, num_stages = config
    width = vector(ops.q, ops.k, ops.v, ops.out)
    attention_flash[(ops.B * ops.H * triton.cdiv(ops.Sq, BM),)](
        *arguments(ops), together(ops), SOFTCAP=ops.softcap > 0, SLOPES=ops.slopes is not None,
        VECTOR=width, FULL=width > 1 and is_full(ops), INDEX=index_type(ops.q, ops.k, ops.v, ops.out),
        BM=BM, BN=BN, BLOCK_D=columns(ops.D), BLOCK_DV=columns(ops.Dv), num_warps=num_warps, num_stages=num_stages,
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

    Shapes, parameters and errors as step1_naive.attention. config: a name out of CONFIGS, or None for `pick`'s choice.
    """
    ops = operands(q, k, v, out, lse, slopes, causal, window, scale, softcap)
    if ops.B * ops.Sq * ops.H == 0:
        return
    launch(ops, CONFIGS[config] if isinstance(config, str) else config or pick(ops))
