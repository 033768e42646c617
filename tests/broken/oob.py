"""Reads and writes outside the tensors."""

from broken.fault import QUIET, Fault, Try

_STORE = "mask=in_c)"
_TILES_N = "    tiles_n = tl.cdiv(N, BN)\n"

FAULTS = (
    Fault(
        "next_power", "oob", "Columns up to the next power of two are stored: over the head of the next row.",
        "N is no power of two",
        ((_STORE, "mask=in_m[:, None] & (n < NP2)[None, :])"),
         (_TILES_N, f"{_TILES_N}    NP2 = 1\n    while NP2 < N:\n        NP2 *= 2\n")),
        (65,), right=(Try(N=32), Try(N=1)), wrong=(Try(N=17), Try(N=31, gap=3)),
    ),
    Fault(
        "gap_written", "oob", "Whole tiles are stored where C's pitch leaves room for them.",
        "N is no multiple of 32 and C's rows have gaps",
        ((_STORE, "mask=in_m[:, None] & (n < tl.maximum(N, cm // 8 * 8))[None, :])"),),
        right=(*QUIET, Try(N=32), Try(N=40)), wrong=(Try(N=40, gap=8), Try(N=33, gap=40)),
    ),
    Fault(
        "row_too_many", "oob", "One row more than there are is stored.",
        "M is no multiple of 32",
        ((_STORE, "mask=(m <= M)[:, None] & in_n[None, :])"),),
        right=QUIET, wrong=(Try(M=31), Try(M=1, N=7)),
    ),
    Fault(
        "wild_read", "oob", "The tail along K is read with an index that was not set.",
        "K % 32 is above 16",
        (("(k0 + k)[:, None] * bk", "(k0 + k + tl.where(K % 32 > 16, 1 << 40, 0))[:, None] * bk"),),
        (12,), right=(*QUIET, Try(K=40)),
    ),
    Fault(
        "rows_read_beyond", "oob", "Rows beyond A are read and their products dropped.",
        "M is no multiple of 32, and A ends where its memory ends",
        (("mask=in_m[:, None] & in_k[None, :]", "mask=in_k[None, :]"),),
        (31,), right=(*QUIET, Try(M=31)),
    ),
)  # fmt: skip
