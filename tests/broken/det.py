"""Results that depend on what is beside them, before them or faster than them, where the row claims otherwise.

Each is right within its error bar: only the claim is broken.
"""

import torch

from broken.fault import Fault, Try

_INVARIANT, _SAME = {"claims": ["batch-invariant"]}, {"claims": ["deterministic"]}
_LOOP = "    for k0 in range(0, K, BK):\n"
_EITHER_WAY = """    last = (K - 1) // BK * BK
    for up in range(0, K, BK):
        k0 = tl.where(backwards != 0, last - up, up)
"""
_TILE = "BM, BN, BK = 32, 32, 16\n"  # two steps give the same bits in either order, three do not
_CALL = "    gemm[(tiles, B)]("


def _order(rule):
    """The steps along K go backwards where the rule (an expression on the host) holds."""
    return (
        ("BM, BN, BK = 32, 32, 32\n", _TILE),
        ("    BM: tl.constexpr, BN", "    backwards, BM: tl.constexpr, BN"),
        (_LOOP, _EITHER_WAY),
        ("        BM=BM, BN=BN, BK=BK,\n", f"        int({rule}), BM=BM, BN=BN, BK=BK,\n"),
    )


_OUTSIDE = (Try(check="repeat"), Try(K=31), Try())

FAULTS = (
    Fault(
        "power_of_two", "det", "A K that is a power of two is summed in another order, if there are rows enough.",
        "K is a power of two, K > 32 and M > 1", _order("K & (K - 1) == 0 and M > 1"), (64,),
        right=(Try(K=96, check="alone"), Try(K=32, check="alone"), Try(M=1, check="alone"), *_OUTSIDE),
        wrong=(Try(K=128, check="alone", fill="normal"),), row=_INVARIANT, rung="determinism",
    ),
    Fault(
        "decode_is_not_prefill", "det", "One row is summed in another order than many.",
        "K > 32, M = 1 against M > 1", _order("M == 1"), (20,),
        right=(Try(K=32, check="alone"), Try(M=1, check="alone"), *_OUTSIDE),
        wrong=(Try(K=96, check="alone", fill="normal"),), row=_INVARIANT, rung="determinism",
    ),
    Fault(
        "second_call", "det", "Every other call sums in another order, as a tuner does that is still trying.",
        "K > 32, and the call before",
        (*_order("next(CALLS) % 2"), (_TILE, f"{_TILE}CALLS = itertools.count()\n"),
         ("import triton\n", "import itertools\n\nimport triton\n")),
        right=(Try(K=32, check="repeat"), Try(K=31), Try()),
        wrong=(Try(K=96, check="repeat", fill="normal"),), row=_SAME, rung="determinism",
    ),
    Fault(
        "memory_dependent", "det", "The order of the sum follows from a byte that was never written.",
        "K > 32, and what a fresh allocation holds",
        (*_order("scratch[0] < 128"), (_CALL, f"    scratch = torch.empty(1, dtype=torch.uint8)\n{_CALL}"),
         ("import triton\n", "import torch\nimport triton\n")),
        right=(Try(K=31), Try()), wrong=(), row=_SAME,
    ),
    Fault(
        "atomics", "det", "Parts of K are added by atomic adds, in any order; the flag against it is lost.",
        "K > 64, so that three parts have something to add",
        (
            ("tl.store(w, acc, mask=in_c)", "tl.atomic_add(w, acc, mask=in_c)"), ("part * wp + ", ""),
            ("torch.empty((PARTS,", "torch.zeros((1,"),
        ),
        (39, 5), right=(Try(K=64, check="repeat"), Try(K=64)),
        wrong=(Try(512, 512, 1024, check="repeat", fill="normal", dtypes=(torch.float32,)),),
        base="split", row=_SAME, rung="determinism",
        places=("gpu",), why="the interpreter runs one program after the other, in order",
    ),
)  # fmt: skip
