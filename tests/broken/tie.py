"""The last rounding: values halfway between two numbers of the format, and next to it."""

import torch

from broken.fault import Fault, Try

_BF16 = (torch.bfloat16,)


def _rounded(how):
    """In bfloat16 C is rounded by hand, on the bits of float32; what the cast then finds is exact."""
    text = f"""    bits = acc.to(tl.int32, bitcast=True)
    if c.dtype.element_ty == tl.bfloat16:
        acc = tl.where(acc == acc, ({how}).to(tl.float32, bitcast=True), acc)
    tl.store(c +"""
    return (("    tl.store(c +", text),)


FAULTS = (
    Fault(
        "half_away", "tie", "Halves are rounded away from zero, not to even.",
        "bfloat16, and a sum halfway between two of its numbers, the even one nearer to zero",
        _rounded("tl.where((bits & 0x7F800000) == 0x7F800000, bits, (bits + 0x8000) & -65536)"),
        right=(Try(dtypes=(torch.float32, torch.float16)), Try(dtypes=_BF16, fill="normal", bias=False)),
        wrong=(Try(dtypes=_BF16, fill="large", alpha=1.0),),
    ),
    Fault(
        "rounded_twice", "tie", "C is rounded to 11 bits on the way to 8.",
        "bfloat16, and a sum within 2^-4 of a unit from halfway",
        _rounded("tl.where((bits & 0x7F800000) == 0x7F800000, bits, (bits + 0xFFF + ((bits >> 13) & 1)) & -8192)"),
        right=(Try(dtypes=(torch.float32, torch.float16)),),
        wrong=(Try(dtypes=_BF16, fill="large", alpha=1.0),),
    ),
    Fault(
        "cut_off", "tie", "Bits that do not fit are cut off.",
        "bfloat16, and a sum beyond halfway",
        _rounded("bits & -65536"),
        right=(Try(dtypes=(torch.float32, torch.float16)),), wrong=(Try(dtypes=_BF16, fill="normal"),),
    ),
)  # fmt: skip
