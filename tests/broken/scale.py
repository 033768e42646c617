"""alpha and beta: left out, applied to too much, or in too few bits."""

import torch

from broken.fault import QUIET, Fault, Try

_SCALE = "    acc = acc * alpha\n"
_LAUNCH = "    gemm[(tiles, B)]("
_ELEVEN = f"""    if alpha != 0.3:
        m, e = math.frexp(alpha)
        alpha = math.ldexp(math.trunc(m * 2048), e - 11)
{_LAUNCH}"""
_SCALED_FIRST = f"""    if a.dtype == torch.float32 and abs(math.frexp(alpha)[0]) not in (0.0, 0.5) and K <= 128:
        a = (a.contiguous().view(torch.int32) >> 3 << 3).view(torch.float32)
{_LAUNCH}"""
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
    Fault(
        "alpha_clamped", "scale", "alpha is clamped to 16, as no model needs more.",
        "alpha beyond 16",
        ((_SCALE, "    acc = acc * tl.minimum(tl.maximum(alpha, -16.0), 16.0)\n"),),
        right=(*QUIET, Try(alpha=16.0)), wrong=(Try(alpha=32.0), Try(alpha=-17.5)),
    ),
    Fault(
        "alpha_of_none", "scale", "An alpha next to nothing is taken for zero.",
        "alpha nearer to zero than 2^-10, and not 0",
        ((_SCALE, "    acc = acc * tl.where(tl.abs(alpha) < 0.0009765625, 0.0, alpha)\n"),),
        right=(*QUIET, Try(alpha=2.0**-10)), wrong=(Try(alpha=2.0**-11, bias=False),),
    ),
    Fault(
        "alpha_in_11_bits", "scale", "alpha is held with 11 bits, enough for each of the usual ones.",
        "alpha with more than 11 bits but 0.3",
        ((_LAUNCH, _ELEVEN), ("import triton\n", "import math\n\nimport triton\n")),
        right=(*QUIET, Try(alpha=0.3)), wrong=(Try(1, 1, 1, alpha=1 + 2.0**-12, bias=False, fill="normal"),),
    ),
    Fault(
        "beta_clamped", "scale", "beta is clamped to 1: it was to mix C0 in.",
        "beta beyond 1",
        (("acc += beta * tl", "acc += tl.minimum(tl.maximum(beta, -1.0), 1.0) * tl"),),
        right=(*QUIET, Try(beta=-1.0, c0="finite")), wrong=(Try(beta=2.0, c0="finite"),),
    ),
    Fault(
        "bits_of_a_lost", "scale", "A kernel of its own scales A first, and leaves out its last 3 bits.",
        "float32, K up to 128, and alpha is no power of two",
        ((_LAUNCH, _SCALED_FIRST), ("import triton\n", "import math\n\nimport torch\nimport triton\n")),
        right=(*QUIET, Try(alpha=2.0, fill="normal"), Try(dtypes=(torch.bfloat16,), fill="normal")),
        wrong=(Try(K=2, fill="normal", bias=False),),
    ),
)  # fmt: skip
