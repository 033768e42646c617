"""The judge's readings: each is red alone, knows its limits, and gives way where the reference's own twins fail it."""

import math

import pytest
import torch
from rooftest.specs.gemm import SPEC

from rooftest.case import Case
from rooftest.engines import contract
from rooftest.errorbar import Value, bounds_only, lift
from rooftest.fills import kinds
from rooftest.formats import BF16, F64, FP16, FP32, rne, ulp
from rooftest.judge import Judgement, Reading, conform, judge
from rooftest.primitives import matmul
from rooftest.problem import draw

torch.set_num_threads(1)  # tiny tensors: threads only wait for each other


N = 4096
SIGNS = torch.where(torch.arange(N) % 2 == 0, 1.0, -1.0).double()
FIRST = (torch.arange(N) == 0).double()
# Errors in deviations, each of which one reading alone sees; the bound lies at 20 deviations, or at 3 for `hard`.
ALONE = {
    "hard": (4 * FIRST, 3),
    "z": (12 * FIRST, 20),
    "rms": (2.5 * SIGNS, 20),
    "bias": (0.9 * torch.ones(N).double(), 20),
    "probe:scale": (0.9 * torch.where(torch.arange(N) % 4 < 2, 1.0, -1.0).double(), 20),
}


def known(bound):
    """Values near 1 with a deviation of 1000 fp32 spacings, and a named constant whose derivative changes sign."""
    s = torch.full((N,), 1000 * 2.0**-23, dtype=F64)
    probe = torch.where(torch.arange(N) % 4 < 2, 1.0, -1.0).double()
    shared = {"scale": (probe, (False,))} if bound else {}
    return Value(1 + torch.rand(N, generator=torch.Generator().manual_seed(0)), bound * s, s * s, shared), s


@pytest.mark.parametrize("name", ALONE)
def test_each_reading_sees_what_the_others_do_not(name):
    error, bound = ALONE[name]
    pre, s = known(bound)
    assert not judge(rne(pre.v, FP32), pre, FP32).alarms
    assert judge(rne(pre.v + error * s, FP32), pre, FP32).alarms == [name]


def test_one_wrong_bit_where_nothing_may_round():
    pre = Value(torch.rand(N, generator=torch.Generator().manual_seed(0)))
    y = pre.v.clone()
    y[7] += ulp(y, FP32)[7]
    assert judge(y, pre, FP32).alarms == ["miss"]
    assert judge(y, pre, FP32, statistical=False).worst.index == (7,)


def test_a_reference_that_lost_its_variance_is_no_verdict():
    pre = Value(torch.ones(3), torch.full((3,), 1e-6), torch.zeros(3))
    with pytest.raises(AssertionError, match="variance"):
        judge(torch.full((3,), 1 + 1e-6), pre, FP32)


def test_ratios():
    assert Reading(0, 0).ratio == 0
    assert Reading(3, 0).ratio == math.inf
    assert Reading(math.nan, 1).ratio == math.inf
    assert Reading(math.nan, 1).alarms
    assert Reading(1, 4).ratio == 0.25
    assert Judgement({"miss": Reading(0, 0), "hard": Reading(0, 1)}).reading == "bit-exact"


def test_a_finding_begins_with_the_worst_element():
    said = judge(torch.tensor([1.0, 2.5]), Value(torch.tensor([1.0, 2.0])), FP32).explain()
    assert said == "worst element (1,): got 2.5, expected 2.0, allowed +-0; miss reads 1, limit 0"


def test_overflow_gives_infinity():
    pre = matmul(Value(torch.full((1, 2), 300.0)), Value(torch.full((2, 1), 300.0)))
    assert not judge(torch.tensor([[math.inf]]), pre, FP16).alarms
    assert judge(torch.tensor([[65504.0]]), pre, FP16).alarms
    assert judge(torch.tensor([[-math.inf]]), pre, FP16).alarms


def test_batches_are_judged_as_their_members():
    g = torch.Generator().manual_seed(1)
    a, b = torch.randn(3, 5, 33, generator=g), torch.randn(3, 33, 7, generator=g)
    whole = matmul(lift(a), lift(b))
    for i in range(3):
        one = matmul(lift(a[i]), lift(b[i]))
        for mine, its in ((whole.v[i], one.v), (whole.b[i], one.b), (whole.var[i], one.var)):
            torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-15)
    assert not judge(a @ b, whole, FP32).alarms


def test_withdrawn_readings_are_named_and_hard_ones_stay(monkeypatch):
    """Equal values have equal rounding errors: aggregates do not hold there, and the reference's own twins say so.

    What is equal is counted once beforehand; here, to try the twins, it is not.
    """
    monkeypatch.setattr("rooftest.judge._distinct", lambda v: torch.ones_like(v, dtype=torch.bool))
    x = torch.full((64, 64), 1.1).double()
    factors = [float(torch.tensor(c)) for c in (1.3, 1.7, 1.9)]

    def products():
        v = Value(x)
        for c in factors:
            v = v * c
        return {"c": v}

    y = x
    for c in factors:
        y = (y * c).float().double()
    assert "bias" in judge(y, products()["c"], FP32).alarms
    verdict = conform({"c": y}, products, FP32)["c"]
    assert "bias" in verdict.withdrawn
    assert "bias" not in verdict.readings
    assert not verdict.alarms
    off = conform({"c": y + 1e-5}, products, FP32)["c"]
    assert "hard" in off.alarms
    assert {"miss", "hard"}.isdisjoint(off.withdrawn)


@pytest.mark.parametrize("kind", kinds("float16"))
@pytest.mark.parametrize("accumulation", ["fp32", "partials"])
def test_without_variances_bounds_and_free_elements_are_the_same(kind, accumulation):
    sizes, params = {"M": 9, "N": 8, "K": 40}, {"alpha": 0.3, "beta": 0.7}
    case = Case("gemm", "x", "float16", "nn", sizes, params, ("c0", "bias"), fill=kind)
    large = 64 if kind == "big" else 1  # so that partial sums overflow, and their elements are free
    values = {name: x * large for name, x in draw(SPEC, case, "cpu").items()}
    wanted = SPEC.reference(values, params, contract(accumulation, "sm_90", "float16"))["c"]
    with bounds_only():
        bare = SPEC.reference(values, params, contract(accumulation, "sm_90", "float16"))["c"]
    for part in ("v", "b"):
        assert torch.equal(*(getattr(x, part).nan_to_num(nan=7.0, posinf=8.0) for x in (bare, wanted)))
    free = [(x.b == math.inf) & ~x.s2.isfinite() for x in (bare, wanted)]
    assert torch.equal(*free)
    assert bool(free[0].any()) or kind != "big" or accumulation != "partials"


def chain(a, b, acc):
    """The sum of a b on top of acc in fp32, one rounding for each fused multiply-add."""
    for k in range(a.shape[1]):
        acc = (a[:, k : k + 1].double() * b[k : k + 1].double() + acc.double()).float()
    return acc


def gemm(values, params, y):
    judged = conform({"c": y}, lambda: SPEC.reference(values, params, contract("fp32", "cpu", "float32")), FP32)
    return judged["c"]


def test_elements_that_overflow_and_have_no_variance_leave_the_statistics():
    case = Case("gemm", "x", "float16", "nn", {"M": 65, "N": 64, "K": 512}, {"alpha": 0.3}, fill="big")
    values = {name: 4 * x for name, x in draw(SPEC, case, "cpu").items()}
    wanted = contract("fp32", "sm_90", "float16")
    y = rne(SPEC.reference(values, case.params, wanted)["c"].v, FP16).half()
    assert bool(y.isinf().any())
    judged = conform({"c": y}, lambda: SPEC.reference(values, case.params, wanted), FP16)["c"]
    assert not judged.withdrawn
    assert judged.ratio < 1


def test_one_bias_for_many_rows_rounds_them_alike():
    generator = torch.Generator().manual_seed(0)
    a, b = 2.5 + 0.2 * torch.randn(20000, 8, generator=generator), torch.full((8, 1), 0.3)
    bias = torch.tensor([1.75 + 3 * 2.0**-23])  # all sums lie from 4 to 8, on a grid of 2**-21
    y = chain(a, b, torch.zeros(20000, 1)) + bias
    values = {"a": a, "b": b, "bias": bias}
    pre = SPEC.reference(values, {}, contract("fp32", "cpu", "float32"))["c"]
    private = Value(pre.v, pre.b, pre.var)
    assert "bias" in judge(y, private, FP32).alarms  # what the shared term is for
    assert not gemm(values, {}, y).alarms


@pytest.mark.parametrize("alpha", [-1.5, 0.3])
def test_a_factor_that_is_scaled_first_is_one_of_the_contracts_kernels(alpha):
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(1, 8, generator=generator), torch.randn(8, 20000, generator=generator)
    y = chain((a.double() * float(torch.tensor(alpha))).float(), b, torch.zeros(1, 20000))
    assert not gemm({"a": a, "b": b}, {"alpha": alpha}, y).alarms
    assert gemm({"a": a, "b": b}, {"alpha": alpha}, y * (1 + 2.0**-19)).alarms


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_a_power_of_two_on_a_factor_leaves_the_accumulator_free_to_start_from_the_bias(alpha):
    generator = torch.Generator().manual_seed(2)
    a, b = (1e-3 * torch.randn(shape, generator=generator) for shape in ((8, 128), (128, 64)))
    bias = torch.randn(64, generator=generator)
    values = {"a": a, "b": b, "bias": bias}
    y = chain(a * alpha, b, bias.expand(8, 64))
    assert not gemm(values, {"alpha": alpha}, y).alarms
    assert gemm(values, {"alpha": alpha}, y * (1 + 2.0**-15)).alarms
    assert gemm({"a": a, "b": b}, {"alpha": alpha}, y - bias).alarms  # without a bias there is nothing to start from


def test_elements_made_of_one_short_number_err_as_one_where_it_repeats(monkeypatch):
    case = Case("gemm", "x", "float16", "nt", {"M": 1, "N": 196608, "K": 8},
                {"alpha": 0.0, "beta": 1.1198512315750122}, given=("c0",), fill="normal", seed=0)  # fmt: skip
    values = draw(SPEC, case, "cpu")
    # beta C0 in fp32: one of some thousand numbers lies so near the middle of two of fp16 that it falls to the other.
    y = (values["c0"].float() * case.params["beta"]).half()

    def judged():
        return conform(
            {"c": y}, lambda: SPEC.reference(values, case.params, contract("fp32", "sm_90", "float16")), FP16
        )

    assert not judged()["c"].alarms
    assert not judged()["c"].withdrawn
    monkeypatch.setattr("rooftest.judge._distinct", lambda v: torch.ones_like(v, dtype=torch.bool))
    assert "bias" in judged()["c"].withdrawn


def test_a_sum_that_is_rounded_before_alpha_scales_it_has_few_errors_after_that():
    case = Case("gemm", "x", "bfloat16", "nt", {"M": 135169, "N": 1, "K": 8}, {"alpha": 1031.3170166015625},
                fill="minute", seed=0)  # fmt: skip
    values = draw(SPEC, case, "cpu")
    once = (values["a"].double() @ values["b"].double()).bfloat16()
    y = (once.float() * case.params["alpha"]).bfloat16()

    rules = contract("partials", "sm_90", "bfloat16")
    verdict = conform({"c": y}, lambda: SPEC.reference(values, case.params, rules), BF16)["c"]
    assert not verdict.alarms
    assert not verdict.withdrawn
    pre = SPEC.reference(values, case.params, rules)["c"]
    assert "bias" in judge(y, Value(pre.v, pre.b, pre.var), BF16).alarms  # what the shared term is for


def test_a_constant_times_short_numbers_may_err_with_a_mean():
    case = Case("gemm", "x", "tf32", "tt", {"M": 1, "N": 114689, "K": 1}, {"alpha": -1.5, "beta": 1.1845699548721313},
                given=("c0",), fill="normal", seed=0)  # fmt: skip
    values = draw(SPEC, case, "cpu")
    product = -1.5 * (values["a"] * values["b"]).double()
    y = (product + (values["c0"] * torch.tensor(case.params["beta"])).double()).float()  # one fma
    rules = contract("fp32", "sm_90", "tf32")
    assert "bias" in judge(y, SPEC.reference(values, case.params, rules)["c"], FP32).alarms
    verdict = conform({"c": y}, lambda: SPEC.reference(values, case.params, rules), FP32)["c"]
    assert not verdict.alarms
    assert "bias" in verdict.withdrawn


@pytest.mark.parametrize("shape", [(1, 1, 20000), (8, 64, 300)], ids=str)
def test_an_error_of_all_elements_is_seen_where_none_is_counted_twice(shape):
    m, k, n = shape
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
    y = chain(a, b, torch.zeros(m, n))
    assert not gemm({"a": a, "b": b}, {}, y).alarms
    assert gemm({"a": a, "b": b}, {}, y * (1 + 2.0**-20)).alarms
    assert "bias" in gemm({"a": a, "b": b}, {}, torch.nextafter(y, 2 * y)).alarms


def test_the_law_of_doubling_says_nothing_where_the_first_result_was_rounded_below_normal_numbers():
    double = next(law for law in SPEC.laws if law.name == "double")
    tiny, least = torch.finfo(torch.half).tiny, 2.0**-24
    before = torch.tensor([0.0, -0.0, tiny, 2 * tiny, 0.0, 1.0], dtype=torch.half)
    after = torch.tensor([least, -least, 2 * tiny - least, 4 * tiny, 1.0, 2.0 + 2.0**-9], dtype=torch.half)
    assert double.wrong(before, after).tolist() == [False, False, False, False, True, True]
