"""NaN and infinity: read where nothing may be read, or lost."""

from broken.fault import QUIET, Fault, Try

_DOT = '        acc = tl.dot(a_tile, b_tile, acc, input_precision="ieee")\n'

FAULTS = (
    Fault(
        "c0_read", "nan", "C0 is read and multiplied by beta, zero too.",
        "beta is 0 and C0 holds a NaN or an infinity",
        (("    if beta == 0:\n        d = None\n", ""),), (37,),
        right=(*QUIET, Try(c0="finite")), wrong=(Try(c0="nan"),),
    ),
    Fault(
        "read_times_zero", "nan", "A's tail along K is not masked but multiplied by zero, which a NaN survives.",
        "K is no multiple of 32 and what lies behind A holds a NaN or an infinity",
        (
            ("mask=in_m[:, None] & in_k[None, :], other=0.0\n        )",
             "mask=in_m[:, None], other=0.0\n        ) * in_k[None, :].to(a.dtype.element_ty)"),
        ),
        (40,), right=(*QUIET, Try(K=63, behind=1.0)), wrong=(Try(K=63),),
    ),
    Fault(
        "zeros_skipped", "nan", "A tile of A that is all zero is not multiplied.",
        "A has a tile of zeros beside a NaN or an infinity in B, whose product is NaN",
        ((_DOT, f"        if tl.max(tl.abs(a_tile.to(tl.float32))) != 0:\n    {_DOT}"),),
        right=(*QUIET, Try(K=63)), wrong=(Try(fill="infinite"),), rung="bound",
    ),
    Fault(
        "clamped", "nan", "C is held within its format's finite numbers.",
        "C has a NaN or an infinity",
        (("    tl.store(c +", "    acc = tl.minimum(tl.maximum(acc, -3.3e38), 3.3e38)\n    tl.store(c +"),),
        right=(*QUIET, Try(K=63)), wrong=(Try(fill="infinite"),),
    ),
)  # fmt: skip
