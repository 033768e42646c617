"""Fewer bits on the way than the contract says."""

import torch

from broken.attention.call import QUIET, Broken, on

_QK, _PV = 'tl.dot(q, k.T, input_precision="ieee")', 'acc * shrink[:, None], input_precision="ieee")'
_HALVES = (torch.float16, torch.bfloat16)
_MASK = "        s = tl.where(visible("

FAULTS = (
    Broken(
        "p_in_four_bits", "precision", "Shares are rounded to four significant bits, as in e4m3, before they weigh V.",
        "a share that has more",
        (("acc = tl.dot(p.to(v.dtype)", "wide = p * 1048577.0\n        acc = tl.dot((wide - (wide - p)).to(v.dtype)"),),
        right=(on(spread=0.0), on(5, 1)), wrong=(on(), on(dtypes=_HALVES, Sk=3)),
    ),
    Broken(
        "p_in_float16", "precision", "Shares are rounded to float16, whatever V is.",
        "float32 and a share of more than 11 bits, or bfloat16 and a share below 2^-14",
        (("p.to(v.dtype)", "p.to(tl.float16).to(v.dtype)"),),
        right=(on(spread=0.0), on(dtypes=(torch.float16,))), wrong=(on(),),
    ),
    Broken(
        "scores_in_tf32", "precision", "Q K^T of float32 is multiplied in tf32, as `tl.dot` does by itself.",
        "float32 elements with more than 10 mantissa bits",
        ((_QK, "tl.dot(q, k.T)"),), right=(on(spread=0.0), on(dtypes=_HALVES)), wrong=(on(),),
    ),
    Broken(
        "values_in_tf32", "precision", "P V of float32 is multiplied in tf32.",
        "float32 elements with more than 10 mantissa bits",
        ((_PV, "acc * shrink[:, None])"),), right=(on(dtypes=_HALVES),), wrong=(on(),),
    ),
    Broken(
        "scores_in_16_bits", "precision", "Scores pass through the dtype of Q, as if Q K^T were a tensor in memory.",
        "16-bit tensors and a score of more bits",
        ((_MASK, f"        s = s.to(q.dtype).to(tl.float32)\n{_MASK}"),),
        right=(*QUIET, on(dtypes=_HALVES, spread=0.0)), wrong=(on(dtypes=_HALVES, spread=4.0),),
    ),
    Broken(
        "output_in_16_bits", "precision", "The weighted sum of V passes through the output's dtype before every tile.",
        "16-bit tensors and two tiles of keys and more",
        ((_PV, '(acc * shrink[:, None]).to(v.dtype).to(tl.float32), input_precision="ieee")'),),
        right=(*QUIET, on(dtypes=_HALVES), on(16, 32, dtypes=_HALVES, spread=0.0, check="exact", config="64x32")),
        wrong=(on(16, 32, dtypes=_HALVES, spread=0.0, check="exact", config="16x16"),),
    ),
)  # fmt: skip
