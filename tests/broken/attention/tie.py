"""The last rounding."""

import torch

from broken.attention.call import QUIET, Broken, on

_STORE = "    tl.store(out_ptrs, acc.to("


def _rounded(how):
    """In bfloat16 the output is rounded by hand, on the bits of float32; what the cast then finds is exact."""
    text = f"""    bits = acc.to(tl.int32, bitcast=True)
    if out_ptr.dtype.element_ty == tl.bfloat16:
        acc = tl.where(acc == acc, ({how}).to(tl.float32, bitcast=True), acc)
"""
    return ((_STORE, text + _STORE),)


def _mean(dtype):
    """Of two keys with the same score the output is half the sum of two numbers of V, which float32 holds."""
    return on(16, 2, dtypes=(dtype,), spread=0.0, check="exact")


FAULTS = (
    Broken(
        "output_cut_off", "tie", "Bits that do not fit are cut off.",
        "bfloat16, and an output beyond halfway", _rounded("bits & -65536"),
        right=(*QUIET, _mean(torch.float16)), wrong=(_mean(torch.bfloat16),),
    ),
    Broken(
        "output_half_away", "tie", "Halves are rounded away from zero, not to even.",
        "bfloat16, and an output halfway between two of its numbers, the even one nearer to zero",
        _rounded("tl.where((bits & 0x7F800000) == 0x7F800000, bits, (bits + 0x8000) & -65536)"),
        right=(*QUIET, _mean(torch.float16), on(dtypes=(torch.bfloat16,))), wrong=(_mean(torch.bfloat16),),
        missed="the contract admits it, as an output that has an error has one for halves too",
    ),
)  # fmt: skip
