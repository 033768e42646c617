"""What every step does before its kernel starts: read the sizes, add the batch dimension, refuse nonsense."""

from typing import NamedTuple

import torch
import triton.language as tl


class Operands(NamedTuple):
    """The tensors of one call, all with a batch dimension, and the sizes of C = A @ B.

    Fields
        a, b, out: (B, M, K), (B, K, N), (B, M, N); views of what the caller gave.
        c0: (B, M, N), or None where it must not be read (beta == 0).
        bias: (N,), or None.
        B, M, N, K: the sizes; each may be 0.
    """

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    c0: torch.Tensor | None
    bias: torch.Tensor | None
    B: int
    M: int
    N: int
    K: int


def operands(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    beta: float,
    c0: torch.Tensor | None,
    bias: torch.Tensor | None,
    dtypes: tuple[torch.dtype, ...],
) -> Operands:
    """Return the operands of C = alpha A B + beta C0 + bias, with a batch dimension of 1 where there was none.

    a: (M, K) or (B, M, K); b: (K, N) or (B, K, N); out, c0: like C; bias: (N,). a and b have one of `dtypes`.
    Raises ValueError where shapes or dtypes do not fit, or where beta != 0 and there is no c0.
    """
    if a.dtype not in dtypes or b.dtype != a.dtype:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(
            f"a is {a.dtype} and b is {b.dtype}: this kernel takes two tensors of one dtype out of {names}"
        )
    if a.ndim not in {2, 3} or b.ndim != a.ndim:
        raise ValueError(f"a has {a.ndim} and b {b.ndim} dimensions: both must have 2, or both 3")
    if beta == 0:
        c0 = None  # the contract of BLAS: with beta == 0, C0 is not read and may hold NaN
    elif c0 is None:
        raise ValueError(f"beta is {beta}, so c0 is needed")

    *batch, M, K = a.shape
    N = b.shape[-1]
    c_shape = (*batch, M, N)
    expected = {"b": (b, (*batch, K, N)), "out": (out, c_shape), "c0": (c0, c_shape), "bias": (bias, (N,))}
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: with a {tuple(a.shape)} it must be {shape}")
    if a.ndim == 2:
        a, b, out = a[None], b[None], out[None]
        c0 = None if c0 is None else c0[None]
    return Operands(a, b, out, c0, bias, a.shape[0], M, N, K)


def index_type(*tensors: torch.Tensor | None) -> tl.dtype:
    """Return int32 where every offset within one matrix of these (B, rows, columns) tensors fits, else int64."""
    largest = max(
        sum((size - 1) * abs(stride) for size, stride in zip(t.shape[1:], t.stride()[1:], strict=True))
        for t in tensors
        if t is not None
    )
    return tl.int32 if largest < 2**31 else tl.int64


def rows_by_8(*tensors: torch.Tensor | None) -> bool:
    """Return whether the rows of these (B, rows, columns) tensors are, and lie apart, a multiple of 8 elements.

    Then 8 neighbours of a 16-bit dtype are 16 aligned bytes; Triton by itself looks for multiples of 16 only.
    """
    return all(t.shape[2] % 8 == 0 and t.stride(1) % 8 == 0 for t in tensors if t is not None)
