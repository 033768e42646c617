"""Attention, forward: O = softmax(scale Q K^T + bias, masked) V, and on request the log-sum-exp of each row.

Q (B, Sq, H, D), K (B, Sk, G, D), V (B, Sk, G, Dv), O (B, Sq, H, Dv); H = G R query heads, of which R in a row share a
head of K and V. Query i stands at p = i + Sk - Sq: the last query sees the last key (bottom-right aligned). Scores and
softmax in fp32, P may be rounded to the input format for its product with V, O is rounded once; an online softmax may
move its maximum once for every 16 keys. A row that sees no key is 0, its log-sum-exp -inf. Sizes from 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rooftest.engines import Contract
from rooftest.errorbar import Fresh, U, Value, bounded, const, lift, noisy
from rooftest.formats import BF16, FP16, Format
from rooftest.laws import changed, not_scaled
from rooftest.primitives import exp_shift, log, matmul, may_round, rescaled, rowmax, sum_, tanh, total, where
from rooftest.spec import Axis, Law, Spec, Workload, tensor

TILE = 16  # the fewest keys that a kernel takes at a time: an online softmax moves its maximum once a tile at most


def visible(Sq: int, Sk: int, causal: float, window: float) -> Tensor:
    """Which keys each query sees, (Sq, Sk): none behind it where causal, none `window` or more away (0: any)."""
    away = torch.arange(Sq)[:, None] + Sk - Sq - torch.arange(Sk)
    seen = torch.ones_like(away, dtype=torch.bool)
    if causal:
        seen &= away >= 0
    if window:
        seen &= away.abs() < window
    return seen


def reference(given: Mapping[str, Value | Tensor], params: Mapping[str, float], contract: Contract) -> dict[str, Value]:
    """O and the log-sum-exp before their last rounding, on error-carrying values."""
    q, k, v = (x.v if isinstance(x, Value) else x for x in (given["q"], given["k"], given["v"]))
    seen = visible(q.shape[1], k.shape[1], params.get("causal", 0.0), params.get("window", 0.0))
    return attend(q, k, v, seen.to(q.device), params, contract, given.get("slopes"))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor,
    params: Mapping[str, float],
    contract: Contract,
    slopes: Value | Tensor | None = None,
) -> dict[str, Value]:
    """O and the log-sum-exp of q, k, v, slopes in the shapes of SPEC; `seen` is (Sq, Sk) or (B, 1, 1, Sq, Sk).

    Of params it reads the scale and the soft cap. A kernel may subtract any maximum that it has seen so far, and put it
    right later, fold the scale into the exponent, add P up before or after it is rounded, and divide by the sum or
    multiply by its reciprocal.
    """
    (B, Sq, H, D), (_, Sk, G, _) = q.shape, k.shape
    scale, cap = params.get("scale", 0.0) or D**-0.5, params.get("softcap", 0.0)
    # (B, G, R, Sq, D) and (B, G, 1, Sk, D): heads of a group beside each other.
    heads = q.reshape(B, Sq, G, H // G if G else 0, D).permute(0, 2, 3, 1, 4)
    keys, values = (x.permute(0, 2, 1, 3)[:, :, None] for x in (k, v))
    scores = matmul(lift(heads), lift(keys).mT, contract) * const(scale, "scale", q.device)
    scores = _scaled_first(scores, heads, keys, scale)
    if cap:
        scores = tanh(scores * const(1 / cap, device=q.device)) * const(cap, device=q.device)
    if slopes is not None:
        away = (torch.arange(Sq)[:, None] + Sk - Sq - torch.arange(Sk)).abs().to(q.device)
        each = lift(slopes).v.reshape(G, H // G if G else 0, 1, 1)
        scores = total(scores, lift(each) * lift(-away.double()))
    scores = where(seen, scores, -math.inf)
    empty = ~seen.any(-1, keepdim=True)
    if not Sk:
        zero = lift(q.new_zeros((B, Sq, H, v.shape[-1])))
        return {"o": zero, "lse": lift(torch.full((B, H, Sq), -math.inf, device=q.device))}
    shift = torch.where(empty, 0.0, rowmax(scores))
    p = rescaled(exp_shift(scores, shift), -(-Sk // TILE) - 1)
    l = where(empty, 1.0, sum_(p))

    def running(tile: int) -> Tensor:
        """exp(m - the last m) of an online softmax that takes `tile` keys at a time."""
        padded = torch.nn.functional.pad(scores.v, (0, -Sk % tile), value=-math.inf)
        largest = padded.unflatten(-1, (-1, tile)).amax(-1).cummax(-1).values
        return (largest - shift).exp().repeat_interleave(tile, -1)[..., :Sk]

    kept = _format_of(q.dtype)
    o = matmul(may_round(p, kept, running) if kept else p, lift(values), contract) * (1.0 / l)
    lse = where(empty, -math.inf, total(log(l), lift(shift.expand(l.v.shape))))
    return {"o": _heads_last(o, H), "lse": lse.map(lambda x: x.reshape(B, H, Sq), lambda f: (*_merged(f), f[-2]))}


def _scaled_first(scores: Value, q: Tensor, k: Tensor, scale: float) -> Value:
    """Scores, where a kernel may scale Q, or Q and K by the root, in fp32 before the product, as torch's own does.

    Each factor of each product then has the error of one rounding, and both of one of the root: 4 u of every product.
    """
    q, k = q.double(), k.double().mT
    if noisy():
        return scores
    bound = 4 * U * abs(scale) * (q.abs() @ k.abs())
    if bounded():
        return Value(scores.v, scores.b + bound)
    spread = (2 * U**2 / 3) * scale**2 * (q**2 @ k**2) + (2 * U * scores.v) ** 2 / 3
    return Value(scores.v, scores.b + bound, scores.s2 + spread, scores.shared)


def _format_of(dtype: torch.dtype) -> Format | None:
    return {torch.bfloat16: BF16, torch.float16: FP16}.get(dtype)


def _merged(fresh: Fresh) -> Fresh:
    """Batch and heads of (B, G, R, ...): an error that some heads share is one that all do, which only widens."""
    return (fresh[0], fresh[1] and fresh[2])


def _heads_last(o: Value, heads: int) -> Value:
    """(B, G, R, Sq, Dv) as (B, Sq, H, Dv)."""
    B, _, _, Sq, Dv = o.v.shape
    return o.map(
        lambda x: x.permute(0, 3, 1, 2, 4).reshape(B, Sq, heads, Dv),
        lambda f: (f[0], f[3], f[1] and f[2], f[4]),
    )


def _values(given: dict[str, Any], factor: float) -> dict[str, Any]:
    return {name: x * factor if name in ("v", "v_pages") else x for name, x in given.items()}


def _scaled(before: Any, after: Any, factor: float) -> Any:
    """Where O is not `factor` times what it was, or the log-sum-exp (which has no axis Dv) not what it was."""
    return not_scaled(before, after, factor) if before.dim() == 4 else changed(before, after)


def _last_key(given: dict[str, Any]) -> dict[str, Any]:
    """The last key and its value, by others."""
    for name in ("k", "v"):
        given[name][:, -1] = -given[name][:, -1] - 1
    return given


def _before_last(before: Any, after: Any) -> Any:
    """Where any query but the last sees the difference."""
    axis = 1 if before.dim() == 4 else 2
    wrong = changed(before, after)
    wrong.select(axis, wrong.shape[axis] - 1).zero_()
    return wrong


SCALING = (
    Law(
        "negate",
        "V times -1 gives O times -1 and the same log-sum-exp: rounding to nearest and truncation are symmetric",
        lambda given: _values(given, -1.0),
        lambda before, after: _scaled(before, after, -1.0),
    ),
    Law(
        "double",
        "V times 2 gives O times 2: a power of two moves the exponent only",
        lambda given: _values(given, 2.0),
        lambda before, after: _scaled(before, after, 2.0),
    ),
)
LAWS = (
    *SCALING,
    Law(
        "last-key",
        "under a causal mask the last key and value reach the last query only, bit for bit",
        _last_key,
        _before_last,
        unless=("causal", 0.0),
    ),
)


def flop(s: SimpleNamespace) -> int:
    """Two products over the keys that are seen: 2 B H Sq S (D + Dv), S keys a query on average.

    Under a causal mask S = (max(0, Sk - Sq) + Sk) / 2, as FlashAttention counts; in a window, those in it.
    """
    if s.window:
        pairs = int(visible(s.Sq, s.Sk, s.causal, s.window).sum())
    else:
        pairs = s.Sq * (max(0, s.Sk - s.Sq) + s.Sk) // 2 if s.causal else s.Sq * s.Sk
    return 2 * s.B * s.G * s.R * pairs * (s.D + s.Dv)


def _workload(name: str, B: int, G: int, R: int, S: int, D: int, smoke: tuple[bool, bool]) -> tuple[Workload, Workload]:
    sizes = {"B": B, "Sq": S, "Sk": S, "G": G, "R": R, "D": D, "Dv": D}
    return (
        Workload(f"{name}-full", sizes, "nnn", smoke=smoke[0]),
        Workload(f"{name}-causal", sizes, "nnn", smoke=smoke[1], params={"causal": 1.0}),
    )


# FlashAttention's own series (32 heads of 128, 16384 tokens), Llama-3.1-8B's heads (32 of 128, 8 of keys and values),
# and 8 heads at growing lengths, at which what an attention matrix costs shows.
WORKLOADS = (
    *_workload("b4-h32-s4096-d128", 4, 32, 1, 4096, 128, (True, True)),
    *_workload("b1-h32-s16384-d128", 1, 32, 1, 16384, 128, (False, False)),
    *_workload("llama-3.1-8b-b2-s8192", 2, 8, 4, 8192, 128, (False, True)),
    *_workload("b4-h32-s4096-d64", 4, 32, 1, 4096, 64, (False, True)),
    *(
        load
        for n in (1, 2, 4, 8, 16, 32)
        for load in _workload(f"b1-h8-s{n}k-d128", 1, 8, 1, 1024 * n, 128, (False, False))
    ),
)

SPEC = Spec(
    op="attention",
    version=1,
    axes={
        "B": Axis(0, 65535, few=2),
        "Sq": Axis(0, 2**20),
        "Sk": Axis(0, 2**20),
        "G": Axis(1, 1024, few=3),
        "R": Axis(1, 128, few=8),
        "D": Axis(1, 256),
        "Dv": Axis(1, 256),
    },
    inputs={
        "q": tensor("B Sq G*R D"),
        "k": tensor("B Sk G D"),
        "v": tensor("B Sk G Dv"),
        # ALiBi: the score falls by the head's slope for each position that a key is away.
        "slopes": tensor("G*R", optional=True, precision="float32"),
    },
    # A scale of 0 stands for 1 / sqrt(D), a window and a soft cap of 0 for none.
    params={
        "causal": (0.0, 1.0),
        "window": (0.0, 1.0, 7.0, 64.0),
        "scale": (0.0, 0.125, 0.3, 1.0),
        "softcap": (0.0, 30.0, 5.0),
    },
    outputs={"o": tensor("B Sq G*R Dv"), "lse": tensor("B G*R Sq", optional=True, precision="float32")},
    layouts=("nnn",),
    laid_out=("q", "k", "v"),
    contraction="D",
    summed=("Sk",),
    independent="B",
    tokens=("B", "Sq"),
    precisions=("float32", "float16", "bfloat16"),
    # What infinity times a P that underflows gives depends on when a kernel rounds it.
    unfit=("specials",),
    reference=reference,
    flop=flop,
    workloads=WORKLOADS,
    laws=LAWS,
    peers={
        "torch.sdpa-cpu": {
            "call": "rooftest_kernels.attention.torch_sdpa:attention",
            "devices": ["cpu"],
            "strides": ["dense", "padded", "ragged", "stepped", "offset", "broadcast", "transposed"],
            "claims": ["deterministic"],
            "peer": True,
        },
    },
)
