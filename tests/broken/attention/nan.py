"""NaN from minus infinity, and from what lies between the rows."""

from broken.attention.call import QUIET, Broken, on

FAULTS = (
    Broken(
        "merge_of_nothing", "nan", "Minus infinity less minus infinity: neither what is so far nor the tile saw a key.",
        "a query sees no key of the first tile",
        (("shrink = tl.exp(maximum - finite(larger))", "shrink = tl.exp(maximum - larger)"),), (16,),
        right=(*QUIET, on(17, 40, causal=1.0)), wrong=(on(40, 17, causal=1.0), on(40, 40, window=7.0)),
    ),
    Broken(
        "shares_of_nothing", "nan", "Scores less a maximum of minus infinity.",
        "a query sees no key of the first tile",
        (("p = tl.exp(s - finite(larger)[:, None])", "p = tl.exp(s - larger[:, None])"),), (16,),
        right=(*QUIET, on(17, 40, causal=1.0)), wrong=(on(40, 17, causal=1.0), on(40, 40, window=7.0)),
    ),
    Broken(
        "lanes_of_k", "nan", "K is read beyond D, up to a power of two: Q is 0 there, but 0 times a NaN is NaN.",
        "D is no power of two from 16 on, and what lies behind a row of K is NaN or infinite",
        (("k = tl.load(k_ptr + k_offsets, mask=seen & (d < D), other=0.0)",
          "k = tl.load(k_ptr + k_offsets, mask=seen & (d < BLOCK_D), other=0.0)"),),
        right=(*QUIET, on(D=32), on(16, 33)), wrong=(on(D=5, layout="stepped"), on(D=17, layout="stepped")),
    ),
    Broken(
        "keys_behind", "nan", "V is read beyond Sk, where shares are 0.",
        "Sk is no multiple of the tile, and what lies behind V is NaN or infinite",
        (("v = tl.load(v_ptr + v_offsets, mask=seen & (dv < Dv), other=0.0)",
          "v = tl.load(v_ptr + v_offsets, mask=dv < Dv, other=0.0)"),),
        right=(on(16, 32, config="64x32"),), wrong=(on(16, 17),),
    ),
    Broken(
        "zero_over_zero", "nan", "A row that sees no key is divided by its sum, 0.",
        "a query sees no key",
        (("    total = tl.where(total == 0, 1.0, total)", "    # total = tl.where(total == 0, 1.0, total)"),),
        right=(*QUIET, on(17, 40, causal=1.0)), wrong=(on(40, 17, causal=1.0), on(3, 0)),
    ),
)  # fmt: skip
