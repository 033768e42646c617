"""The primitives, and references of the kind that later ops are written in: attention, RMSNorm, LayerNorm, a loss."""

import math

import pytest
import torch

from rooftest.engines import Contract, accumulator
from rooftest.errorbar import Value, const
from rooftest.formats import BF16, FP32
from rooftest.judge import conform
from rooftest.primitives import (
    concat,
    either,
    exp_shift,
    gather,
    log,
    matmul,
    may_round,
    mean,
    round_to,
    rowmax,
    rsqrt,
    square,
    sum_,
    total,
    where,
)

torch.set_num_threads(1)


def data(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def bf16(x):
    return x.bfloat16().float()


def alarms(outputs, reference, formats):
    verdicts = conform(outputs, reference, formats)
    return {f"{name}:{a}" for name, v in verdicts.items() for a in v.alarms}


def attention(q, k, v, scale, mask):
    """O = softmax(scale Q K^T) V and the log-sum-exp; P may be held in bf16."""
    s = matmul(Value(q), Value(k).mT) * const(scale, "scale")
    s = where(mask, s, -math.inf)
    m = rowmax(s)
    p = exp_shift(s, m)
    l = sum_(p)
    return {"o": matmul(may_round(p, BF16), Value(v)) / l, "lse": log(l) + Value(m)}


def attention_kernel(q, k, v, scale, mask, keep=bf16):
    s = (q @ k.mT * scale).masked_fill(~mask, -math.inf)
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - m)
    l = p.sum(-1, keepdim=True)
    return {"o": bf16(keep(p) @ v / l), "lse": m + torch.log(l)}


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_attention(shape):
    """Batched and not; a scale 0.1 % off is seen by its probe, rounded scores and a lost key by the rest."""
    formats = {"o": BF16, "lse": FP32}
    found = set()
    for seed in range(8):
        q, k, v = (data(3 * seed + i, *shape, 33, 32) for i in range(3))
        mask = torch.ones(33, 33, dtype=torch.bool).tril()
        args = (q, k, v, 32**-0.5, mask)
        for keep in (bf16, lambda p: p):
            assert not alarms(attention_kernel(*args, keep), lambda a=args: attention(*a), formats)
        found |= alarms(attention_kernel(q, k, v, 32**-0.5 * 1.001, mask), lambda a=args: attention(*a), formats)
        lost = mask.clone()
        lost[-1, -2] = False
        assert alarms(attention_kernel(q, k, v, 32**-0.5, lost), lambda a=args: attention(*a), formats)
    assert {"lse:probe:scale"} <= found


def rmsnorm(x, w, eps):
    x = Value(x)
    return {"y": x * rsqrt(mean(square(x), name="1/N") + const(eps, "eps")) * Value(w)}


def rmsnorm_kernel(x, w, eps, n=None):
    n = n or x.shape[-1]
    return {"y": bf16(x * torch.rsqrt(x.square().sum(-1, keepdim=True) / n + eps) * w)}


def test_rmsnorm():
    """The mean over N - 1 and a second rounding are seen, the former along its own constant too."""
    for seed in range(5):
        x, w = data(seed, 64, 512), 1 + data(seed + 50, 512) / 8
        w = bf16(w)
        good = rmsnorm_kernel(x, w, 1e-6)
        assert not alarms(good, lambda x=x, w=w: rmsnorm(x, w, 1e-6), BF16)
    bad = alarms(rmsnorm_kernel(x, w, 1e-6, 511), lambda: rmsnorm(x, w, 1e-6), BF16)
    assert {"y:hard", "y:probe:1/N"} <= bad
    twice = {"y": bf16(bf16(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)) * w)}
    assert alarms(twice, lambda: rmsnorm(x, w, 1e-6), BF16)


def layernorm(x, one_pass):
    x = Value(x)
    mu = mean(x)
    centred = x - mu
    var = mean(square(centred))
    var = either(var, mean(square(x)) - square(mu)) if one_pass else var
    return {"y": centred * rsqrt(var + const(1e-5))}


def test_layernorm_in_two_passes_or_one():
    x = 1 + data(1, 32, 300) / 4
    x = bf16(x)
    mu = x.mean(-1, keepdim=True)
    two = {"y": bf16((x - mu) * torch.rsqrt((x - mu).square().mean(-1, keepdim=True) + 1e-5))}
    one = {"y": bf16((x - mu) * torch.rsqrt(x.square().mean(-1, keepdim=True) - mu * mu + 1e-5))}
    assert not alarms(two, lambda: layernorm(x, one_pass=False), BF16)
    assert not alarms(one, lambda: layernorm(x, one_pass=True), BF16)
    shifted = bf16(x + 100)
    mu = shifted.mean(-1, keepdim=True)
    one = {"y": bf16((shifted - mu) * torch.rsqrt(shifted.square().mean(-1, keepdim=True) - mu * mu + 1e-5))}
    assert alarms(one, lambda: layernorm(shifted, one_pass=False), BF16)


def test_cross_entropy():
    x, label = data(4, 16, 500), torch.arange(16)[:, None]

    def loss():
        v = Value(x)
        m = rowmax(v)
        return {"loss": log(sum_(exp_shift(v, m))) + Value(m) - gather(v, label)}

    got = torch.logsumexp(x, -1, keepdim=True) - x.gather(-1, label)
    assert not alarms({"loss": got}, loss, FP32)
    short = torch.logsumexp(x[:, :-1], -1, keepdim=True) - x.gather(-1, label)
    assert alarms({"loss": short}, loss, FP32)


def test_two_products_with_a_rounding_between():
    """Where the contract rounds, most elements are known to the bit; a missing rounding shows."""
    a, b, c = data(1, 24, 40), data(2, 40, 32), data(3, 32, 24)

    def chain():
        return {"y": matmul(round_to(matmul(Value(a), Value(b)), BF16), Value(c))}

    assert not alarms({"y": bf16(bf16(a @ b) @ c)}, chain, BF16)
    assert alarms({"y": bf16((a @ b) @ c)}, chain, BF16)


def test_sum_of_terms_in_any_order_bounds_every_order():
    x, y, z = (torch.randn(500, generator=torch.Generator().manual_seed(i)) for i in range(3))
    value = total(Value(x), Value(y), Value(z))
    for got in ((x + y) + z, (z + y) + x, (x + z) + y):
        error = (got.double() - value.v).abs()
        assert bool((error <= value.b).all())
        assert float((error / value.var.clamp(min=1e-300).sqrt()).max()) < 3
    whole = total(*(Value((t * 8).round()) for t in (x, y, z)))
    assert float(whole.b.max()) == 0


def test_sum_exact_and_not():
    assert float(sum_(Value(torch.arange(100.0))).b) == 0
    x = torch.randn(50, 400, generator=torch.Generator().manual_seed(1))
    value = sum_(Value(x))
    error = (x.sum(-1, keepdim=True).double() - value.v).abs()
    assert bool((error <= value.b).all())


def test_either_frees_what_only_one_formula_makes_infinite():
    a, b = Value(torch.tensor([1.0, math.nan, math.nan])), Value(torch.tensor([1.0, 2.0, math.nan]))
    out = either(a, b)
    assert out.b.tolist() == [0, math.inf, 0]
    for y in ([1.0, 2.0, math.nan], [1.0, math.nan, math.nan], [1.0, math.inf, math.nan]):
        assert not alarms({"y": torch.tensor(y)}, lambda: {"y": either(a, b)}, FP32)
    for y in ([1.0, 2.0, 3.0], [math.nan, 2.0, math.nan]):
        assert alarms({"y": torch.tensor(y)}, lambda: {"y": either(a, b)}, FP32)


def test_concat_and_where_carry_all_parts():
    x = Value(data(1, 3, 4)) * 0.3
    y = concat([x, x], 0)
    assert y.v.shape == y.b.shape == y.var.shape == (6, 4)
    picked = where(x.v > 0, x, 0.0)
    assert torch.equal(picked.b > 0, (x.v > 0) & (x.b > 0))


def test_a_short_accumulator_is_a_contract_of_its_own():
    """Hopper's FP8 accumulator breaks a plain fp32 contract and keeps its own."""
    a, b = (data(i, 32, 256).clamp(-2, 2) for i in (1, 2))
    cut = ((a @ b.mT) * 2**8).trunc() / 2**8  # about what 13 fraction bits leave of sums near 32
    plain, short = Contract(), Contract(accumulator("sm_90", "e4m3"))
    assert alarms({"y": cut}, lambda: {"y": matmul(Value(a), Value(b).mT, plain)}, FP32)
    assert not alarms({"y": cut}, lambda: {"y": matmul(Value(a), Value(b).mT, short)}, FP32)
