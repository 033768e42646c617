"""The GEMM in CUDA Tile (cuTile Python): tiles as in Triton, but what a thread or a warp does is the compiler's affair.

Against step7_persistent_triton: the same order of tiles and one program an SM, and no pointer, mask or descriptor. An
array knows its sizes and strides; a tile is loaded by its index, and what lies outside the array is read as 0 and not
written. cuTile compiles a kernel for what it sees in the arguments: where rows start at multiples of 16 bytes it copies
by the bulk copy engine, elsewhere every thread loads elements. On Hopper it makes a producer and consumers of one loop
(`setmaxnreg`), which plain Triton does not.

Optional: `pip install -e '.[cutile]'`, which brings NVIDIA's compiler of tiles too (a GPU needs driver r580 or later).

Domain: float16 and bfloat16; any sizes, zero included, any strides, a batch. A size or stride of 2^31 or more is
refused by cuTile (OverflowError). c0 does not overlap out.
"""

from functools import cache
from typing import NamedTuple

import cuda.tile as ct
import torch
from rooftest_kernels.gemm import step4_dot
from rooftest_kernels.gemm.operands import operands, unit_dimension

DTYPES = (torch.float16, torch.bfloat16)
Count = ct.Constant[int]
Flag = ct.Constant[bool]


class Config(NamedTuple):
    """Tile [BM, BN] of C, BK elements of K a step, `group` rows of tiles; warps that multiply.

    All sizes are powers of two: tiles of other sizes there are not. 128 x 256 in float32 is 256 registers a thread for
    4 warps, all that a thread has, so that it takes 8; they are also all that compilers of 13.4 know, beside 4.
    """

    BM: int
    BN: int
    BK: int
    group: int
    warps: int


CONFIGS = {
    "16x16x16": Config(16, 16, 16, group=2, warps=4),
    "64x64x64": Config(64, 64, 64, group=8, warps=4),
    "128x128x64": Config(128, 128, 64, group=8, warps=8),
    "128x256x64": Config(128, 256, 64, group=8, warps=8),
}


def pick(M: int, N: int) -> Config:
    """Choose the largest tile of which C has enough to give most of 132 SMs one."""
    for name in ("128x256x64", "128x128x64"):
        config = CONFIGS[name]
        if ct.cdiv(M, config.BM) * ct.cdiv(N, config.BN) >= 96:
            return config
    return CONFIGS["64x64x64"]


def grouped(tile, tiles_m, tiles_n, GROUP):
    """Return row and column of a tile in the order: GROUP rows at a time, down each column of the group."""
    group = tile // (GROUP * tiles_n)
    rows = min(tiles_m - group * GROUP, GROUP)  # the last group may be lower
    place = tile % (GROUP * tiles_n)
    return group * GROUP + place % rows, place // rows


def block(array, z, row, column, ROWS, COLUMNS, TRANS):
    """Return tile [row, column] of matrix z, [ROWS, COLUMNS]; TRANS: the array holds the matrix transposed."""
    if TRANS:
        tile = ct.load(array, (z, column, row), (1, COLUMNS, ROWS), padding_mode=ct.PaddingMode.ZERO)
        return tile.reshape((COLUMNS, ROWS)).transpose()
    return ct.load(array, (z, row, column), (1, ROWS, COLUMNS), padding_mode=ct.PaddingMode.ZERO).reshape(
        (ROWS, COLUMNS)
    )


@ct.kernel
def gemm_tiles(
    a, b, c, c0, bias, B, K, alpha, beta,
    A_TRANS: Flag, B_TRANS: Flag, C0: Flag, BIAS: Flag, BM: Count, BN: Count, BK: Count, GROUP: Count,
):  # fmt: skip
    """Compute every num_blocks-th tile of C; *_TRANS: the matrix is given transposed; C0, BIAS: it is there."""
    tiles_m = ct.cdiv(c.shape[1], BM)
    tiles_n = ct.cdiv(c.shape[2], BN)
    tiles = tiles_m * tiles_n
    for tile in range(ct.bid(0), B * tiles, ct.num_blocks(0)):
        z = tile // tiles
        m, n = grouped(tile % tiles, tiles_m, tiles_n, GROUP)
        acc = ct.full((BM, BN), 0, dtype=ct.float32)
        for k in range(ct.cdiv(K, BK)):
            acc = ct.mma(block(a, z, m, k, BM, BK, A_TRANS), block(b, z, k, n, BK, BN, B_TRANS), acc)
        # All in float32; the store below is the only rounding to C's dtype.
        acc *= alpha
        if C0:
            acc += beta * block(c0, z, m, n, BM, BN, False).astype(ct.float32)
        if BIAS:
            acc += block(bias, 0, 0, n, 1, BN, False).astype(ct.float32)
        ct.store(c, (z, m, n), acc.astype(c.dtype).reshape((1, BM, BN)))


@cache
def compiled(warps: int) -> ct.kernel:
    """Return the kernel for so many warps; each compiles, and keeps what it compiled, for itself."""
    return gemm_tiles.replace_hints(num_worker_warps=warps)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor,
    alpha: float = 1.0,
    beta: float = 0.0,
    c0: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    config: str | Config | None = None,
) -> None:
    """Write alpha A B + beta C0 + bias to out, accumulated in float32 and rounded once.

    a: (M, K) or (B, M, K); b: (K, N) or (B, K, N); out, c0: (M, N) or (B, M, N); bias: (N,); any strides.
    config: a name out of CONFIGS. Raises ValueError where shapes or dtypes do not fit.
    """
    if a.shape[-1] == 0:  # nothing to copy, and the bulk copy engine knows no empty array
        step4_dot.matmul(a, b, out=out, beta=beta, c0=c0, bias=bias)
        return
    ops = operands(a, b, out, beta, c0, bias, DTYPES)
    if ops.B * ops.M * ops.N == 0:
        return
    BM, BN, BK, group, warps = CONFIGS[config] if isinstance(config, str) else config or pick(ops.M, ops.N)
    tiles = ops.B * ct.cdiv(ops.M, BM) * ct.cdiv(ops.N, BN)
    sms = torch.cuda.get_device_properties(a.device).multi_processor_count
    a_trans, b_trans = unit_dimension(ops.a) == 1, unit_dimension(ops.b) == 1
    ct.launch(
        torch.cuda.current_stream(a.device), (min(sms, tiles),), compiled(warps),
        (
            ops.a.mT if a_trans else ops.a, ops.b.mT if b_trans else ops.b, ops.out,
            # out stands in for what is absent: it is not read.
            ops.out if ops.c0 is None else ops.c0, ops.out if ops.bias is None else ops.bias[None, None],
            ops.B, ops.K, float(alpha), float(beta),
            a_trans, b_trans, ops.c0 is not None, ops.bias is not None, BM, BN, BK, group,
        ),
    )  # fmt: skip
