"""What every step does before its kernel starts: read the sizes, add the batch dimension, refuse nonsense."""

from typing import NamedTuple

import torch
import triton.language as tl

VECTOR_BYTES = 16  # the widest load of a thread

# Triton compiles a kernel anew for every integer that is 1, every one that is a multiple of 16, and every pointer that
# is: a kernel of some 20 arguments nearly every time. So the kernels name these to it as not to be looked at, and what
# makes a kernel faster is said by a few constants that the host works out (near_dimension, vector).
SIZES_AND_STRIDES = [
    "B", "M", "N", "K", "k_vectors", "bias_size",
    "stride_az", "stride_am", "stride_ak",
    "stride_bz", "stride_bk", "stride_bn",
    "stride_cz", "stride_cm", "stride_cn",
    "stride_c0z", "stride_c0m", "stride_c0n",
    "stride_bias",
]  # fmt: skip
POINTERS = ["a_ptr", "b_ptr", "c_ptr", "c0_ptr", "bias_ptr"]


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


def near_dimension(tensor: torch.Tensor) -> int:
    """Return the dimension of a (B, rows, columns) tensor, 2 or 1, with stride 1, or else with the lesser stride."""
    return min((2, 1), key=lambda dim: (tensor.stride(dim) != 1, tensor.stride(dim)))


def unit_dimension(tensor: torch.Tensor) -> int:
    """Return the dimension of a (B, rows, columns) tensor, 2 or 1, with stride 1, or 0 for neither."""
    dim = near_dimension(tensor)
    return dim if tensor.stride(dim) == 1 else 0


def vector(*tensors: torch.Tensor, rows: tuple[torch.Tensor | None, ...], K: int = 0) -> int:
    """Return how many elements of these (B, rows, columns) tensors may be read or written at a time.

    As many as are in 16 bytes where K is a multiple of that, and each tensor has a dimension of stride 1 (those in
    `rows`, each of which may be None, the last one), and its extent there, its other strides and its base are multiples
    too; else 1. The tensors have one dtype.
    """
    last = [tensor for tensor in rows if tensor is not None]
    count = VECTOR_BYTES // last[0].element_size()
    if K % count:
        return 1
    for tensor, dim in [*((t, near_dimension(t)) for t in tensors), *((t, 2) for t in last)]:
        # A dimension of size 1 is never stepped along.
        steps = [s for d, (n, s) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)) if d != dim and n > 1]
        whole = all(n % count == 0 for n in (tensor.shape[dim], *steps))
        if not whole or tensor.stride(dim) != 1 or tensor.data_ptr() % VECTOR_BYTES:
            return 1
    return count


def is_plain(ops: Operands, alpha: float) -> bool:
    """Return whether C is A @ B and nothing else."""
    return alpha == 1 and ops.c0 is None and ops.bias is None


def addends(ops: Operands) -> tuple:
    """Return a kernel's arguments c0_ptr, stride_c0z, stride_c0m, stride_c0n, bias_ptr, stride_bias, bias_size.

    One compiled kernel takes a call with and without C0 and bias: what is absent is masked there (beta == 0,
    bias_size == 0), so out, which stands in for it, is not read.
    """
    c0 = ops.out if ops.c0 is None else ops.c0
    bias = (ops.out, 0, 0) if ops.bias is None else (ops.bias, ops.bias.stride(0), ops.N)
    return (c0, *c0.stride(), *bias)
