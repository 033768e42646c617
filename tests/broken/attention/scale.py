"""Factors and units: of scores, of what is so far, of the log-sum-exp."""

from broken.attention.call import QUIET, Broken, on

_CAP = "    if SOFTCAP:\n        s = softcap * tanh(s / softcap)\n"
_SLOPES = "    if SLOPES:\n        s -= slope * tl.abs(m + (Sk - Sq) - n).to(tl.float32)\n"

FAULTS = (
    Broken(
        "scale_off", "scale", "The scale is 0.1 % too large.",
        "scores that are not all alike, or lse is asked for",
        (("    s = qk * scale\n", "    s = qk * scale * 1.001\n"),), right=(on(spread=0.0),), wrong=(on(), on(5, 1)),
    ),
    Broken(
        "scale_unread", "scale", "The scale is D ** -0.5, whatever is asked for.",
        "another scale",
        (("scale or D**-0.5", "D**-0.5"),), (22,),
        right=(*QUIET, on(scale=0.25)), wrong=(on(scale=0.3), on(scale=1.0)),
    ),
    Broken(
        "scale_of_values", "scale", "The scale is that of Dv, the columns of V.",
        "D and Dv differ, and the scale is left to the kernel",
        (("scale or D**-0.5", "scale or Dv**-0.5"),), right=(*QUIET, on(D=24, scale=0.3)), wrong=(on(D=24), on(Dv=8)),
    ),
    Broken(
        "cap_unscaled", "scale", "The soft cap is put on products before they are scaled.",
        "a soft cap, and a scale other than 1",
        (("    s = qk * scale\n" + _CAP, "    s = softcap * tanh(qk / softcap) * scale if SOFTCAP else qk * scale\n"),),
        right=(*QUIET, on(scale=0.3), on(softcap=5.0, scale=1.0)), wrong=(on(softcap=5.0), on(softcap=5.0, scale=0.3)),
    ),
    Broken(
        "cap_after_slopes", "scale", "The soft cap is put on scores less their slope.",
        "a soft cap and slopes",
        ((_CAP + _SLOPES, _SLOPES + _CAP),),
        right=(*QUIET, on(softcap=5.0), on(slopes=True)), wrong=(on(softcap=5.0, slopes=True),),
    ),
    Broken(
        "sum_not_scaled", "scale", "The sum of shares is not made less where the maximum rises.",
        "a later tile of keys has the larger maximum",
        (("total = total * shrink + tl.sum(p, 1)", "total += tl.sum(p, 1)"),),
        right=(*QUIET[:1], on(33, 16), on(33, 40, spread=0.0)), wrong=(on(16, 40), on(33, 33, causal=1.0)),
    ),
    Broken(
        "output_not_scaled", "scale", "The weighted sum of V is not made less where the maximum rises.",
        "a later tile of keys has the larger maximum",
        (("v, acc * shrink[:, None], input", "v, acc, input"),),
        right=(*QUIET[:1], on(33, 16), on(33, 40, spread=0.0)), wrong=(on(16, 40), on(33, 33, causal=1.0)),
    ),
    Broken(
        "lse_of_shares", "scale", "The log-sum-exp is that of what is left when the maximum is taken out.",
        "lse is asked for, and a maximum is not 0",
        (("maximum + tl.log(total)", "maximum * 0 + tl.log(total)"),), right=(on(spread=0.0),), wrong=(on(), on(5, 1)),
    ),
    Broken(
        "lse_in_bits", "scale", "The log-sum-exp has the base 2.",
        "lse is asked for, and neither 0 nor infinite",
        (("(maximum + tl.log2(total)) * LN_2", "maximum + tl.log2(total)"),), base="flash",
        right=(on(5, 0),), wrong=(on(), on(5, 1)),
    ),
    Broken(
        "slopes_signed", "scale", "The slope counts the distance with its sign: it rises with what is to come.",
        "slopes, and a key after the query that it sees (not causal)",
        (("tl.abs(m + (Sk - Sq) - n)", "(m + (Sk - Sq) - n)"),),
        right=(*QUIET, on(17, 40, slopes=True, causal=1.0), on(1, 40, slopes=True)), wrong=(on(slopes=True),),
    ),
    Broken(
        "slopes_from_the_last", "scale", "The slope counts from the last key: the same shares under a causal mask.",
        "slopes, and lse is asked for or the query is no last one and not causal",
        (("tl.abs(m + (Sk - Sq) - n)", "(Sk - 1 - n)"),),
        right=(*QUIET, on(1, 40, slopes=True)), wrong=(on(slopes=True), on(slopes=True, causal=1.0)),
    ),
    Broken(
        "slopes_from_the_top", "scale", "The slope counts from the query's row, not its position.",
        "slopes, and Sq and Sk differ",
        (("tl.abs(m + (Sk - Sq) - n)", "tl.abs(m - n)"),),
        right=(*QUIET, on(17, 17, slopes=True)), wrong=(on(17, 18, slopes=True), on(1, 30, slopes=True, causal=1.0)),
    ),
)  # fmt: skip
