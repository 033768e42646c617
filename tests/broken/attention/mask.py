"""Who sees whom: aligned at the wrong corner, off by one, forgotten, and rows that see nobody."""

from broken.attention.call import QUIET, Broken, on

_SEES = 's = tl.where(visible(m, n, Sq, Sk, left, right), s, float("-inf"))'
_CAP = "    if SOFTCAP:\n        s = softcap * tanh(s / softcap)\n"

FAULTS = (
    Broken(
        "rows_zeroed", "mask", "A block is left out if its first query sees no key.",
        "a block whose first query stands before all keys it could see, and whose last does not (Sq > Sk)",
        (("tl.minimum(last + right + 1, Sk)\n", "tl.where(first + right < 0, 0, tl.minimum(last + right + 1, Sk))\n"),),
        (1,), base="flash", right=(*QUIET, on(40, 17), on(17, 40, causal=1.0), on(32, 32, causal=1.0)),
        wrong=(on(20, 17, causal=1.0), on(40, 17, window=5.0)),
    ),
    Broken(
        "lse_of_nothing", "mask", "The log-sum-exp of a row that sees no key is a number.",
        "lse is asked for, and a query sees no key",
        (("maximum + tl.log(total)", "finite(maximum) + tl.log(total)"),), (15,),
        right=(*QUIET, on(17, 40, causal=1.0)), wrong=(on(40, 17, causal=1.0), on(3, 0)),
    ),
    Broken(
        "top_left", "mask", "The first query stands at the first key, not the last at the last.",
        "Sq and Sk differ, causal or in a window",
        (("    p = m + (Sk - Sq)\n", "    p = m\n"),
         ("    first = m0 + Sk - Sq\n    last = tl.minimum(m0 + BM, Sq) - 1 + Sk - Sq\n",
          "    first = m0\n    last = tl.minimum(m0 + BM, Sq) - 1\n")),
        right=(*QUIET, on(17, 17, causal=1.0), on(40, 17), on(20, 20, window=7.0)),
        wrong=(on(17, 18, causal=1.0), on(18, 17, causal=1.0), on(17, 30, window=7.0)),
    ),
    Broken(
        "window_too_wide", "mask", "A window takes one key more on either side.",
        "a window, and a key that is just outside it",
        (("int(min(window, everything)) - 1 if", "int(min(window, everything)) if"),),
        right=(*QUIET, on(causal=1.0), on(window=64.0)), wrong=(on(window=7.0), on(window=1.0, causal=1.0)),
    ),
    Broken(
        "window_behind_alone", "mask", "A window looks back only, as causal models have it.",
        "a window without a causal mask, and a key after the query that it holds",
        (("    return near, 0 if causal else near\n", "    return near, 0 if causal or window > 0 else near\n"),),
        right=(*QUIET, on(causal=1.0), on(window=7.0, causal=1.0), on(window=1.0)),
        wrong=(on(window=7.0), on(17, 16, window=7.0)),
    ),
    Broken(
        "not_itself", "mask", "Under a causal mask a query does not see the key at its own place.",
        "causal",
        (("    return near, 0 if causal else near\n", "    return near, -1 if causal else near\n"),),
        right=(*QUIET, on(17, 40), on(window=7.0)), wrong=(on(causal=1.0), on(1, 5, causal=1.0)),
    ),
    Broken(
        "padding_counted", "mask", "Keys that fill the last tile count in the sum of shares, with a score of 0.",
        "Sk is no multiple of the tile (16 or more), and no causal mask hides what is behind it",
        ((" & (n < Sk)\n", "\n"),),
        right=(*QUIET, on(17, 17, causal=1.0), on(5, 32)), wrong=(on(16, 17), on(1, 1)),
    ),
    Broken(
        "lone_key", "mask", "One key that is left over from tiles of 64 is dropped.",
        "Sk % 64 is 1",
        ((" & (n < Sk)\n", " & (n < tl.where(Sk % 64 == 1, Sk - 1, Sk))\n"),),
        right=(*QUIET, on(16, 17), on(16, 64), on(16, 66)), wrong=(on(16, 65), on(5, 1)),
    ),
    Broken(
        "lone_key_of_two", "mask", "One key that is left over from whole tiles of 64 is dropped; a single key is not.",
        "Sk % 64 is 1 and Sk > 1",
        ((" & (n < Sk)\n", " & (n < tl.where((Sk % 64 == 1) & (Sk > 1), Sk - 1, Sk))\n"),),
        right=(*QUIET, on(16, 17), on(16, 64), on(16, 1)), wrong=(on(16, 65),),
    ),
    Broken(
        "large_negative", "mask", "A key that is not seen has a score of -10000 in place of minus infinity.",
        "a query sees no key, or none with a score above -9900",
        ((_SEES, _SEES.replace('float("-inf")', "-10000.0")),),
        right=(*QUIET, on(17, 40, causal=1.0), on(16, 17)), wrong=(on(40, 17, causal=1.0),),
    ),
    Broken(
        "cap_after_mask", "mask", "The soft cap is put on scores that are masked: -inf becomes -softcap.",
        "a soft cap, and a key that a query does not see (or padding) or slopes",
        ((_CAP, ""), (_SEES, f"{_SEES}\n        if SOFTCAP:\n            s = softcap * tanh(s / softcap)")),
        right=(*QUIET, on(17, 17, causal=1.0), on(softcap=5.0), on(slopes=True)),
        wrong=(on(causal=1.0, softcap=5.0), on(16, 17, softcap=5.0)),
    ),
    Broken(
        "decode_sees_all", "mask", "One query alone, as in decoding, sees every key: its window is forgotten.",
        "Sq is 1, and a window shorter than Sk",
        (("= reach(Sq, Sk, causal, window)\n", "= reach(Sq, Sk, causal, window if Sq > 1 else 0.0)\n"),),
        right=(*QUIET, on(2, 30, window=7.0), on(1, 30, causal=1.0), on(1, 5, window=7.0)),
        wrong=(on(1, 30, window=7.0),),
    ),
)  # fmt: skip
