"""Step 2: online softmax. The scores live and die in registers; nothing of size Sq x Sk is in memory.

What changed against step 1: a softmax needs its row's maximum and sum before it can weigh the first V, so it seemed to
need the row. It does not: with the maximum m, the sum l and the weighted sum acc of the keys so far, a new tile with
the maximum m' only asks that l and acc are multiplied by exp(m - max(m, m')), and goes on. One program keeps BM queries
and walks along the keys, BN at a time.

What it should buy: memory sees Q, K, V and the output. K and V of a head are read once by each of its ceil(Sq / BM)
programs, of which all but the first should find them in the L2, so moved / min is near 1 at every length where step 1's
grows with it. An SM reads BN (D + Dv) elements for 2 BM BN (D + Dv) FLOP: BM FLOP a byte in a 16-bit dtype, so a BM of
64 asks the L2 for 64 bytes of every 4096 FLOP, the products of one clock: about all that it can give.
This step does no more than that: it visits every tile of keys whether or not a query sees it, computes a mask in each,
and divides only at the end, because that is simpler too.
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
    known,
    operands,
    vector,
)
from rooftest_kernels.attention.scores import finite, key_range, score, visible


class Config(NamedTuple):
    """BM queries a program, BN keys a step; warps a program."""

    BM: int
    BN: int
    num_warps: int


CONFIGS = {
    "16x16": Config(16, 16, num_warps=4),
    "64x32": Config(64, 32, num_warps=4),
    "64x64": Config(64, 64, num_warps=4),
}


def pick(ops: Operands) -> Config:
    """Choose a tile that fits the registers of every generation up to D = 128; float32 is multiplied there."""
    return CONFIGS["16x16" if ops.q.element_size() == 4 else "64x32"]


@triton.jit(do_not_specialize=SIZES_AND_STRIDES, do_not_specialize_on_alignment=SMALL)
def attention_tiled(
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kg, stride_kd,
    v_ptr, stride_vb, stride_vn, stride_vg, stride_vd,
    out_ptr, stride_ob, stride_om, stride_oh, stride_od,
    lse_ptr, has_lse, stride_lb, stride_lh, stride_lm, slopes_ptr, stride_slopes,
    H, R, Sq, Sk, D, Dv, left, right, scale, softcap,
    SOFTCAP: tl.constexpr, SLOPES: tl.constexpr, VECTOR: tl.constexpr, INDEX: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Compute BM rows of one head of one batch element.

    VECTOR: the elements in 16 bytes, where all of Q, K, V and the output can be read and written so, else 1. INDEX: the
    integer type of an offset within a head.
    """
    blocks = tl.cdiv(Sq, BM)
    head = tl.program_id(0) // blocks
    m0 = tl.program_id(0) % blocks * BM
    b, h = (head // H).to(tl.int64), (head % H).to(tl.int64)
    g = h // R
    if VECTOR > 1:
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
    m, tile = rows[:, None], tl.arange(0, BN)[:, None].to(INDEX)
    d, dv = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    q = tl.load(q_ptr + (m.to(INDEX) * stride_qm + d.to(INDEX) * stride_qd), mask=(m < Sq) & (d < D), other=0.0)
    k_offsets = tile * stride_kn + d.to(INDEX) * stride_kd
    v_offsets = tile * stride_vn + dv.to(INDEX) * stride_vd
    step = tl.full((), BN, tl.int64)
    slope = tl.load(slopes_ptr + h * stride_slopes) if SLOPES else 0.0
    first, last = key_range(m0, Sq, Sk, left, right, BM)

    maximum = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BLOCK_DV), tl.float32)
    for start in range(0, Sk, BN):
        keys = start + tl.arange(0, BN)
        n = keys[None, :]
        # A share of 0 times a NaN is NaN, so keys that nobody here sees are not read.
        seen = ((keys >= first) & (keys < last))[:, None]
        k = tl.load(k_ptr + k_offsets, mask=seen & (d < D), other=0.0)
        s = score(tl.dot(q, k.T, input_precision="ieee"), m, n, Sq, Sk, scale, softcap, slope, SOFTCAP, SLOPES)
        s = tl.where(visible(m, n, Sq, Sk, left, right), s, float("-inf"))
        larger = tl.maximum(maximum, tl.max(s, 1))
        p = tl.exp(s - finite(larger)[:, None])
        shrink = tl.exp(maximum - finite(larger))
        maximum = larger
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(v_ptr + v_offsets, mask=seen & (dv < Dv), other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        k_ptr += step * stride_kn
        v_ptr += step * stride_vn

    total = tl.where(total == 0, 1.0, total)  # a row that sees no key: zeros, and an lse of maximum + 0 = -inf
    acc /= total[:, None]
    out_ptrs = out_ptr + (m.to(INDEX) * stride_om + dv.to(INDEX) * stride_od)
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(m < Sq) & (dv < Dv))
    lse_ptrs = lse_ptr + b * stride_lb + h * stride_lh + rows.to(tl.int64) * stride_lm
    tl.store(lse_ptrs, maximum + tl.log(total), mask=(rows < Sq) & (has_lse != 0))


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
    BM, BN, num_warps = CONFIGS[config] if isinstance(config, str) else config or pick(ops)
    attention_tiled[(ops.B * ops.H * triton.cdiv(ops.Sq, BM),)](
        *arguments(ops), SOFTCAP=ops.softcap > 0, SLOPES=ops.slopes is not None,
        VECTOR=vector(ops.q, ops.k, ops.v, ops.out), INDEX=index_type(ops.q, ops.k, ops.v, ops.out),
        BM=BM, BN=BN, BLOCK_D=columns(ops.D), BLOCK_DV=columns(ops.Dv), num_warps=num_warps,
    )  # fmt: skip
