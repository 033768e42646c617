"""Values that made-up data does not have: scores that are large, or all far below 0."""

from broken.attention.call import QUIET, Broken, on

_MAX = "larger = tl.maximum(maximum, tl.max(s, 1))"
_START = 'maximum = tl.full((BM,), float("-inf"), tl.float32)'

FAULTS = (
    Broken(
        "no_maximum", "data", "The exponential is taken of the score itself, which is small in tests but not in use.",
        "a score beyond 88, or none of a row above -87 (in float16 beyond 11, and above -9)",
        ((_MAX, 'larger = tl.where(tl.maximum(maximum, tl.max(s, 1)) == float("-inf"), float("-inf"), 0.0)'),), (13,),
        right=(*QUIET, on(17, 40, causal=1.0), on(40, 17, causal=1.0)), wrong=(on(scale=1.0, spread=8.0),),
    ),
    Broken(
        "maximum_from_zero", "data", "The running maximum starts at 0: shares of scores far below that vanish.",
        "a query sees no key, or none with a score above -87 (float16: -9)",
        ((_START, _START.replace('float("-inf")', "0.0")),),
        right=(*QUIET, on(17, 40, causal=1.0)), wrong=(on(16, 1, scale=-1.0, spread=8.0), on(40, 17, causal=1.0)),
    ),
    Broken(
        "scores_held", "data", "Scores are held below 64, so that no exponential overflows.",
        "a score beyond 64",
        (("    s = qk * scale\n", "    s = tl.minimum(qk * scale, 64.0)\n"),),
        right=(*QUIET, on(softcap=30.0, scale=0.3)), wrong=(on(scale=1.0, spread=8.0),),
    ),
    Broken(
        "small_shares_kept", "data", "No share is below e^-8 of the largest: the exponential's argument is clamped.",
        "a score 8 and more below its row's largest",
        (("p = tl.exp(s - finite(larger)[:, None])",
          'p = tl.where(s == float("-inf"), 0.0, tl.exp(tl.maximum(s - finite(larger)[:, None], -8.0)))'),),
        right=(*QUIET, on(40, 17, causal=1.0)), wrong=(on(16, 64, scale=1.0, spread=2.0),),
    ),
)  # fmt: skip
