"""Backward, step 1: the definition. P and dS in memory, then the three products that read them.

With O and each row's log-sum-exp from the forward pass nothing has to be summed along a row but D = rowsum(dO * O):

    P = exp(scale Q K^T - lse)        dS = scale P * (dO V^T - D)        dV = P^T dO        dQ = dS K        dK = dS^T Q

P and dS are float32 in a workspace of 8 B H Sq Sk bytes. Both are written once; P is read for dV, and dS for dQ and
for dK: 20 bytes a score, if the caches keep nothing. The least is to read Q, K, V, O and dO and write three gradients:
with S = Sq = Sk, H = G, D = Dv and 16-bit dtypes 16 S D bytes a head, so moved / min is 1 + 1.25 S / D: 41 at S = 4096
and D = 128. The products are 10 S^2 D FLOP a head, 64 a byte at D = 128, where an H200 needs some 200 to be busy.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from rooftest_kernels.attention.gradients import STRIDES, Gradients, gradients, query_range, row_values
from rooftest_kernels.attention.operands import columns, known
from rooftest_kernels.attention.scores import LOG2_E, visible
from rooftest_kernels.attention.step1_naive import weigh_naive


class Config(NamedTuple):
    """Tile [BM, BN] of the scores, in 4 warps; BM queries and BN keys at a time, and BN columns of D a step."""

    BM: int
    BN: int


CONFIGS = {"16x32": Config(16, 32), "32x32": Config(32, 32)}


@triton.jit(do_not_specialize=STRIDES)
def scores_backward_naive(
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kg, stride_kd,
    v_ptr, stride_vb, stride_vn, stride_vg, stride_vd,
    do_ptr, stride_dob, stride_dom, stride_doh, stride_dod,
    rows_ptr, count, p_ptr, ds_ptr, stride_s,
    H, R, Sq, Sk, D, Dv, left, right, scale,
    VECTOR: tl.constexpr, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write one [BM, BN] tile of one head's P and dS; 0 where the query does not see the key.

    rows_ptr, count: as gradients.attention_rows left them. stride_s: of a row of P and of dS.
    """
    tiles_n = tl.cdiv(Sk, BN)
    tiles = tl.cdiv(Sq, BM) * tiles_n
    tile = tl.program_id(0) % tiles
    head = (tl.program_id(0) // tiles).to(tl.int64)
    b, h = head // H, head % H
    queries = tile // tiles_n * BM + tl.arange(0, BM)
    keys = tile % tiles_n * BN + tl.arange(0, BN)
    m, n = queries[:, None], keys[None, :]
    if VECTOR > 1:
        stride_qb, stride_qm, stride_qh, stride_qd = known(stride_qb, stride_qm, stride_qh, VECTOR)
        stride_kb, stride_kn, stride_kg, stride_kd = known(stride_kb, stride_kn, stride_kg, VECTOR)
        stride_vb, stride_vn, stride_vg, stride_vd = known(stride_vb, stride_vn, stride_vg, VECTOR)
        stride_dob, stride_dom, stride_doh, stride_dod = known(stride_dob, stride_dom, stride_doh, VECTOR)
        D, Dv = D // VECTOR * VECTOR, Dv // VECTOR * VECTOR
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h // R * stride_kg
    v_ptr += b * stride_vb + h // R * stride_vg
    do_ptr += b * stride_dob + h * stride_doh
    in_q, in_k = m < Sq, (keys < Sk)[:, None]
    qk, dp = tl.zeros((BM, BN), dtype=tl.float32), tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, D, BN):
        d = (start + tl.arange(0, BN))[None, :]
        q_offsets = m.to(INDEX) * stride_qm + d.to(INDEX) * stride_qd
        k_offsets = keys[:, None].to(INDEX) * stride_kn + d.to(INDEX) * stride_kd
        q = tl.load(q_ptr + q_offsets, mask=in_q & (d < D), other=0.0)
        k = tl.load(k_ptr + k_offsets, mask=in_k & (d < D), other=0.0)
        qk = tl.dot(q, k.T, qk, input_precision="ieee")
    for start in range(0, Dv, BN):
        d = (start + tl.arange(0, BN))[None, :]
        do_offsets = m.to(INDEX) * stride_dom + d.to(INDEX) * stride_dod
        v_offsets = keys[:, None].to(INDEX) * stride_vn + d.to(INDEX) * stride_vd
        do = tl.load(do_ptr + do_offsets, mask=in_q & (d < Dv), other=0.0)
        v = tl.load(v_ptr + v_offsets, mask=in_k & (d < Dv), other=0.0)
        dp = tl.dot(do, v.T, dp, input_precision="ieee")
    rows_ptr += head * Sq + queries
    lse = tl.load(rows_ptr, mask=queries < Sq, other=0.0)
    delta = tl.load(rows_ptr + count, mask=queries < Sq, other=0.0)
    p = tl.exp2(qk * (scale * LOG2_E) - lse[:, None])
    seen = visible(m, n, Sq, Sk, left, right)
    places = (head * Sq + m) * stride_s + n
    tl.store(p_ptr + places, tl.where(seen, p, 0.0), mask=in_q & (n < Sk))
    tl.store(ds_ptr + places, tl.where(seen, scale * p * (dp - delta[:, None]), 0.0), mask=in_q & (n < Sk))


@triton.jit(do_not_specialize=STRIDES)
def weigh_backward_naive(
    w_ptr, stride_w, q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    dk_ptr, stride_dkb, stride_dkn, stride_dkg, stride_dkd,
    H, R, Sq, Sk, D, left, right,
    VECTOR: tl.constexpr, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write BN rows of dK = dS^T Q, or of dV = P^T dO: the sum over the queries of all heads of a group."""
    blocks = tl.cdiv(Sk, BN)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    n0 = tl.program_id(0) % blocks * BN
    G = H // R
    b, g = pair // G, pair % G
    if VECTOR > 1:
        stride_qb, stride_qm, stride_qh, stride_qd = known(stride_qb, stride_qm, stride_qh, VECTOR)
        stride_dkb, stride_dkn, stride_dkg, stride_dkd = known(stride_dkb, stride_dkn, stride_dkg, VECTOR)
        D = D // VECTOR * VECTOR
    q_ptr += b * stride_qb
    n, d = (n0 + tl.arange(0, BN))[:, None], tl.arange(0, BLOCK_D)[None, :]
    first, last = query_range(n0, Sq, Sk, left, right, BN)
    acc = tl.zeros((BN, BLOCK_D), dtype=tl.float32)
    for r in range(R):
        h = g * R + r
        for start in range(0, Sq, BM):
            queries = start + tl.arange(0, BM)
            # What sees none of these keys is not read, as 0 times a NaN is NaN.
            seeing = (queries >= first) & (queries < last)
            rows = (b * H + h) * Sq + queries
            w = tl.load(w_ptr + rows[None, :] * stride_w + n, mask=seeing[None, :] & (n < Sk), other=0.0)
            q_offsets = queries[:, None].to(INDEX) * stride_qm + d.to(INDEX) * stride_qd
            q = tl.load(q_ptr + h * stride_qh + q_offsets, mask=seeing[:, None] & (d < D), other=0.0)
            acc = tl.dot(w.to(q.dtype), q, acc, input_precision="ieee")
    dk_ptr += b * stride_dkb + g * stride_dkg
    dk_offsets = n.to(INDEX) * stride_dkn + d.to(INDEX) * stride_dkd
    tl.store(dk_ptr + dk_offsets, acc.to(dk_ptr.dtype.element_ty), mask=(n < Sk) & (d < D))


def launch(grads: Gradients, config: Config) -> None:
    """Launch the five kernels, one after another."""
    BM, BN = config
    ops, do = grads.ops, grads.do
    B, H, G, Sq, Sk = ops.B, ops.H, ops.G, ops.Sq, ops.Sk
    stride_s = triton.cdiv(Sk, 16) * 16  # so that every row of scores begins where a wide load may
    p, ds = torch.empty((2, B, H, Sq, stride_s), dtype=torch.float32, device=ops.q.device)
    rows = row_values(grads)
    seen, constants = (ops.left, ops.right), grads.constants | {"BM": BM, "BN": BN}
    if Sq and Sk:
        scores_backward_naive[(B * H * triton.cdiv(Sq, BM) * triton.cdiv(Sk, BN),)](
            ops.q, *ops.q.stride(), ops.k, *ops.k.stride(), ops.v, *ops.v.stride(), do, *do.stride(),
            rows, rows[0].numel(), p, ds, stride_s, H, H // G, Sq, Sk, ops.D, ops.Dv, *seen, float(ops.scale),
            **constants,
        )  # fmt: skip
    if Sq:
        weigh_naive[(B * H * triton.cdiv(Sq, BM),)](
            ds, stride_s, ops.k, *ops.k.stride(), grads.dq, *grads.dq.stride(),
            H, H // G, Sq, Sk, ops.D, *seen, **constants, BLOCK_DV=columns(ops.D),
        )  # fmt: skip
    if Sk:
        for w, x, to, size in ((ds, ops.q, grads.dk, ops.D), (p, do, grads.dv, ops.Dv)):
            weigh_backward_naive[(B * G * triton.cdiv(Sk, BN),)](
                w, stride_s, x, *x.stride(), to, *to.stride(),
                H, H // G, Sq, Sk, size, *seen, **constants, BLOCK_D=columns(size),
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

    q, dq: (B, Sq, H, D); k, dk: (B, Sk, G, D); v, dv: (B, Sk, G, Dv); o, do: (B, Sq, H, Dv), o the forward pass's
    output; lse: (B, H, Sq) float32, its log-sum-exp; any strides. causal, window, scale: as in step1_naive.attention.
    config: a name out of CONFIGS, or 32x32. Raises ValueError where shapes, dtypes or parameters do not fit.
    """
    grads = gradients(q, k, v, o, lse, do, dq, dk, dv, causal, window, scale)
    if grads.ops.B * grads.ops.H == 0:
        return
    launch(grads, CONFIGS[config] if isinstance(config, str) else config or CONFIGS["32x32"])
