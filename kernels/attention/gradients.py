"""What both backward steps do alike: read the operands, find each query's D, say which queries see a block of keys."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from rooftest_kernels.attention.operands import (
    SIZES_AND_STRIDES,
    Operands,
    columns,
    index_type,
    is_full,
    known,
    operands,
    vector,
)
from rooftest_kernels.attention.scores import LOG2_E

STRIDES = [
    *SIZES_AND_STRIDES,
    "stride_dob", "stride_dom", "stride_doh", "stride_dod",
    "stride_dqb", "stride_dqm", "stride_dqh", "stride_dqd",
    "stride_dkb", "stride_dkn", "stride_dkg", "stride_dkd",
    "stride_dvb", "stride_dvn", "stride_dvg", "stride_dvd",
    "count",
]  # fmt: skip


class Gradients(NamedTuple):
    """The tensors of one backward call.

    Fields
        ops: those of the forward call; its `out` is O, its `lse` is there.
        do: (B, Sq, H, Dv); dq, dk, dv: shaped as q, k, v; any strides, all of q's dtype.
    """

    ops: Operands
    do: torch.Tensor
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that have the dtype of q."""
        ops = self.ops
        return (ops.q, ops.k, ops.v, ops.out, self.do, self.dq, self.dk, self.dv)

    @property
    def constants(self) -> dict:
        """VECTOR: the elements in 16 bytes, where all tensors can be read and written so, else 1.

        INDEX: the integer type of an offset within a head.
        """
        return {"VECTOR": vector(*self.tensors), "INDEX": index_type(*self.tensors)}

    @property
    def full(self) -> bool:
        """Whether no column needs a mask."""
        return vector(*self.tensors) > 1 and is_full(self.ops)


def gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    causal: float,
    window: float,
    scale: float,
) -> Gradients:
    """Return the operands of a backward call, with the scale and the reach worked out.

    Raises ValueError where shapes, dtypes or parameters do not fit.
    """
    ops = operands(q, k, v, o, lse, None, causal, window, scale, 0.0)
    for name, tensor, like in (("do", do, o), ("dq", dq, q), ("dk", dk, k), ("dv", dv, v)):
        if tensor.shape != like.shape or tensor.dtype != like.dtype:
            raise ValueError(
                f"{name} is {tuple(tensor.shape)} in {tensor.dtype}: it must be {tuple(like.shape)} in {like.dtype}"
            )
    return Gradients(ops, do, dq, dk, dv)


@triton.jit
def query_range(n0, Sq, Sk, left, right, BN: tl.constexpr):
    """Return the first query that sees one of the keys n0 to n0 + BN - 1, and the one after the last.

    What lies outside is never read, so it may hold anything, NaN too.
    """
    last = tl.minimum(n0 + BN, Sk) - 1
    return tl.maximum(n0 - right - (Sk - Sq), 0), tl.minimum(last + left + 1 - (Sk - Sq), Sq)


@triton.jit(do_not_specialize=STRIDES, do_not_specialize_on_alignment=["lse_ptr"])
def attention_rows(
    o_ptr, stride_ob, stride_om, stride_oh, stride_od,
    do_ptr, stride_dob, stride_dom, stride_doh, stride_dod,
    lse_ptr, stride_lb, stride_lh, stride_lm, rows_ptr, count, H, Sq, Dv,
    VECTOR: tl.constexpr, INDEX: tl.constexpr, BM: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Write lse * log2 e and D = rowsum(dO * O) of BM queries of one head to rows[0] and rows[1], (B, H, Sq) each.

    `count` is B H Sq. A query that sees no key, whose lse is -inf, gets inf: every exponential less it is 0.
    """
    blocks = tl.cdiv(Sq, BM)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    b, h = head // H, head % H
    rows = tl.program_id(0) % blocks * BM + tl.arange(0, BM)
    if VECTOR > 1:
        stride_ob, stride_om, stride_oh, stride_od = known(stride_ob, stride_om, stride_oh, VECTOR)
        stride_dob, stride_dom, stride_doh, stride_dod = known(stride_dob, stride_dom, stride_doh, VECTOR)
        Dv = Dv // VECTOR * VECTOR
    m, d = rows[:, None], tl.arange(0, BLOCK_DV)[None, :]
    here = (m < Sq) & (d < Dv)
    o_ptr += b * stride_ob + h * stride_oh
    do_ptr += b * stride_dob + h * stride_doh
    o = tl.load(o_ptr + (m.to(INDEX) * stride_om + d.to(INDEX) * stride_od), mask=here, other=0.0)
    do = tl.load(do_ptr + (m.to(INDEX) * stride_dom + d.to(INDEX) * stride_dod), mask=here, other=0.0)
    lse = tl.load(lse_ptr + b * stride_lb + h * stride_lh + rows.to(tl.int64) * stride_lm, mask=rows < Sq, other=0.0)
    rows_ptr += head * Sq + rows
    tl.store(rows_ptr, tl.where(lse == float("-inf"), float("inf"), lse * LOG2_E), mask=rows < Sq)
    tl.store(rows_ptr + count, tl.sum(o.to(tl.float32) * do.to(tl.float32), 1), mask=rows < Sq)


def row_values(grads: Gradients) -> torch.Tensor:
    """Return (2, B, H, Sq) float32: each query's lse * log2 e, and its D."""
    ops = grads.ops
    rows = torch.empty((2, ops.B, ops.H, ops.Sq), dtype=torch.float32, device=ops.q.device)
    BM = 16
    if rows.numel():
        attention_rows[(ops.B * ops.H * triton.cdiv(ops.Sq, BM),)](
            ops.out, *ops.out.stride(), grads.do, *grads.do.stride(), ops.lse, *ops.lse.stride(),
            rows, rows[0].numel(), ops.H, ops.Sq, ops.Dv, **grads.constants, BM=BM, BLOCK_DV=columns(ops.Dv),
        )  # fmt: skip
    return rows
