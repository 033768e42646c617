"""Kernels of A B whose offsets are 14 bits wide, where a real one's are 32; rows in test_large.py name them."""

import torch

BITS = 14


def flat(t):
    extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.as_strided((extent,), (1,), t.storage_offset())


def wrapped(t):
    """The offset of each element from the first, modulo 2^14."""
    offsets = torch.zeros(t.shape, dtype=torch.int64)
    for dim, (n, s) in enumerate(zip(t.shape, t.stride(), strict=True)):
        shape = [1] * t.dim()
        shape[dim] = n
        offsets += (torch.arange(n) * s).view(shape)
    return offsets % 2**BITS


def right(a, b, *, out, beta=0.0, c0=None):
    """The control."""
    out.copy_((a.double() @ b.double() + (beta * c0.double() if beta else 0.0)).to(out.dtype))


def returns(a, b):
    """The control, with a tensor of its own."""
    return (a.double() @ b.double()).to(a.dtype)


def reads_a(a, b, *, out):
    right(flat(a)[wrapped(a)], b, out=out)


def reads_b(a, b, *, out):
    right(a, flat(b)[wrapped(b)], out=out)


def reads_c0(a, b, *, out, beta=0.0, c0=None):
    right(a, b, out=out, beta=beta, c0=None if c0 is None else flat(c0)[wrapped(c0)])


def writes_c(a, b, *, out):
    flat(out)[wrapped(out).flatten()] = returns(a, b).flatten()


def strays(a, b, *, out):
    """One element written a row's length behind the last of A."""
    right(a, b, out=out)
    last = a.storage_offset() + sum((n - 1) * s for n, s in zip(a.shape, a.stride(), strict=True))
    a.as_strided((1,), (1,), last + a.shape[-1]).fill_(1.0)


def raises(a, b, *, out):
    if a.numel() > 2**BITS:
        raise ValueError("too large")
    right(a, b, out=out)
