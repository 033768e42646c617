"""Reads and writes outside the tensors."""

from broken.attention.call import QUIET, Broken, on

FAULTS = (
    Broken(
        "query_too_many", "oob", "One row more than there are is stored.",
        "Sq is no multiple of the block (16 and more)",
        (("mask=(m < Sq) & (dv < Dv))", "mask=(m <= Sq) & (dv < Dv))"),), wrong=(on(17), on(1)),
    ),
    Broken(
        "lse_too_many", "oob", "One row more than there are is stored in the log-sum-exp.",
        "Sq is no multiple of the block (16 and more), and lse is asked for",
        (("mask=(rows < Sq) &", "mask=(rows <= Sq) &"),), wrong=(on(17), on(1)),
    ),
    Broken(
        "values_to_the_power", "oob", "Columns of the output up to the next power of two are stored.",
        "Dv is no power of two from 16 on",
        (("mask=(m < Sq) & (dv < Dv))", "mask=(m < Sq))"),), (65,),
        right=(*QUIET, on(Dv=32, D=5)), wrong=(on(Dv=17), on(Dv=5)),
    ),
    Broken(
        "queries_read_beyond", "oob", "Queries beyond the last are read and dropped.",
        "Sq is no multiple of the block, and Q ends where its memory ends",
        (("mask=(m < Sq) & (d < D), other=0.0)", "mask=d < D, other=0.0)"),),
    ),
    Broken(
        "keys_read_beyond", "oob", "Keys beyond the last are read, and masked.",
        "Sk is no multiple of the tile, and K ends where its memory ends",
        (("k = tl.load(k_ptr + k_offsets, mask=seen & (d < D), other=0.0)",
          "k = tl.load(k_ptr + k_offsets, mask=d < D, other=0.0)"),),
    ),
)  # fmt: skip
