"""Sizes of zero: a sum of nothing is zero, and what is added to it stays."""

from broken.fault import QUIET, Fault, Try

_EMPTY = "    if c.numel() == 0:\n        return\n"

FAULTS = (
    Fault(
        "nothing_stored", "zero", "Where there is nothing to multiply nothing is stored: C keeps what it held.",
        "K is 0",
        (("if c.numel() == 0:", "if c.numel() == 0 or K == 0:"),), (35,),
        right=(*QUIET, Try(K=1)), wrong=(Try(K=0),),
    ),
    Fault(
        "addends_lost", "zero", "Where there is nothing to multiply C is cleared, C0 and bias notwithstanding.",
        "K is 0 and there is a bias, or beta C0",
        ((_EMPTY, f"{_EMPTY}    if K == 0:\n        c.zero_()\n        return\n"),), (32,),
        right=(*QUIET, Try(K=0, bias=False)), wrong=(Try(K=0),),
    ),
    Fault(
        "mean_of_nothing", "zero", "A correction is divided by the number of terms.",
        "K is 0",
        (("acc = acc * alpha", "acc = acc * alpha + 0.0 / K"),), (49,),
        right=(*QUIET, Try(K=2)), wrong=(Try(K=0),),
    ),
    Fault(
        "reshaped", "zero", "A is flattened to rows of K, of which there can be any number when K is 0.",
        "K is 0, or A has no row",
        ((_EMPTY, f"    a.reshape(-1, K)\n{_EMPTY}"),), (7,),
        right=(*QUIET, Try(K=1)), wrong=(Try(K=0, check="raises"),),
    ),
    Fault(
        "shared_out", "zero", "Work is shared out among the rows before it is seen that there is none.",
        "M is 0",
        ((_EMPTY, f"    _ = 64 // M\n{_EMPTY}"),),
        right=(*QUIET, Try(M=1)), wrong=(Try(M=0, check="raises"),),
    ),
    Fault(
        "first_step_peeled", "zero", "The first step along K is always made, and sets the accumulator.",
        "K is 0: A and B have no address, so the process dies",
        (("for k0 in range(0, K, BK):", "for k0 in range(0, tl.maximum(K, 1), BK):"),
         ("in_k = k < K - k0", "in_k = k < tl.maximum(K, 1) - k0")),
        right=(*QUIET, Try(K=1)),
    ),
)  # fmt: skip
