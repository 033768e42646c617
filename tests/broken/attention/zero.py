"""Nothing to attend to, or nobody who does."""

from broken.attention.call import QUIET, Broken, on

_EMPTY = "    if ops.B * ops.Sq * ops.H == 0:\n        return\n"

FAULTS = (
    Broken(
        "lse_left", "zero", "Without keys the output is set to 0 and the log-sum-exp is forgotten.",
        "Sk is 0, Sq is not, and lse is asked for",
        ((_EMPTY, _EMPTY + "    if ops.Sk == 0:\n        ops.out.zero_()\n        return\n"),),
        right=(*QUIET, on(0, 5), on(5, 1)), wrong=(on(5, 0),),
    ),
    Broken(
        "no_batch", "zero", "A batch of nothing is launched as a batch of one, which dies of its own division.",
        "B is 0",
        ((_EMPTY, "    1 // ops.B\n" + _EMPTY),),
        (7,), right=(*QUIET, on(5, 0), on(0, 5)), wrong=(on(B=0),),
    ),
    Broken(
        "nothing_written", "zero", "Without keys nothing is launched, and nothing written.",
        "Sk is 0 and Sq is not",
        ((_EMPTY, _EMPTY.replace("ops.Sq", "ops.Sq * ops.Sk")),),
        right=(*QUIET, on(0, 5), on(5, 1)), wrong=(on(5, 0), on(1, 0, H=2)),
    ),
)  # fmt: skip
