"""Sizes that a kernel was not written for: heads, widths of a head, numbers of queries."""

from broken.attention.call import QUIET, Broken, on

_GRID = "attention_tiled[(ops.B * ops.H * triton.cdiv(ops.Sq, BM),)]("
_Q = "mask=(m < Sq) & (d < D), other=0.0)"

FAULTS = (
    Broken(
        "sixteen_columns", "shape", "The columns of Q beyond a multiple of 16 are not read, as of a vectorised load.",
        "D is no multiple of 16",
        ((_Q, _Q.replace("d < D", "d < D // 16 * 16")),), (12,),
        right=(*QUIET, on(Dv=7), on(D=48)), wrong=(on(D=17), on(D=40), on(D=1)),
    ),
    Broken(
        "first_64_columns", "shape", "Of a head 64 columns are multiplied: the loop over the others is missing.",
        "D > 64",
        ((_Q, _Q.replace("d < D", "d < tl.minimum(D, 64)")),), (10,),
        right=(*QUIET, on(D=64, Dv=80)), wrong=(on(D=72), on(D=128)),
    ),
    Broken(
        "values_as_keys", "shape", "A row of V is taken to be as long as one of K: what is longer is not stored.",
        "Dv > D",
        (("(m < Sq) & (dv < Dv))", "(m < Sq) & (dv < tl.minimum(Dv, D)))"),),
        right=(*QUIET, on(D=32), on(D=33, Dv=9)), wrong=(on(D=16, Dv=17),),
    ),
    Broken(
        "heads_by_turns", "shape", "The heads of Q go round those of K and V by turns, not in groups.",
        "a group of two heads and more, and two groups and more",
        (("    g = h // R\n", "    g = h % (H // R)\n"),),
        right=(*QUIET, on(H=4, G=4), on(H=4)), wrong=(on(H=4, G=2), on(H=6, G=3)),
    ),
    Broken(
        "one_group", "shape", "All heads read the first head of K and V (multi-query).",
        "two groups and more",
        (("    g = h // R\n", "    g = h * 0\n"),),
        right=(on(), on(H=4)), wrong=(on(H=4, G=2), on(H=2, G=2)),
    ),
    Broken(
        "heads_in_pairs", "shape", "A block takes two heads, and one that is left over is not computed.",
        "B H is odd and above 1",
        ((_GRID, _GRID.replace("ops.B * ops.H", "max(ops.B * ops.H // 2 * 2, 1)")),),
        right=(*QUIET, on(H=2, B=3)), wrong=(on(H=3), on(B=3, H=5)),
    ),
    Broken(
        "rows_left_over", "shape", "The number of blocks of queries is rounded up by hand, and one short.",
        "Sq leaves 1 over from whole blocks (16, 32 or 64), and is above 1",
        ((_GRID, _GRID.replace("triton.cdiv(ops.Sq, BM)", "max((ops.Sq + BM - 2) // BM, 1)")),
         ("blocks = tl.cdiv(Sq, BM)", "blocks = tl.maximum((Sq + BM - 2) // BM, 1)")),
        right=(*QUIET, on(18), on(1)), wrong=(on(17), on(65)),
    ),
)  # fmt: skip
