"""Kernels of A B that are wrong in one way each; rows in test_rungs.py name them."""

import torch


def right(a, b, *, out, beta=0.0, c0=None):
    """The control."""
    out.copy_((a.double() @ b.double() + (beta * c0.double() if beta else 0.0)).to(out.dtype))


def zeros_below(a, b, *, out):
    """Wrong where no drawn size of this device reaches: below row 700."""
    right(a, b, out=out)
    out[..., 700:, :] = 0


def order_by_rows(a, b, *, out):
    """Right, but a row's bits depend on how many rows are beside it."""
    if a.shape[-2] > 8:
        a, b = a.flip(-1), b.flip(-2)
    total = torch.zeros(out.shape)
    for k in range(a.shape[-1]):
        total += a[..., :, k : k + 1].float() * b[..., k : k + 1, :].float()
    out.copy_(total)


def writes_far(a, b, *, out):
    """Writes one element 70,000 elements behind the output."""
    right(a, b, out=out)
    if out.numel():
        out.as_strided((1,), (1,), out.storage_offset() + 70_000).fill_(1.0)


def skips_zeros(a, b, *, out):
    """Leaves out products with a zero, NaN or not."""
    terms = a.double().unsqueeze(-1) * b.double().unsqueeze(-3)
    terms = torch.where((a == 0).unsqueeze(-1), 0.0, terms)
    out.copy_(terms.sum(-2).to(out.dtype))


def strides_of_c(a, b, *, out, beta=0.0, c0=None):
    """Reads C0 as if it were laid out like C."""
    if c0 is not None and out.numel():
        last = c0.storage_offset() + sum((n - 1) * s for n, s in zip(out.shape, out.stride(), strict=True))
        if last < c0.untyped_storage().nbytes() // c0.element_size():
            c0 = c0.as_strided(out.shape, out.stride())
    right(a, b, out=out, beta=beta, c0=c0)
