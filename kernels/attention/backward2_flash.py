"""Backward, step 2: FlashAttention-2's idea in plain Triton. P is computed again, tile by tile, and never written.

Where the forward pass needs a row's maximum and sum before its shares are known, the backward pass has both, folded
into the log-sum-exp: P = 2^(c s - lse log2 e) is one multiply-add and one ex2 a score, and each tile of it stands by
itself. So two kernels walk the scores, each in the direction in which its sums stay in registers:

* one program for each block of keys walks the queries of all heads of the group and sums dK and dV;
* one for each block of queries walks the keys and sums dQ.

Neither adds to memory that another program adds to: no atomics, the same bits on every call. The price is that Q K^T
and dO V^T are computed in both: 7 products of a score tile where the contract counts 5, so at most 5 / 7 = 71 % of the
tensor cores' rate is to be had. One kernel that adds dQ with atomics, or in an order that it waits for, saves the two.

The keys' program has its tiles transposed, S^T = K Q^T, so that P^T and dS^T come out of one product as the other's
left operand, which may stay in registers. dK, dV and two score tiles of [BN, BM] live there at once: at D = 128 and
BN = 128 that is 64 registers a thread for each of dK and dV in 8 warps, and 16 for each tile with BM = 32. BM = 64
spills, and so does a loop of masked tiles that is pipelined beside that of the others: so theirs is not.

A third kernel before both writes D = rowsum(dO * O) and lse log2 e, 8 bytes a query. The bytes that must move are Q, K,
V, O, dO and three gradients, 16 S D a head in 16 bits where H = G and D = Dv: (14 S^2 D) / (16 S D) = 0.9 S FLOP a
byte, so memory does not limit it from some hundred keys on.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from rooftest_kernels.attention.gradients import STRIDES, Gradients, gradients, query_range, row_values
from rooftest_kernels.attention.operands import MOST_ROWS, columns, known
from rooftest_kernels.attention.scores import LOG2_E, key_range, visible

ALL = tl.constexpr(MOST_ROWS)  # a block of all queries


class Tile(NamedTuple):
    """BM queries by BN keys; warps a program; tiles on their way or in use."""

    BM: int
    BN: int
    num_warps: int
    num_stages: int


class Config(NamedTuple):
    """The tiles of the kernel over blocks of keys, and of that over blocks of queries."""

    keys: Tile
    queries: Tile


CONFIGS = {
    "16x16": Config(Tile(16, 16, 4, 1), Tile(16, 16, 4, 1)),
    "32x64": Config(Tile(32, 64, 4, 2), Tile(64, 32, 4, 2)),
    "32x128": Config(Tile(32, 128, 8, 2), Tile(128, 64, 8, 2)),
}


def pick(grads: Gradients) -> Config:
    """Choose the largest tiles that fit the registers; float32 is multiplied there."""
    widest = max(columns(grads.ops.D), columns(grads.ops.Dv))
    if grads.ops.q.element_size() == 4:
        return CONFIGS["16x16"]
    return CONFIGS["32x128" if widest <= 128 else "32x64"]


@triton.jit
def from_queries(
    dk, dv, k, v, q_ptr, do_ptr, rows_ptr, count, q_offsets, do_offsets, stride_qm, stride_dom, start, n, first, last,
    in_d, in_dv, Sq, Sk, left, right, c, MASKED: tl.constexpr, FULL: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Add what BM queries from `start` give to a block's dK (before the scale) and dV."""
    m = start + tl.arange(0, BM)
    step = start.to(tl.int64)
    q_ptrs, do_ptrs = q_ptr + step * stride_qm + q_offsets, do_ptr + step * stride_dom + do_offsets
    if MASKED:
        # What sees none of these keys is not read, as 0 times a NaN is NaN.
        seeing = (m >= first) & (m < last)
        q = tl.load(q_ptrs, mask=seeing[:, None] & in_d, other=0.0)
        do = tl.load(do_ptrs, mask=seeing[:, None] & in_dv, other=0.0)
        lse = tl.load(rows_ptr + m, mask=seeing, other=float("inf"))
        delta = tl.load(rows_ptr + count + m, mask=seeing, other=0.0)
    else:
        q = tl.load(q_ptrs) if FULL else tl.load(q_ptrs, mask=in_d, other=0.0)
        do = tl.load(do_ptrs) if FULL else tl.load(do_ptrs, mask=in_dv, other=0.0)
        lse, delta = tl.load(rows_ptr + m), tl.load(rows_ptr + count + m)
    s = tl.dot(k, q.T, input_precision="ieee")
    p = tl.exp2(s * c - lse[None, :])
    if MASKED:
        p = tl.where(visible(m[None, :], n, Sq, Sk, left, right), p, 0.0)
    dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
    dp = tl.dot(v, do.T, input_precision="ieee")
    ds = p * (dp - delta[None, :])
    dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@triton.jit(do_not_specialize=STRIDES)
def attention_backward_keys(
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kg, stride_kd,
    v_ptr, stride_vb, stride_vn, stride_vg, stride_vd,
    do_ptr, stride_dob, stride_dom, stride_doh, stride_dod,
    dk_ptr, stride_dkb, stride_dkn, stride_dkg, stride_dkd,
    dv_ptr, stride_dvb, stride_dvn, stride_dvg, stride_dvd,
    rows_ptr, count, H, R, Sq, Sk, D, Dv, left, right, scale,
    VECTOR: tl.constexpr, FULL: tl.constexpr, INDEX: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Compute BN rows of dK and dV of one head of K and V.

    rows_ptr, count: as gradients.attention_rows left them. FULL: D and Dv are BLOCK_D and BLOCK_DV.
    """
    blocks = tl.cdiv(Sk, BN)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    n0 = tl.program_id(0) % blocks * BN  # under a causal mask the first have the most queries
    G = H // R
    b, g = pair // G, pair % G
    if VECTOR > 1:
        stride_qb, stride_qm, stride_qh, stride_qd = known(stride_qb, stride_qm, stride_qh, VECTOR)
        stride_kb, stride_kn, stride_kg, stride_kd = known(stride_kb, stride_kn, stride_kg, VECTOR)
        stride_vb, stride_vn, stride_vg, stride_vd = known(stride_vb, stride_vn, stride_vg, VECTOR)
        stride_dob, stride_dom, stride_doh, stride_dod = known(stride_dob, stride_dom, stride_doh, VECTOR)
        stride_dkb, stride_dkn, stride_dkg, stride_dkd = known(stride_dkb, stride_dkn, stride_dkg, VECTOR)
        stride_dvb, stride_dvn, stride_dvg, stride_dvd = known(stride_dvb, stride_dvn, stride_dvg, VECTOR)
        D, Dv = D // VECTOR * VECTOR, Dv // VECTOR * VECTOR
    k_ptr += b * stride_kb + g * stride_kg
    v_ptr += b * stride_vb + g * stride_vg
    n = (n0 + tl.arange(0, BN))[:, None]
    d, e = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    in_d, in_dv = d < D, e < Dv
    # Nor is a key read that no query at all sees: the masks of P do not keep its NaN out of dS.
    first, last = key_range(0, Sq, Sk, left, right, ALL)
    here = (n >= first) & (n < last)
    k = tl.load(k_ptr + (n.to(INDEX) * stride_kn + d.to(INDEX) * stride_kd), mask=here & in_d, other=0.0)
    v = tl.load(v_ptr + (n.to(INDEX) * stride_vn + e.to(INDEX) * stride_vd), mask=here & in_dv, other=0.0)
    tile = tl.arange(0, BM)[:, None].to(INDEX)
    q_offsets = tile * stride_qm + d.to(INDEX) * stride_qd
    do_offsets = tile * stride_dom + e.to(INDEX) * stride_dod

    # Tiles from `begin`; the queries from `full` to `full_end` see every key of the block.
    first, last = query_range(n0, Sq, Sk, left, right, BN)
    begin = first // BM * BM
    full = tl.cdiv(tl.maximum(n0 + BN - 1 - right - (Sk - Sq), 0), BM) * BM
    full_end = tl.maximum(tl.minimum(n0 + left + 1 - (Sk - Sq), Sq), 0) // BM * BM
    full = tl.minimum(full, tl.maximum(last, begin))
    full_end = tl.maximum(full_end, full)
    edge = tl.cdiv(full - begin, BM) * BM  # queries of the tiles before; those after follow

    c = scale * LOG2_E
    dk, dv = tl.zeros((BN, BLOCK_D), tl.float32), tl.zeros((BN, BLOCK_DV), tl.float32)
    for r in range(R):
        h = g * R + r
        q_head = q_ptr + b * stride_qb + h * stride_qh
        do_head = do_ptr + b * stride_dob + h * stride_doh
        rows_head = rows_ptr + (b * H + h) * Sq
        for i in tl.range(0, edge + tl.maximum(last - full_end, 0), BM, num_stages=1):
            start = tl.where(i < edge, begin + i, full_end + i - edge)
            dk, dv = from_queries(
                dk, dv, k, v, q_head, do_head, rows_head, count, q_offsets, do_offsets, stride_qm, stride_dom, start, n,
                first, last, in_d, in_dv, Sq, Sk, left, right, c, True, FULL, BM,
            )  # fmt: skip
        for i in range(0, full_end - full, BM):
            dk, dv = from_queries(
                dk, dv, k, v, q_head, do_head, rows_head, count, q_offsets, do_offsets, stride_qm, stride_dom, full + i,
                n, first, last, in_d, in_dv, Sq, Sk, left, right, c, False, FULL, BM,
            )  # fmt: skip

    dk_ptr += b * stride_dkb + g * stride_dkg
    dv_ptr += b * stride_dvb + g * stride_dvg
    dk_ptrs = dk_ptr + (n.to(INDEX) * stride_dkn + d.to(INDEX) * stride_dkd)
    dv_ptrs = dv_ptr + (n.to(INDEX) * stride_dvn + e.to(INDEX) * stride_dvd)
    tl.store(dk_ptrs, (dk * scale).to(dk_ptr.dtype.element_ty), mask=(n < Sk) & in_d)
    tl.store(dv_ptrs, dv.to(dv_ptr.dtype.element_ty), mask=(n < Sk) & in_dv)


@triton.jit
def from_keys(
    dq, q, do, lse, delta, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, start, m, first, last, in_d, in_dv,
    Sq, Sk, left, right, c, MASKED: tl.constexpr, FULL: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Add what BN keys from `start` give to a block's dQ (before the scale)."""
    keys = start + tl.arange(0, BN)
    step = start.to(tl.int64)
    k_ptrs, v_ptrs = k_ptr + step * stride_kn + k_offsets, v_ptr + step * stride_vn + v_offsets
    if MASKED:
        here = ((keys >= first) & (keys < last))[:, None]
        k = tl.load(k_ptrs, mask=here & in_d, other=0.0)
        v = tl.load(v_ptrs, mask=here & in_dv, other=0.0)
    else:
        k = tl.load(k_ptrs) if FULL else tl.load(k_ptrs, mask=in_d, other=0.0)
        v = tl.load(v_ptrs) if FULL else tl.load(v_ptrs, mask=in_dv, other=0.0)
    s = tl.dot(q, k.T, input_precision="ieee")
    dp = tl.dot(do, v.T, input_precision="ieee")
    ds = tl.exp2(s * c - lse[:, None]) * (dp - delta[:, None])
    if MASKED:
        ds = tl.where(visible(m, keys[None, :], Sq, Sk, left, right), ds, 0.0)
    return tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")


@triton.jit(do_not_specialize=STRIDES)
def attention_backward_queries(
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kg, stride_kd,
    v_ptr, stride_vb, stride_vn, stride_vg, stride_vd,
    do_ptr, stride_dob, stride_dom, stride_doh, stride_dod,
    dq_ptr, stride_dqb, stride_dqm, stride_dqh, stride_dqd,
    rows_ptr, count, H, R, Sq, Sk, D, Dv, left, right, scale,
    VECTOR: tl.constexpr, FULL: tl.constexpr, INDEX: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Compute BM rows of dQ of one head; arguments as attention_backward_keys."""
    blocks = tl.cdiv(Sq, BM)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    m0 = (blocks - 1 - tl.program_id(0) % blocks) * BM  # under a causal mask the last have the most keys
    b, h = head // H, head % H
    if VECTOR > 1:
        stride_qb, stride_qm, stride_qh, stride_qd = known(stride_qb, stride_qm, stride_qh, VECTOR)
        stride_kb, stride_kn, stride_kg, stride_kd = known(stride_kb, stride_kn, stride_kg, VECTOR)
        stride_vb, stride_vn, stride_vg, stride_vd = known(stride_vb, stride_vn, stride_vg, VECTOR)
        stride_dob, stride_dom, stride_doh, stride_dod = known(stride_dob, stride_dom, stride_doh, VECTOR)
        stride_dqb, stride_dqm, stride_dqh, stride_dqd = known(stride_dqb, stride_dqm, stride_dqh, VECTOR)
        D, Dv = D // VECTOR * VECTOR, Dv // VECTOR * VECTOR
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h // R * stride_kg
    v_ptr += b * stride_vb + h // R * stride_vg
    do_ptr += b * stride_dob + h * stride_doh
    dq_ptr += b * stride_dqb + h * stride_dqh
    rows = m0 + tl.arange(0, BM)
    m = rows[:, None]
    d, e = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    in_d, in_dv = d < D, e < Dv
    q = tl.load(q_ptr + (m.to(INDEX) * stride_qm + d.to(INDEX) * stride_qd), mask=(m < Sq) & in_d, other=0.0)
    do = tl.load(do_ptr + (m.to(INDEX) * stride_dom + e.to(INDEX) * stride_dod), mask=(m < Sq) & in_dv, other=0.0)
    rows_ptr += head * Sq + rows
    lse = tl.load(rows_ptr, mask=rows < Sq, other=0.0)
    delta = tl.load(rows_ptr + count, mask=rows < Sq, other=0.0)
    tile = tl.arange(0, BN)[:, None].to(INDEX)
    k_offsets = tile * stride_kn + d.to(INDEX) * stride_kd
    v_offsets = tile * stride_vn + e.to(INDEX) * stride_vd

    # Tiles from `begin`; those from `full` to `full_end` are seen by every query of the block, key by key.
    first, last = key_range(m0, Sq, Sk, left, right, BM)
    begin = first // BN * BN
    full = tl.cdiv(tl.maximum(tl.minimum(m0 + BM, Sq) - 1 + Sk - Sq - left, 0), BN) * BN
    full_end = tl.maximum(tl.minimum(m0 + Sk - Sq + right + 1, Sk), 0) // BN * BN
    full = tl.minimum(full, tl.maximum(last, begin))
    full_end = tl.maximum(full_end, full)
    edge = tl.cdiv(full - begin, BN) * BN

    c = scale * LOG2_E
    dq = tl.zeros((BM, BLOCK_D), tl.float32)
    for i in range(0, edge + tl.maximum(last - full_end, 0), BN):
        start = tl.where(i < edge, begin + i, full_end + i - edge)
        dq = from_keys(
            dq, q, do, lse, delta, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, start, m, first, last,
            in_d, in_dv, Sq, Sk, left, right, c, True, FULL, BN,
        )  # fmt: skip
    for i in range(0, full_end - full, BN):
        dq = from_keys(
            dq, q, do, lse, delta, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, full + i, m, first, last,
            in_d, in_dv, Sq, Sk, left, right, c, False, FULL, BN,
        )  # fmt: skip
    dq_ptrs = dq_ptr + (m.to(INDEX) * stride_dqm + d.to(INDEX) * stride_dqd)
    tl.store(dq_ptrs, (dq * scale).to(dq_ptr.dtype.element_ty), mask=(m < Sq) & in_d)


def launch(grads: Gradients, config: Config) -> None:
    """Launch the three kernels for operands of which there is a head at least."""
    ops, rows = grads.ops, row_values(grads)
    constants = grads.constants | {"FULL": grads.full, "BLOCK_D": columns(ops.D), "BLOCK_DV": columns(ops.Dv)}
    read = [argument for x in (ops.q, ops.k, ops.v, grads.do) for argument in (x, *x.stride())]
    sizes = (
        rows, rows[0].numel(), ops.H, ops.H // ops.G, ops.Sq, ops.Sk, ops.D, ops.Dv, ops.left, ops.right,
        float(ops.scale),
    )  # fmt: skip
    if ops.Sk:
        attention_backward_keys[(ops.B * ops.G * triton.cdiv(ops.Sk, config.keys.BN),)](
            *read, grads.dk, *grads.dk.stride(), grads.dv, *grads.dv.stride(), *sizes,
            **constants, **config.keys._asdict(),
        )  # fmt: skip
    if ops.Sq:
        attention_backward_queries[(ops.B * ops.H * triton.cdiv(ops.Sq, config.queries.BM),)](
            *read, grads.dq, *grads.dq.stride(), *sizes, **constants, **config.queries._asdict(),
        )  # fmt: skip


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    causal: float = 0.0,
    window: float = 0.0,
    scale: float = 0.0,
    config: str | Config | None = None,
) -> None:
    """Write the gradients of q, k and v to dq, dk and dv, from that of o.

    Shapes, parameters and errors as backward1_naive.backward. config: a name out of CONFIGS, or None for `pick`'s
    choice.
    """
    grads = gradients(q, k, v, o, lse, do, dq, dk, dv, causal, window, scale)
    if grads.ops.B * grads.ops.H == 0:
        return
    launch(grads, CONFIGS[config] if isinstance(config, str) else config or pick(grads))
