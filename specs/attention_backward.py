"""Attention, backward: the gradients of Q, K and V, from that of O and what the forward pass left.

Shapes and masks as in `attention`: Q, dQ (B, Sq, H, D), K, dK (B, Sk, G, D), V, dV (B, Sk, G, Dv), O, dO (B, Sq, H,
Dv), and each row's log-sum-exp (B, H, Sq) in float32. O and the log-sum-exp are inputs, taken as they are given:

    P = exp(scale Q K^T - lse), masked        D = rowsum(dO * O)        dS = scale P * (dO V^T - D)
    dV = P^T dO        dQ = dS K        dK = dS^T Q, of all heads of a group

Scores, P, D and dS in fp32; P and dS may be rounded to the input format for the products that follow, and the scale of
dS may come after its product. A query that sees no key, and a key that no query sees, has a gradient of 0. Neither a
soft cap nor ALiBi slopes. Sizes from 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from rooftest.specs import attention
from rooftest.specs.attention import visible
from torch import Tensor

from rooftest.engines import Contract
from rooftest.errorbar import Value, bounded, const, lift, new_term, noisy
from rooftest.formats import BF16, F64, FP16, FP32, Format, finite, pick
from rooftest.laws import changed, not_scaled
from rooftest.primitives import exp_shift, matmul, may_round, sum_, where
from rooftest.spec import Law, Spec, tensor

SCORES_AT_A_TIME = 2**26  # of the forward pass in float64: 0.5 GB


def _by_head(x: Tensor, groups: int) -> Tensor:
    """(B, S, H, C) as (B, G, R, S, C): heads of a group beside each other."""
    B, S, H, C = x.shape
    return x.reshape(B, S, groups, H // groups if groups else 0, C).permute(0, 2, 3, 1, 4)


def _by_position(x: Value) -> Value:
    """(B, G, R, S, C) as (B, S, H, C); of errors see `_together`."""
    B, G, R, S, C = x.v.shape
    return x.map(
        lambda t: t.permute(0, 3, 1, 2, 4).reshape(B, S, G * R, C),
        lambda f: (f[0], f[3], f[1] and f[2], f[4]),
    )


def _together(x: Value) -> Value:
    """(B, G, R, Sq, C) as (B, G, R Sq, C).

    An error that all heads or all queries share is then one that all of both do, which only widens.
    """
    B, G, R, S, C = x.v.shape
    return x.map(lambda t: t.reshape(B, G, R * S, C), lambda f: (f[0], f[1], f[2] and f[3], f[4]))


def _by_row(x: Value) -> Value:
    """A product whose errors are those of its first factor: the columns of a row share them, along their sign.

    An error of dS_ij is in all D numbers of dQ_i and of dK_j. Where few keys (or queries) are added, D errors are then
    as few, and a sum along v has up to D times the variance of independent ones: this is the most that it can have.
    """
    if bounded() or noisy() or x.exact:
        return x
    fresh, said = (*(True for _ in x.v.shape[:-1]), False), finite(x.s2)
    together = torch.copysign(pick(said, x.s2, 0.0).sqrt(), x.v)
    return Value(x.v, x.b, pick(said, 0.0, math.inf), {**x.shared, new_term(): (together, fresh)})


def forward(values: Mapping[str, Tensor], params: Mapping[str, float]) -> dict[str, Tensor]:
    """O and the log-sum-exp that the backward pass is given, in float64, some queries at a time."""
    groups = values["k"].shape[2]
    q, k, v = (_by_head(values[name].to(F64), groups) for name in ("q", "k", "v"))
    (B, G, R, Sq, D), Sk = q.shape, k.shape[3]
    seen = visible(Sq, Sk, params.get("causal", 0.0), params.get("window", 0.0)).to(q.device)
    o, lse = q.new_zeros((B, G, R, Sq, v.shape[-1])), q.new_full((B, G, R, Sq), -math.inf)
    step = max(1, SCORES_AT_A_TIME // max(1, B * G * R * Sk))
    for start in range(0, Sq if Sk else 0, step):
        rows = slice(start, start + step)
        scores = q[..., rows, :] @ k.mT * (params.get("scale", 0.0) or D**-0.5)
        scores = scores.masked_fill(~seen[rows], -math.inf)
        lse[..., rows] = scores.logsumexp(-1)
        p = torch.exp(scores - lse[..., rows, None].clamp(min=torch.finfo(F64).min))
        o[..., rows, :] = p @ v
    return {"o": _by_position(lift(o)).v, "lse": lse.reshape(B, G * R, Sq)}


def _free(lost: Tensor, x: Value) -> Value:
    """x, but free (see `Value`) where it is lost: where a kernel's format may overflow."""
    endless = torch.full_like(x.v, math.inf)
    return where(lost, Value(torch.zeros_like(x.v), endless, endless), x)


def _probability(exponent: Value, kept: Format) -> Value:
    """exp(exponent), free where `kept` may not hold it.

    An exponent that may be off by 64, as in fp32 scores of 2^30 are, says nothing but where the exponential is surely
    below all numbers of fp32.
    """
    reach = exponent.v + exponent.b
    lost = torch.where(exponent.b > 64, reach > math.log(2.0**-150), reach > math.log(kept.max))
    return _free(lost, exp_shift(exponent, torch.zeros_like(exponent.v[..., :1])))


def reference(given: Mapping[str, Value | Tensor], params: Mapping[str, float], contract: Contract) -> dict[str, Value]:
    """The three gradients before their last rounding, on error-carrying values.

    A kernel may take the exponential to base 2, with log2(e) multiplied into the scale and into the log-sum-exp.
    """
    names = ("q", "k", "v", "o", "do", "lse")
    q, k, v, o, do, lse = (x.v if isinstance(x, Value) else x for x in (given[name] for name in names))
    (B, Sq, H, D), (_, Sk, G, _) = q.shape, k.shape
    kept = {torch.bfloat16: BF16, torch.float16: FP16}.get(q.dtype)
    heads, keys, values, outputs, gradients = (lift(_by_head(x, G)) for x in (q, k, v, o, do))
    scale = const(params.get("scale", 0.0) or D**-0.5, "scale", q.device)
    seen = visible(Sq, Sk, params.get("causal", 0.0), params.get("window", 0.0)).to(q.device)
    # A row that sees no key has a log-sum-exp of -inf, and P = 0.
    sums = lift(torch.where(lse == -math.inf, 0.0, lse.to(F64)).reshape(B, G, H // G if G else 0, Sq, 1))
    sums = sums * const(math.log2(math.e), device=q.device) * const(math.log(2), device=q.device)

    p = _probability(matmul(heads, keys.mT, contract) * scale - sums, kept or FP32)
    p = where(seen, p, 0.0)
    spread = matmul(gradients, values.mT, contract) - sum_(gradients * outputs)
    ds = where(seen, p * spread, 0.0)
    held = ds * scale
    if kept:
        held, p = may_round(held, kept), may_round(p, kept)
    held = _free(~(ds.v.abs() + ds.b <= (kept or FP32).max), held)
    dq, dk = _by_row(matmul(held, keys, contract)), _by_row(matmul(_together(held).mT, _together(heads), contract))
    dv = _by_row(matmul(_together(p).mT, _together(gradients), contract))
    # One head of K and V each: (B, G, Sk, C) as (B, Sk, G, C).
    dk, dv = (x.map(lambda t: t.transpose(1, 2), lambda f: (f[0], f[2], f[1], f[3])) for x in (dk, dv))
    return {"dq": _by_position(dq), "dk": dk, "dv": dv}


def _gradient(given: dict[str, Any], factor: float) -> dict[str, Any]:
    return {name: x * factor if name == "do" else x for name, x in given.items()}


def _doubled(before: Tensor, after: Tensor) -> Tensor:
    """Where it is not twice what it was; of float16 nothing is said, as dS may lie below its normal numbers."""
    return torch.zeros_like(before, dtype=torch.bool) if before.dtype == torch.float16 else not_scaled(before, after, 2)


def _last_key(given: dict[str, Any]) -> dict[str, Any]:
    """The last key and its value, by others."""
    for name in ("k", "v"):
        given[name][:, -1] = -given[name][:, -1] - 1
    return given


def _before_last(before: Tensor, after: Tensor) -> Tensor:
    """Where any position but the last sees the difference."""
    wrong = changed(before, after)
    wrong[:, -1:] = False
    return wrong


LAWS = (
    Law("zero", "dO of 0 gives gradients of 0", lambda given: _gradient(given, 0.0), lambda _, after: after != 0),
    Law(
        "negate",
        "dO times -1 gives all gradients times -1: rounding to nearest and truncation are symmetric",
        lambda given: _gradient(given, -1.0),
        lambda before, after: changed(-before, after),
    ),
    Law(
        "double",
        "dO times 2 gives all gradients times 2: a power of two moves the exponent only",
        lambda given: _gradient(given, 2.0),
        _doubled,
    ),
    Law(
        "last-key",
        "under a causal mask, with O and lse as they were, the last key and value reach the last query's gradient and "
        "their own only, bit for bit",
        _last_key,
        _before_last,
        unless=("causal", 0.0),
    ),
)


def flop(s: SimpleNamespace) -> int:
    """Five products where the forward pass has two: Q K^T, dS K and dS^T Q of D, dO V^T and P^T dO of Dv."""
    return attention.flop(s) // (s.D + s.Dv) * (3 * s.D + 2 * s.Dv)


SPEC = Spec(
    op="attention_backward",
    version=1,
    axes=attention.SPEC.axes,
    inputs={
        "q": tensor("B Sq G*R D"),
        "k": tensor("B Sk G D"),
        "v": tensor("B Sk G Dv"),
        "o": tensor("B Sq G*R Dv"),
        "lse": tensor("B G*R Sq", precision="float32"),
        "do": tensor("B Sq G*R Dv"),
    },
    # A scale of 0 stands for 1 / sqrt(D), a window of 0 for none.
    params={"causal": (0.0, 1.0), "window": (0.0, 1.0, 7.0, 64.0), "scale": (0.0, 0.125, 0.3, 1.0)},
    outputs={"dq": tensor("B Sq G*R D"), "dk": tensor("B Sk G D"), "dv": tensor("B Sk G Dv")},
    derived=("o", "lse"),
    derive=forward,
    layouts=("nnnn",),
    laid_out=("q", "k", "v", "do"),
    contraction="D",
    independent="B",
    tokens=("B", "Sq"),
    precisions=("float32", "float16", "bfloat16"),
    # Three factors in a row leave fp32's range where two of them are huge; of infinities as in `attention`.
    unfit=("specials", "huge", "minute"),
    reference=reference,
    flop=flop,
    workloads=tuple(replace(load, layout="nnnn") for load in attention.WORKLOADS),
    laws=LAWS,
    peers={},
)
