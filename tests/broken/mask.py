"""Masks at the edges of tiles: off by one, of the wrong axis, forgotten."""

from broken.fault import QUIET, Fault, Try

FAULTS = (
    Fault(
        "last_k_dropped", "mask", "The K mask counts pairs, as packed 16-bit loads do, and forgets the odd one.",
        "K is odd",
        (("in_k = k < K - k0", "in_k = k < K // 2 * 2 - k0"),),
        right=(*QUIET, Try(33, 17, 46)), wrong=(Try(K=63), Try(K=1)),
    ),
    Fault(
        "k_tail_unmasked", "mask", "No mask along K: written for a multiple of the tile, then called with any K.",
        "K is no multiple of 32",
        ((" & in_k[None, :]", ""), ("in_k[:, None] & ", "")),
        (40,), right=(*QUIET, Try(33, 17, 32)), wrong=(Try(K=63), Try(K=40)),
    ),
    Fault(
        "one_too_far", "mask", "The K mask lets one more through.",
        "K is no multiple of 32",
        (("in_k = k < K - k0", "in_k = k <= K - k0"),),
        right=(*QUIET, Try(33, 17, 32)), wrong=(Try(K=63), Try(K=1)),
    ),
    Fault(
        "masks_swapped", "mask", "The columns of C are masked by its number of rows.",
        "M and N differ and end in different places of a tile of 32",
        (("in_m, in_n = m < M, n < N", "in_m, in_n = m < M, n < M"),),
        right=(Try(32, 32), Try(17, 17)), wrong=(Try(17, 33), Try(33, 1)),
    ),
    Fault(
        "first_tile_alone", "mask", "The last step along K is masked as if it were the first.",
        "K > 32 and no multiple of 32",
        (("in_k = k < K - k0", "in_k = k < K"),),
        right=(*QUIET, Try(K=31)), wrong=(Try(K=63), Try(K=33)),
    ),
)  # fmt: skip
