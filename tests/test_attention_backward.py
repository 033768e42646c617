"""The backward pass's contract: it admits the ways in which right kernels differ, and sees what wrong ones do."""

import math

import pytest
import torch
from rooftest.specs import attention
from rooftest.specs.attention_backward import SPEC, forward

from rooftest.case import parse
from rooftest.engines import contract
from rooftest.errorbar import bounds_only
from rooftest.formats import PRECISIONS
from rooftest.judge import conform
from rooftest.problem import draw, lay_out

torch.set_num_threads(1)  # tiny tensors: threads only wait for each other

LOG2_E = math.log2(math.e)


def differentiate(given, params, *, base2=False, kept=True, late=False, fault=""):
    """The gradients in float32. `base2`: exponentials to base 2; `late`: the scale after the products of dS."""
    q, k, v, o, do = (given[name].float().transpose(1, 2) for name in ("q", "k", "v", "o", "do"))
    (B, H, Sq, D), (_, G, Sk, _), dtype = q.shape, k.shape, given["q"].dtype
    R, scale = H // G, params.get("scale", 0.0) or D**-0.5
    heads = torch.arange(H) % G if fault == "heads" else torch.arange(H) // R
    k, v, lse = k[:, heads], v[:, heads], given["lse"][..., None]
    lse = lse.bfloat16().float() if fault == "lse" else lse
    seen = attention.visible(Sq, Sk, params.get("causal", 0.0), params.get("window", 0.0))
    scores = q @ k.mT
    scale *= 1.001 if fault == "scale" else 1
    p = torch.exp2(scores * (scale * LOG2_E) - lse * LOG2_E) if base2 else torch.exp(scores * scale - lse)
    whole, p = p.nan_to_num(posinf=0.0), torch.where(seen, p, 0.0)
    spread = do @ v.mT - (0 if fault == "D" else (do * o).sum(-1, keepdim=True))
    ds = p * spread
    ds = ds.to(torch.float8_e4m3fn).float() if fault == "e4m3" else ds
    first, last = (1, scale) if late else (scale, 1)
    held = (ds * first).to(dtype).float() if kept else ds * first
    p, whole = (x.to(dtype).float() if kept else x for x in (p, whole))
    dk, dv = held.mT @ q * last, (whole if fault == "mask in dV" else p).mT @ do
    dk = dk / scale if fault == "scale in dK" else dk
    dk, dv = (x.reshape(B, G, R, Sk, x.shape[-1]) for x in (dk, dv))
    dk, dv = (x[:, :, :-1] if fault == "last head" else x for x in (dk, dv))
    made = {"dq": held @ k * last, "dk": dk.sum(2), "dv": dv.sum(2)}
    return {name: x.transpose(1, 2).to(dtype) for name, x in made.items()}


CASES = [
    "Sq=40 Sk=40 causal=1 fill=normal",
    "Sq=33 Sk=70 fill=normal scale=1",
    "Sq=50 Sk=17 causal=1 fill=normal",  # 33 rows see no key
    "Sq=17 Sk=60 causal=1 window=7 scale=0.3 fill=heavy",
    "Sq=33 Sk=50 window=7 fill=big",
    "Sq=20 Sk=64 fill=positive",
    "Sq=20 Sk=33 fill=wide",
    "Sq=20 Sk=33 fill=integers",
    "Sq=5 Sk=0 causal=1 fill=normal",
    "Sq=0 Sk=5 fill=normal",
]
FAULTS = ("scale", "heads", "lse", "D", "e4m3", "mask in dV", "scale in dK", "last head")


def judged(words, dtype, seed=0, *, statistical=True, **how):
    case = parse(f"attention_backward x {dtype} nnnn B=2 G=2 R=3 D=32 Dv=24 {words} seed={seed}")
    given = draw(SPEC, case, "cpu")
    rules = contract("fp32", "cpu", dtype)
    got = differentiate(given, case.params, **how)
    formats = PRECISIONS[dtype].output
    return conform(got, lambda: SPEC.reference(given, case.params, rules), formats, statistical=statistical)


def alarms(verdicts):
    return {f"{name} {alarm}" for name, verdict in verdicts.items() for alarm in verdict.alarms}


@pytest.mark.parametrize("words", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "how",
    [{}, {"base2": True, "late": True}, {"kept": False}],
    ids=lambda h: " ".join(h) or "plain",
)
def test_right_kernels_of_every_kind_pass(words, dtype, how):
    for seed in range(2):
        assert not alarms(judged(words, dtype, seed, **how))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_overflows_is_free_by_bounds_alone_too(dtype):
    """Scores of 2^40 in fp32 have an error that exp makes infinite: then a sum of such is NaN, as it may be."""
    verdicts = judged("Sq=20 Sk=33 fill=wide", dtype, statistical=False)
    assert not alarms(verdicts)


def test_few_errors_in_many_columns_are_no_independent_ones():
    """127 columns of dK share the errors of 3 roundings of dS: as independent ones they read up to 0.97 and more."""
    for seed in range(20):
        verdicts = judged("Sq=3 Sk=16 R=1 D=127 causal=1 fill=heavy", "float16", seed)
        assert not any(verdict.withdrawn for verdict in verdicts.values())
        read = [verdict.readings[n].ratio for verdict in verdicts.values() for n in ("bias", "probe:scale")]
        assert max(read) < 0.6


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_kernels_are_seen(fault):
    assert any(alarms(judged(words, "bfloat16", fault=fault)) for words in CASES)


@pytest.mark.parametrize(("fault", "names"), [("scale in dK", {"dk"}), ("mask in dV", {"dv"}), ("D", {"dq", "dk"})])
def test_a_fault_is_seen_in_the_gradient_that_has_it(fault, names):
    assert {alarm.split()[0] for alarm in alarms(judged(CASES[0], "float16", fault=fault))} == names


@pytest.mark.parametrize("params", [{}, {"causal": 1.0, "window": 7.0, "scale": 0.3}])
def test_what_the_forward_pass_left_is_that_of_its_reference(params, monkeypatch):
    case = parse("attention_backward x float32 nnnn B=2 Sq=50 Sk=17 G=2 R=3 D=32 Dv=24 seed=1")
    given = {name: x for name, x in draw(SPEC, case, "cpu").items() if name in "qkv"}
    with bounds_only():
        want = attention.reference(given, params, contract("fp32", "cpu", "float32"))
    for at_a_time in (2**26, 1000):  # all queries; few
        monkeypatch.setattr("rooftest.specs.attention_backward.SCORES_AT_A_TIME", at_a_time)
        got = forward(given, params)
        assert all(torch.allclose(got[name], want[name].v, rtol=1e-12, atol=1e-13) for name in ("o", "lse"))


def test_the_reference_is_the_derivative():
    case = parse("attention_backward x float32 nnnn B=2 Sq=9 Sk=17 G=2 R=3 D=8 Dv=4 causal=1 scale=0.3 seed=2")
    given = {name: x.double() for name, x in draw(SPEC, case, "cpu").items()}
    q, k, v = (given[name].requires_grad_() for name in "qkv")
    heads = torch.arange(6) // 3
    seen = attention.visible(9, 17, 1.0, 0.0)
    scores = torch.einsum("bihd,bjhd->bhij", q, k[:, :, heads]) * 0.3
    p = scores.masked_fill(~seen, -math.inf).softmax(-1)
    o = torch.einsum("bhij,bjhd->bihd", p, v[:, :, heads])
    o.backward(given["do"])
    given |= {name: x.detach() for name, x in forward(given, case.params).items()}
    given = {name: x.detach() for name, x in given.items()}
    got = SPEC.reference(given, case.params, contract("fp32", "cpu", "float32"))
    for name, x in (("dq", q), ("dk", k), ("dv", v)):
        assert torch.allclose(got[name].v, x.grad, rtol=1e-12, atol=1e-12)


def test_what_is_derived_is_rounded_and_never_repeats_by_stride():
    case = parse("attention_backward x bfloat16 nnnn B=2 Sq=9 Sk=17 G=2 R=3 D=8 Dv=4 stride=broadcast seed=2")
    given = draw(SPEC, case, "cpu")
    assert (given["o"].dtype, given["lse"].dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(given["o"], forward(given, case.params)["o"].bfloat16())
    strides = {p.name: p.stride for p in lay_out(SPEC, case).inputs}
    assert strides["q"][0] == strides["do"][0] == 0
    assert 0 not in (*strides["o"], *strides["lse"])


def test_two_and_a_half_times_the_work_of_the_forward_pass():
    sizes = {"B": 2, "Sq": 8, "Sk": 12, "G": 3, "R": 4, "D": 16, "Dv": 16}
    for params in ({}, {"causal": 1.0}, {"window": 3.0}):
        assert SPEC.flop_of(sizes, params) * 2 == attention.SPEC.flop_of(sizes, params) * 5
