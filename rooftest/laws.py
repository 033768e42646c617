"""What specifications say of two outputs whose inputs differ by exact algebra."""

from __future__ import annotations

import torch
from torch import Tensor


def not_scaled(before: Tensor, after: Tensor, factor: float) -> Tensor:
    """Where `after` is not exactly `factor`, a power of two or -1, times `before`.

    A result below the format's normal numbers is rounded on a fixed grid, up to the least of them or down to 0, and one
    that overflows is not scaled: there the law says nothing, but that what was 0 stays below twice the least.
    """
    limits = torch.finfo(before.dtype)
    lawful = (before.abs() > limits.tiny) & (before.abs() * abs(factor) <= limits.max)
    return (lawful & (after != before * factor)) | ((before == 0) & ~(after.abs() <= limits.tiny * abs(factor)))


def changed(before: Tensor, after: Tensor) -> Tensor:
    """Where two outputs differ; a NaN is equal to a NaN."""
    return ~((after == before) | (after.isnan() & before.isnan()))
