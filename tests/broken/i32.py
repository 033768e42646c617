"""Offsets of 2^31 elements and more, counted in 32 bits.

Cases that reach so far are those of the rung for large tensors, not drawn ones.
"""

from broken.fault import Fault

FAULTS = (
    Fault(
        "rows_in_32_bits", "i32", "A row of A times its pitch is counted in 32 bits.",
        "an offset in A or C from 2^31 elements on, along M",
        (("m = (tl.program_id(0) // tiles_n * BM + tl.arange(0, BM)).to(tl.int64)",
          "m = tl.program_id(0) // tiles_n * BM + tl.arange(0, BM)"),),
        (43, 52), waits="large",
    ),
    Fault(
        "columns_in_32_bits", "i32", "A column of B or C times its stride is counted in 32 bits.",
        "an offset in B or C from 2^31 elements on, along N",
        (("n = (tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)).to(tl.int64)",
          "n = tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)"),),
        (57,), waits="large",
    ),
    Fault(
        "batch_in_32_bits", "i32", "The number of a matrix times the size of one is counted in 32 bits.",
        "an offset of a matrix from 2^31 elements on",
        (("z = tl.program_id(1).to(tl.int64)", "z = tl.program_id(1)"),),
        waits="large",
    ),
    Fault(
        "sum_in_32_bits", "i32", "A step along K times a stride is counted in 32 bits.",
        "an offset in A or B from 2^31 elements on, along K",
        (("k = tl.arange(0, BK).to(tl.int64)", "k = tl.arange(0, BK)"),),
        waits="large",
    ),
)  # fmt: skip
