"""Values that made-up data does not have: outliers, tiny ones, wide ranges."""

import torch

from broken.fault import QUIET, Fault, Try

_DOT = "        acc = tl.dot("


def _seen(how):
    """A is changed before it is multiplied; `x` is its tile in float32."""
    return ((_DOT, f"        x = a_tile.to(tl.float32)\n        a_tile = ({how}).to(a.dtype.element_ty)\n{_DOT}"),)


FAULTS = (
    Fault(
        "outliers_clipped", "data", "A is clipped to what typical activations need.",
        "an element of A beyond 32",
        _seen("tl.where(tl.abs(x) > 32.0, tl.where(x > 0, 32.0, -32.0), x)"), (13,),
        right=(*QUIET, Try(K=63)), wrong=(Try(fill="outliers"),),
    ),
    Fault(
        "small_beside_large", "data", "What is below 2^-20 of its tile's largest is dropped, as by a shared scale.",
        "A spans 20 bits within a tile",
        _seen("tl.where(tl.abs(x) < tl.max(tl.abs(x)) * 0.00000095367431640625, 0.0, x)"),
        right=(Try(), Try(alpha=1.0, beta=0.5, c0="finite")),
        wrong=(Try(fill="outliers"),),
    ),
    Fault(
        "subnormals_dropped", "data", "Subnormal numbers of A are taken for zero.",
        "float16 and an element below 2^-14",
        _seen("x if a.dtype.element_ty != tl.float16 else tl.where(tl.abs(x) < 0.00006103515625, 0.0, x)"),
        right=(*QUIET, Try(dtypes=(torch.float16,))),
        wrong=(Try(dtypes=(torch.float16,), fill="tiny", bias=False, alpha=1.0),),
    ),
    Fault(
        "large_clipped", "data", "A is clipped to 1e20, so that no product overflows.",
        "an element of A beyond 1e20",
        _seen("x if a.dtype.element_ty == tl.float16 else tl.minimum(tl.maximum(x, -1e20), 1e20)"),
        right=(*QUIET, Try(fill="outliers")), wrong=(Try(fill="huge", bias=False, alpha=1.0),),
    ),
    Fault(
        "small_dropped", "data", "What is nearer to zero than 1e-20 in A is taken for zero.",
        "an element of A nearer to zero than 1e-20",
        _seen("tl.where(tl.abs(x) < 1e-20, 0.0, x)"),
        right=(*QUIET, Try(fill="outliers")), wrong=(Try(fill="minute", bias=False, alpha=1.0),),
    ),
)  # fmt: skip
