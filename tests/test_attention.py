"""Attention's contract: it admits the ways in which right kernels differ, and sees what wrong ones do."""

import math

import pytest
import torch
from rooftest.specs.attention import SPEC, flop, visible

from rooftest.case import Case, parse
from rooftest.engines import contract
from rooftest.formats import FP16, FP32, PRECISIONS, rne
from rooftest.judge import conform, judge
from rooftest.problem import draw

torch.set_num_threads(1)  # tiny tensors: threads only wait for each other

FORMATS = {"o": PRECISIONS["bfloat16"].output, "lse": PRECISIONS["float32"].output}


def attend(given, params, *, tile=16, kept=True, first=False, fault=""):
    """O and log-sum-exp in float32, `tile` keys at a time; `first`: P is divided by its sum before it is rounded."""
    q, k, v = (given[name].float() for name in "qkv")
    (B, Sq, H, D), (_, Sk, G, _), dtype = q.shape, k.shape, given["q"].dtype
    R, scale, cap = H // G, params.get("scale", 0.0) or D**-0.5, params.get("softcap", 0.0)
    scale *= 1.001 if fault == "scale" else 1
    heads = torch.arange(H) % G if fault == "heads" else torch.arange(H) // R
    q, k, v = q.transpose(1, 2), k.transpose(1, 2)[:, heads], v.transpose(1, 2)[:, heads]
    seen = visible(Sq, Sk, params.get("causal", 0.0), params.get("window", 0.0))
    if fault == "corner":
        seen = visible(Sq, Sq, params.get("causal", 0.0), params.get("window", 0.0))[:, :1].expand(Sq, Sk) | seen
    m, l, acc = torch.full((B, H, Sq, 1), -math.inf), torch.zeros(B, H, Sq, 1), torch.zeros(B, H, Sq, v.shape[-1])
    scores = q @ k.mT * scale
    scores = cap * torch.tanh(scores / cap) if cap else scores
    if "slopes" in given:
        away = (torch.arange(Sq)[:, None] + Sk - Sq - torch.arange(Sk)).float()
        scores = scores - given["slopes"].reshape(H, 1, 1) * (away if fault == "signed" else away.abs())
    scores = scores.masked_fill(~seen, -math.inf)
    if first:
        p = torch.nan_to_num(scores.softmax(-1)).to(dtype).float()
        return {"o": (p @ v).transpose(1, 2).to(dtype), "lse": scores.logsumexp(-1)}
    for start in range(0, Sk, tile):
        s = scores[..., start : start + tile]
        largest = torch.maximum(m, s.amax(-1, keepdim=True))
        shift = torch.where(largest == -math.inf, 0.0, largest)
        p, again = torch.exp(s - shift), torch.exp(m - shift)
        l = l * (1 if fault == "sum" and start else again) + p.sum(-1, keepdim=True)
        p = p.to(torch.float8_e4m3fn).float() if fault == "e4m3" else p.to(dtype).float() if kept else p
        acc = acc * (1 if fault == "output" and start else again) + p @ v[:, :, start : start + tile]
        m = largest
    total = torch.where(l == 0, 1.0, l)
    lse = torch.where(l == 0, -math.inf, m + torch.log(total))[..., 0]
    return {"o": (acc / total).transpose(1, 2).to(dtype), "lse": lse / math.log(2) if fault == "log2" else lse}


CASES = [
    "Sq=48 Sk=96 causal=0 softcap=0 with=slopes,lse fill=small",  # rows of nearly the same P
    "Sq=64 Sk=64 causal=1 with=lse fill=normal",
    "Sq=70 Sk=33 causal=1 with=lse fill=normal",  # 37 rows see no key
    "Sq=17 Sk=97 causal=1 window=7 scale=1 softcap=5 with=slopes,lse fill=normal",
    "Sq=33 Sk=80 window=7 scale=0.3 with=lse fill=big",
    "Sq=40 Sk=50 softcap=30 with=lse fill=heavy",
    "Sq=20 Sk=64 with=lse fill=positive",
    "Sq=5 Sk=0 causal=1 with=lse fill=normal",
]
FAULTS = ("scale", "heads", "corner", "signed", "sum", "output", "e4m3", "log2")


def judged(words, kernel, seed=0, **how):
    case = parse(f"attention x bfloat16 nnn B=2 G=2 R=3 D=64 Dv=32 {words} seed={seed}")
    given = draw(SPEC, case, "cpu")
    rules = contract("fp32", "cpu", "bfloat16")
    got = kernel(given, case.params, **how)
    return conform(got, lambda: SPEC.reference(given, case.params, rules), FORMATS)


def alarms(verdicts):
    return {f"{name} {alarm}" for name, verdict in verdicts.items() for alarm in verdict.alarms}


@pytest.mark.parametrize("words", CASES)
@pytest.mark.parametrize(
    "how",
    [{}, {"tile": 64}, {"tile": 1000}, {"kept": False}, {"first": True}],
    ids=lambda h: str(h) if h else "tile 16",
)
def test_right_kernels_of_every_kind_pass(words, how):
    for seed in range(2):
        assert not alarms(judged(words, attend, seed, **how))


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_kernels_are_seen(fault):
    found = [alarms(judged(words, attend, fault=fault)) for words in CASES]
    assert any(found)


def test_rows_that_see_no_key_are_zero_and_must_be():
    words = CASES[2]
    assert not alarms(judged(words, attend))

    def finite(given, params):
        got = attend(given, params)
        return {**got, "lse": got["lse"].nan_to_num(neginf=-1e30)}

    assert "lse miss" in alarms(judged(words, finite))


def test_rows_of_the_same_p_err_alike():
    """P of ALiBi slopes alone: each row rounds the same numbers, relative to the maximum of the tile that it is in.

    Of these cases one in ten was an alarm while the reference's own kernels gave each row a scale of its own.
    """
    found = [judged(CASES[0], attend, seed)["o"] for seed in range(30)]
    assert not any(verdict.alarms for verdict in found)
    assert any("bias" in verdict.withdrawn for verdict in found)


def test_rows_of_the_same_output_are_rounded_alike():
    """P of tiny scores is nearly uniform: all 256 rows are the mean of V, and have 64 last roundings between them."""
    case = parse("attention x float16 nnn B=1 Sq=64 Sk=16 G=1 R=4 D=16 Dv=64 fill=small seed=616704")
    given, rules = draw(SPEC, case, "cpu"), contract("fp32", "cpu", "float16")
    exact = SPEC.reference(given, {}, rules)["o"]
    y = rne(exact.v, FP16)
    assert judge(y, exact, FP16).alarms == ["probe:scale"]
    verdict = conform({"o": y}, lambda: SPEC.reference(given, {}, rules), FP16)["o"]
    assert not verdict.alarms
    assert verdict.withdrawn == ("probe:scale",)


def test_a_kernel_may_scale_both_factors_before_the_product():
    case = parse("attention x float32 nnn B=1 Sq=32 Sk=82 G=1 R=4 D=127 Dv=73 fill=powers seed=984740942")
    given, rules = draw(SPEC, case, "cpu"), contract("fp32", "cpu", "float32")
    q, k, v = (given[name].transpose(1, 2) for name in "qkv")
    root = torch.tensor(127**-0.25)
    y = (((q * root) @ (k * root).mT).softmax(-1) @ v).transpose(1, 2)
    assert not conform({"o": y}, lambda: SPEC.reference(given, {}, rules), FP32)["o"].alarms


@pytest.mark.parametrize(
    ("params", "pairs"),
    [({}, 8 * 12), ({"causal": 1.0}, 8 * 8), ({"window": 1.0}, 8), ({"causal": 1.0, "window": 3.0}, 24)],
)
def test_work_counts_the_keys_that_are_seen(params, pairs):
    sizes = {"B": 2, "Sq": 8, "Sk": 12, "G": 3, "R": 4, "D": 16, "Dv": 32}
    assert SPEC.flop_of(sizes, params) == 2 * 2 * 12 * pairs * 48
    assert flop is SPEC.flop


def test_fewest_bytes_count_the_log_sum_exp_in_float32_where_it_is_asked_for():
    sizes = {"B": 2, "Sq": 8, "Sk": 12, "G": 3, "R": 4, "D": 16, "Dv": 32}
    read = 2 * (2 * 8 * 12 * 16 + 2 * 12 * 3 * (16 + 32))
    assert SPEC.least_bytes(sizes, "bfloat16") == (read, 2 * 2 * 8 * 12 * 32)
    assert SPEC.least_bytes(sizes, "bfloat16", ("lse", "slopes")) == (
        read + 4 * 12,
        2 * 2 * 8 * 12 * 32 + 4 * 2 * 12 * 8,
    )


def test_a_case_names_heads_as_products():
    case = Case("attention", "x", "float16", "nnn", {"B": 1, "Sq": 2, "Sk": 3, "G": 2, "R": 5, "D": 4, "Dv": 6})
    given = draw(SPEC, case, "cpu")
    assert given["q"].shape == (1, 2, 10, 4)
    assert given["v"].shape == (1, 3, 2, 6)
