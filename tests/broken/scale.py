"""alpha and beta: left out, applied to too much, or in too few bits."""

import torch

from broken.fault import QUIET, Fault, Try

_SCALE = "    acc = acc * alpha\n"
_IF_BIAS = "    if bias is not None:\n"

FAULTS = (
    Fault(
        "alpha_ignored", "scale", "The branch that adds C0 was written for alpha = 1.",
        "alpha != 1 and beta != 0",
        ((_SCALE, ""), (_IF_BIAS, f"    else:\n    {_SCALE}{_IF_BIAS}")),
        right=(*QUIET, Try(alpha=0.5)), wrong=(Try(beta=0.5, c0="finite"),),
    ),
    Fault(
        "scale_by_dtype", "scale", "One output dtype got a store of its own, before alpha.",
        "float16 and alpha != 1",
        ((_SCALE, "    if c.dtype.element_ty != tl.float16:\n        acc = acc * alpha\n"),), (34,),
        right=(*QUIET, Try(alpha=1.0, dtypes=(torch.float16,))), wrong=(Try(dtypes=(torch.float16,)),),
    ),
    Fault(
        "fast_path_unscaled", "scale", "The path for whole tiles forgets alpha.",
        "M, N and K are multiples of 16 and alpha != 1",
        ((_SCALE, "    acc = acc * tl.where((M % 16 == 0) & (N % 16 == 0) & (K % 16 == 0), 1.0, alpha)\n"),), (22,),
        right=(Try(K=63), Try(alpha=1.0, beta=0.5, c0="finite")), wrong=(Try(), Try(K=16, alpha=2.0)),
    ),
    Fault(
        "bias_scaled", "scale", "alpha is applied to the bias too.",
        "alpha != 1 and there is a bias",
        ((_SCALE, ""), ("    tl.store(c +", "    if c0 is None:\n        acc = acc * alpha\n    tl.store(c +"),
         ("        acc += beta * tl.load", "        acc = acc * alpha + beta * tl.load")),
        right=(Try(alpha=1.0), Try(bias=False)), wrong=(Try(),),
    ),
    Fault(
        "alpha_in_16_bits", "scale", "alpha is rounded to the dtype of C.",
        "alpha is no number of a 16-bit dtype",
        ((_SCALE, "    acc = acc * tl.full((1, 1), alpha, tl.float32).to(c.dtype.element_ty).to(tl.float32)\n"),),
        right=(*QUIET, Try(alpha=0.3, dtypes=(torch.float32,))),
        wrong=(Try(alpha=0.3, dtypes=(torch.bfloat16, torch.float16), fill="normal", bias=False),),
    ),
)  # fmt: skip
