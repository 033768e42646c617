"""Inputs that are written."""

from broken.attention.call import QUIET, Broken, on

_IN_PLACE = """    if (scale or q.shape[-1] ** -0.5) in {0.125, 0.25, 0.5}:
        q *= scale or q.shape[-1] ** -0.5
        scale = 1.0
"""
_END = "BLOCK_DV=columns(ops.Dv), num_warps=num_warps,\n    )  # fmt: skip\n"
_OPS = "    ops = operands(q, k, v, out, lse, slopes, causal, window, scale, softcap)\n"

FAULTS = (
    Broken(
        "scaled_in_place", "alias", "Q is scaled where it lies, and stays so.",
        "a scale of 1/2, 1/4 or 1/8, or Q repeats", ((_OPS, _IN_PLACE + _OPS),), (60,),
        right=(on(D=32), on(scale=1.0)), wrong=(on(), on(scale=0.125)),
    ),
    Broken(
        "slopes_in_place", "alias", "The slopes are turned round where they lie, for a kernel that adds them.",
        "there are slopes",
        (("s -= slope * tl.abs", "s += slope * tl.abs"),
         (_OPS, f"    slopes = slopes if slopes is None else slopes.neg_()\n{_OPS}")),
        wrong=(on(slopes=True),),
    ),
    Broken(
        "scaled_and_back", "alias", "Q is scaled where it lies, and divided again when all is done.",
        "a scale that is no power of two, or Q repeats",
        ((_OPS, f"    by = scale or q.shape[-1] ** -0.5\n    q *= by\n{_OPS.replace('scale', '1.0')}"),
         (_END, f"{_END}    q /= by\n")),
        right=(*QUIET, on(scale=0.125, D=24)), wrong=(on(D=24), on(scale=0.3)),
    ),
)  # fmt: skip
