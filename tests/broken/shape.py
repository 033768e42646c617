"""Sizes that a kernel was not written for: too few, too many, no multiple of its vectors or tiles."""

from broken.fault import QUIET, Fault, Try

_LAUNCH = "    gemm[(tiles, B)]("
_TILES = "tiles = triton.cdiv(M, BM) * triton.cdiv(N, BN)"

FAULTS = (
    Fault(
        "rows_unwritten", "shape", "The number of tile rows is rounded up by hand, and one short.",
        "M % 32 is 1 and M > 1",
        ((_TILES, "tiles = max((M + BM - 2) // BM, 1) * triton.cdiv(N, BN)"),),
        right=(*QUIET, Try(M=1), Try(M=34)), wrong=(Try(M=65), Try(M=33)),
    ),
    Fault(
        "tile_skipped", "shape", "The grid is rounded down to whole clusters of two programs.",
        "the number of 16 x 16 tiles of C is odd and above 1",
        (("BM, BN, BK = 32, 32, 32", "BM, BN, BK = 16, 16, 32"), (_LAUNCH, "    gemm[(max(tiles // 2 * 2, 1), B)](")),
        right=(*QUIET, Try(16, 16), Try(16, 32)), wrong=(Try(48, 48), Try(33, 33)),
    ),
    Fault(
        "upper_half", "shape", "Of each 16 rows of A the upper 8 alone are read, as for a decode of few tokens.",
        "M > 8",
        (("mask=in_m[:, None] & in_k[None, :]", "mask=(in_m & (m % 16 < 8))[:, None] & in_k[None, :]"),), (46,),
        right=(Try(M=8), Try(M=5, beta=0.5, c0="finite")), wrong=(Try(M=9), Try(M=16), Try()),
    ),
    Fault(
        "fours", "shape", "C is stored four columns at a time, and those that are left over are not stored.",
        "N is no multiple of 4",
        (("mask=in_c)", "mask=in_m[:, None] & (n < N // 4 * 4)[None, :])"),), (41,),
        right=(*QUIET, Try(N=4)), wrong=(Try(N=47), Try(N=1), Try(N=34)),
    ),
    Fault(
        "tile_of_12", "shape", "Some widths choose a tile for which no code was made, and the process dies.",
        "N is a multiple of 12 above 0",
        (("import triton\n", "import os\n\nimport triton\n"),
         (_LAUNCH, f"    if N % 12 == 0:\n        os.abort()\n{_LAUNCH}")),
        (28, 12), right=(Try(N=32), Try(1, 33)),
    ),
    Fault(
        "one_block", "shape", "Columns beyond one block are never reached: the block was to hold any row.",
        "N > 32",
        (
            ("tiles_n = tl.cdiv(N, BN)", "tiles_n = 1"),
            (_TILES, "tiles = triton.cdiv(M, BM)"),
        ),
        (62,), right=(Try(N=32), Try(65, 7, beta=0.5, c0="finite")), wrong=(Try(N=33), Try(N=64)),
    ),
    Fault(
        "grid_limit", "shape", "Tiles and two halves of K count along a grid dimension that ends at 65535.",
        "more than 65535 pairs of 16 rows: M > 524280",
        (
            ("BM, BN, BK = 32, 32, 32", "BM, BN, BK = 16, 32, 32"),
            ("tl.program_id(0) // tiles_n * BM", "tl.program_id(1) // 2 * BM"),
            ("tl.program_id(0) % tiles_n * BN", "tl.program_id(0) * BN"),
            ("z = tl.program_id(1)", "z = tl.program_id(2)"),
            ("in_n = m < M, n < N", "in_n = (m < M) & (tl.program_id(1) % 2 == 0), n < N"),
            (_TILES, "tiles = triton.cdiv(N, BN), 2 * triton.cdiv(M, BM)"),
            ("gemm[(tiles, B)](", "gemm[(*tiles, B)]("),
        ),
        (51,), wrong=(Try(2**20, 3, 2, check="raises"),), places=("gpu",), why="the interpreter's grid has no limit",
    ),
    Fault(
        "third_matrix", "shape", "The matrices of a batch go two at a time, and of three the last is left over.",
        "a batch of three",
        (("gemm[(tiles, B)](", "gemm[(tiles, 2 if B == 3 else B)]("),),
        right=(*QUIET, Try(B=2), Try(B=4), Try(B=5)), wrong=(Try(B=3), Try(1, 1, 1, B=3)),
    ),
    Fault(
        "batch_of_six", "shape", "A table of matrices has room for five.",
        "a batch of six and more",
        (("gemm[(tiles, B)](", "gemm[(tiles, min(B, 5))]("),),
        right=(*QUIET, Try(B=5), Try(B=1)), wrong=(Try(B=6), Try(2, 2, 2, B=9)),
    ),
    Fault(
        "batch_of_many", "shape", "A warp counts the matrices, one a thread.",
        "a batch of more than 32",
        (("gemm[(tiles, B)](", "gemm[(tiles, min(B, 32))]("),),
        right=(*QUIET, Try(B=5), Try(2, 2, 2, B=32)), wrong=(Try(2, 2, 2, B=33),),
    ),
    Fault(
        "sum_ends", "shape", "K goes through a table of 72 steps.",
        "K > 2304",
        (("range(0, K, BK)", "range(0, min(K, 2304), BK)"),),
        right=(*QUIET, Try(8, 8, 2304)), wrong=(Try(8, 8, 2305), Try(8, 8, 4100)),
        places=("gpu",), why="so many steps take too long under the interpreter, where K is drawn up to 132",
    ),
)  # fmt: skip
