"""Host side of the TMA kernels: which operands a tensor descriptor can express, and how.

A descriptor addresses boxes of a strided array. The hardware asks that the base lies on 16 bytes, that one dimension
(here the last) has stride 1, and that every other stride is a multiple of 16 bytes. An operand stored transposed is
described as it lies in memory; the kernel turns its view of shared memory instead, which costs nothing, because wgmma
reads 16-bit operands along either dimension.
"""

import torch
import triton.experimental.gluon.language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Triton 3.7 gave both copies new names.
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

DTYPES = (torch.bfloat16, torch.float16)
GLUON_DTYPE = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}
ALIGNMENT = 8  # elements of 2 bytes: every stride and the base lie on 16 bytes


def is_transposed(tensor: torch.Tensor) -> bool:
    """Return whether a (B, R, C) tensor is contiguous along R instead of C."""
    return tensor.stride(2) != 1 and tensor.stride(1) == 1


def obstacle(tensor: torch.Tensor) -> str | None:
    """Return why no descriptor can express a (B, R, C) tensor of 16-bit elements, or None where one can."""
    if tensor.data_ptr() % 16:
        return "starts at an address that is no multiple of 16 bytes"
    stored = tensor.transpose(1, 2) if is_transposed(tensor) else tensor
    if stored.stride(2) != 1:
        return f"has no contiguous dimension: its strides are {tuple(tensor.stride())}"
    if stored.size(2) % ALIGNMENT:
        return f"has {stored.size(2)} elements along its contiguous dimension, not a multiple of {ALIGNMENT}"
    for size, stride in zip(stored.shape[:2], stored.stride()[:2], strict=True):
        # An expanded dimension (stride 0) has no descriptor either.
        if size > 1 and (stride == 0 or stride % ALIGNMENT):
            return f"has a stride of {stride} elements, not a positive multiple of {ALIGNMENT}"
    return None


def require_descriptors(**tensors: torch.Tensor) -> None:
    """Raise ValueError naming the first of the (B, R, C) tensors that no descriptor can express."""
    for name, tensor in tensors.items():
        if (reason := obstacle(tensor)) is not None:
            raise ValueError(f"{name} {reason}: a TMA descriptor cannot express it")


def describe(tensor: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Return a descriptor of (1, rows, columns) boxes of a (B, R, C) tensor, as it lies in memory."""
    if is_transposed(tensor):
        tensor, rows, columns = tensor.transpose(1, 2), columns, rows
    # A dimension of size 1 is never stepped along, so torch gives it any stride; the descriptor wants a legal one.
    strides = [s if size > 1 else ALIGNMENT for size, s in zip(tensor.shape, tensor.stride(), strict=True)]
    box = [1, rows, columns]
    layout = gl.NVMMASharedLayout.get_default_for(box, GLUON_DTYPE[tensor.dtype])
    return TensorDescriptor(tensor, list(tensor.shape), [*strides[:2], 1], box, layout)
