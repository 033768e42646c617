"""Step 1: the definition. S = Q K^T in memory, softmax of its rows in memory, then P V: three kernels.

A score is one float32 of the workspace (B, H, Sq, Sk). It is written, read for its row's maximum, read for the sum and
overwritten with its share P, then read for the product with V. If a row stays in the caches between the passes of the
softmax (16 KB at Sk = 4096), a score moves 16 bytes through device memory, else up to 24.

The least is to read Q, K, V and write the output once: with S = Sq = Sk, H = G, D = Dv and 16-bit dtypes 8 S D bytes a
head, beside 16 S^2 here. So moved / min is 1 + 2 S / D: 65 at S = 4096 and D = 128, 513 at S = 32768. The products are
4 S^2 D FLOP a head, 32 FLOP a byte at D = 128 where an H200 needs some 200 to be busy: this step is bound by memory
at every length, and its workspace is 4 S^2 bytes a head, 4.3 GB at S = 32768.
The steps after this one are about not having S in memory.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from rooftest_kernels.attention.operands import (
    SIZES_AND_STRIDES,
    SMALL,
    Operands,
    columns,
    index_type,
    known,
    lse_arguments,
    operands,
    slopes_arguments,
    vector,
)
from rooftest_kernels.attention.scores import finite, key_range, score, visible


class Config(NamedTuple):
    """Tile [BM, BN] of the scores, in 4 warps; BM rows of the output at a time, BN keys and BN columns of D a step."""

    BM: int
    BN: int


CONFIGS = {"16x32": Config(16, 32), "64x64": Config(64, 64)}


def pick(ops: Operands) -> Config:
    """Choose the larger tile where it fits the registers: float32 is multiplied there."""
    return CONFIGS["16x32" if ops.q.element_size() == 4 else "64x64"]


@triton.jit(do_not_specialize=SIZES_AND_STRIDES, do_not_specialize_on_alignment=SMALL)
def scores_naive(
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kg, stride_kd,
    slopes_ptr, stride_slopes, s_ptr, stride_s,
    H, R, Sq, Sk, D, left, right, scale, softcap,
    SOFTCAP: tl.constexpr, SLOPES: tl.constexpr, VECTOR: tl.constexpr, INDEX: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write one [BM, BN] tile of one head's scores; -inf where the query does not see the key.

    VECTOR: the elements in 16 bytes, where all of Q, K, V and the output can be read and written so, else 1. INDEX: the
    integer type of an offset within a head. stride_s: of a row of scores.
    """
    tiles_n = tl.cdiv(Sk, BN)
    tiles = tl.cdiv(Sq, BM) * tiles_n
    tile = tl.program_id(0) % tiles
    head = (tl.program_id(0) // tiles).to(tl.int64)
    b, h = head // H, head % H
    m = (tile // tiles_n * BM + tl.arange(0, BM))[:, None]
    keys = tile % tiles_n * BN + tl.arange(0, BN)
    n = keys[None, :]
    if VECTOR > 1:
        stride_qb, stride_qm, stride_qh, stride_qd = known(stride_qb, stride_qm, stride_qh, VECTOR)
        stride_kb, stride_kn, stride_kg, stride_kd = known(stride_kb, stride_kn, stride_kg, VECTOR)
        D = D // VECTOR * VECTOR
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h // R * stride_kg
    qk = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, D, BN):
        d = (start + tl.arange(0, BN))[None, :]
        q_offsets = m.to(INDEX) * stride_qm + d.to(INDEX) * stride_qd
        k_offsets = keys[:, None].to(INDEX) * stride_kn + d.to(INDEX) * stride_kd
        q = tl.load(q_ptr + q_offsets, mask=(m < Sq) & (d < D), other=0.0)
        k = tl.load(k_ptr + k_offsets, mask=(keys < Sk)[:, None] & (d < D), other=0.0)
        qk = tl.dot(q, k.T, qk, input_precision="ieee")
    slope = tl.load(slopes_ptr + h * stride_slopes) if SLOPES else 0.0
    s = score(qk, m, n, Sq, Sk, scale, softcap, slope, SOFTCAP, SLOPES)
    s = tl.where(visible(m, n, Sq, Sk, left, right), s, float("-inf"))
    tl.store(s_ptr + (head * Sq + m) * stride_s + n, s, mask=(m < Sq) & (n < Sk))


@triton.jit(do_not_specialize=SIZES_AND_STRIDES, do_not_specialize_on_alignment=SMALL)
def softmax_naive(s_ptr, stride_s, lse_ptr, has_lse, stride_lb, stride_lh, stride_lm, rows, H, Sq, Sk,
                  ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Replace ROWS rows of scores by their softmax, and write the logarithms of the sums of their exponentials."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, BLOCK)[None, :]
    there = row < rows
    s_ptrs = s_ptr + row[:, None] * stride_s + n
    maximum = tl.full((ROWS, BLOCK), float("-inf"), tl.float32)
    for start in range(0, Sk, BLOCK):
        inside = there[:, None] & (start + n < Sk)
        maximum = tl.maximum(maximum, tl.load(s_ptrs + start, mask=inside, other=float("-inf")))
    m = tl.max(maximum, 1)
    shift = finite(m)[:, None]
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, Sk, BLOCK):
        s = tl.load(s_ptrs + start, mask=there[:, None] & (start + n < Sk), other=float("-inf"))
        sums += tl.exp(s - shift)
    total = tl.sum(sums, 1)
    total = tl.where(total == 0, 1.0, total)  # a row that sees no key: shares of 0, and an lse of m + 0 = -inf
    for start in range(0, Sk, BLOCK):
        inside = there[:, None] & (start + n < Sk)
        s = tl.load(s_ptrs + start, mask=inside, other=float("-inf"))
        tl.store(s_ptrs + start, tl.exp(s - shift) / total[:, None], mask=inside)
    head = row // Sq
    place = head // H * stride_lb + head % H * stride_lh + row % Sq * stride_lm
    tl.store(lse_ptr + place, m + tl.log(total), mask=there & (has_lse != 0))


@triton.jit(do_not_specialize=SIZES_AND_STRIDES, do_not_specialize_on_alignment=SMALL)
def weigh_naive(
    p_ptr, stride_p, v_ptr, stride_vb, stride_vn, stride_vg, stride_vd,
    out_ptr, stride_ob, stride_om, stride_oh, stride_od,
    H, R, Sq, Sk, Dv, left, right,
    VECTOR: tl.constexpr, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Write BM rows of one head's output, P V; P is rounded to V's dtype. VECTOR, INDEX: as scores_naive's."""
    blocks = tl.cdiv(Sq, BM)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    m0 = tl.program_id(0) % blocks * BM
    b, h = head // H, head % H
    if VECTOR > 1:
        stride_vb, stride_vn, stride_vg, stride_vd = known(stride_vb, stride_vn, stride_vg, VECTOR)
        stride_ob, stride_om, stride_oh, stride_od = known(stride_ob, stride_om, stride_oh, VECTOR)
        Dv = Dv // VECTOR * VECTOR
    v_ptr += b * stride_vb + h // R * stride_vg
    out_ptr += b * stride_ob + h * stride_oh
    m, d = (m0 + tl.arange(0, BM))[:, None], tl.arange(0, BLOCK_DV)[None, :]
    p_ptr += (head * Sq + m0) * stride_p
    p_offsets = tl.arange(0, BM)[:, None].to(tl.int64) * stride_p + tl.arange(0, BN)[None, :]
    v_offsets = tl.arange(0, BN)[:, None].to(INDEX) * stride_vn + d.to(INDEX) * stride_vd
    first, last = key_range(m0, Sq, Sk, left, right, BM)
    step = tl.full((), BN, tl.int64)
    acc = tl.zeros((BM, BLOCK_DV), dtype=tl.float32)
    for start in range(0, Sk, BN):
        n = start + tl.arange(0, BN)
        p = tl.load(p_ptr + p_offsets, mask=(m < Sq) & (n < Sk)[None, :], other=0.0)
        # A share of 0 times a NaN is NaN, so keys that nobody here sees are not read.
        seen = ((n >= first) & (n < last))[:, None] & (d < Dv)
        v = tl.load(v_ptr + v_offsets, mask=seen, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        p_ptr += BN
        v_ptr += step * stride_vn
    out_offsets = m.to(INDEX) * stride_om + d.to(INDEX) * stride_od
    tl.store(out_ptr + out_offsets, acc.to(out_ptr.dtype.element_ty), mask=(m < Sq) & (d < Dv))


def launch(ops: Operands, config: Config) -> None:
    """Launch the three kernels, one after another, on a workspace of 4 B H Sq Sk bytes."""
    BM, BN = config
    B, H, G, Sq, Sk = ops.B, ops.H, ops.G, ops.Sq, ops.Sk
    stride_s = triton.cdiv(Sk, 16) * 16  # so that every row of scores begins where a wide load may
    s = torch.empty((B, H, Sq, stride_s), dtype=torch.float32, device=ops.q.device)
    width = vector(ops.q, ops.k, ops.v, ops.out)
    index = index_type(ops.q, ops.k, ops.v, ops.out)
    if Sk:
        scores_naive[(B * H * triton.cdiv(Sq, BM) * triton.cdiv(Sk, BN),)](
            ops.q, *ops.q.stride(), ops.k, *ops.k.stride(), *slopes_arguments(ops), s, stride_s,
            H, H // G, Sq, Sk, ops.D, ops.left, ops.right, float(ops.scale), float(ops.softcap),
            SOFTCAP=ops.softcap > 0, SLOPES=ops.slopes is not None, VECTOR=width, INDEX=index, BM=BM, BN=BN,
        )  # fmt: skip
    rows = B * H * Sq
    softmax_naive[(triton.cdiv(rows, 4),)](s, stride_s, *lse_arguments(ops), rows, H, Sq, Sk, ROWS=4, BLOCK=1024)
    weigh_naive[(B * H * triton.cdiv(Sq, BM),)](
        s, stride_s, ops.v, *ops.v.stride(), ops.out, *ops.out.stride(),
        H, H // G, Sq, Sk, ops.Dv, ops.left, ops.right,
        VECTOR=width, INDEX=index, BM=BM, BN=BN, BLOCK_DV=columns(ops.Dv),
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

    q: (B, Sq, H, D); k: (B, Sk, G, D); v: (B, Sk, G, Dv); out: (B, Sq, H, Dv); lse: (B, H, Sq) float32; slopes: (H,)
    float32; any strides. causal: not 0 where a query sees no later key; window: the keys nearer than that, 0 for all;
    scale: of the scores, 0 for D ** -0.5; softcap: 0 for none. config: a name out of CONFIGS, or None for `pick`'s
    choice. Raises ValueError where shapes, dtypes or parameters do not fit.
    """
    ops = operands(q, k, v, out, lse, slopes, causal, window, scale, softcap)
    if ops.B * ops.Sq * ops.H == 0:
        return
    launch(ops, CONFIGS[config] if isinstance(config, str) else config or pick(ops))
