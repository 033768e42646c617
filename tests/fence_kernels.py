"""Right products that look outside a tensor and drop what they see; rows in test_fence.py name them."""

import ctypes
import errno


def right(a, b, *, out, c0=None, bias=None):
    """The control."""
    out.copy_((a.double() @ b.double()).to(out.dtype))


def last(t):
    """Index of a tensor's last element in its storage, in elements from the first."""
    return sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))


def past(a, b, *, out):
    """Reads 16 bytes from behind B."""
    if b.numel():
        ctypes.string_at(b.data_ptr() + (last(b) + 1) * b.element_size(), 16)
    right(a, b, out=out)


def before(a, b, *, out):
    """Reads 16 bytes from before A."""
    if a.numel():
        ctypes.string_at(a.data_ptr() - 16, 16)
    right(a, b, out=out)


def past_empty(a, b, *, out):
    """Reads an element of A where there is none."""
    if not a.numel():  # torch gives no address of an empty tensor
        ctypes.string_at(a.untyped_storage().data_ptr() + a.storage_offset() * a.element_size(), 4)
    right(a, b, out=out)


def writes_near(a, b, *, out):
    """Writes the element before C."""
    right(a, b, out=out)
    out.as_strided((1,), (1,), out.storage_offset() - 1).zero_()


def modifies(a, b, *, out):
    """Doubles A once C is there."""
    right(a, b, out=out)
    a *= 2


def fenceless(a, b, *, out):
    """Leaves its process as one on a device that has no such memory."""
    from rooftest import fence

    def refuse(size):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    fence._pages = refuse
    right(a, b, out=out)


def returning(a, b):
    """Returns memory of its own."""
    return (a.double() @ b.double()).to(a.dtype)
