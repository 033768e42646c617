"""The judge on emulated GEMM kernels: correct ones in many legal variants, which raise no alarm, and planted faults.

`python tests/test_emulated.py SEED CASES` runs the same cases in any number and counts.
"""

import math
import sys
from collections import Counter
from functools import partial

import pytest
import torch
from rooftest.specs.gemm import reference

from rooftest.engines import contract
from rooftest.fills import FILLS, fill, kinds
from rooftest.formats import BF16, E4M3, F64, FP16, PRECISIONS, TF32, binade, rne, ulp
from rooftest.judge import conform

torch.set_num_threads(1)  # tiny tensors: threads only wait for each other


def f32(x):
    return x.float().double()


def chain(a, b, order=None):
    """Fused multiply-adds, one after another; float64 in, each step rounded to fp32."""
    c = torch.zeros(a.shape[0], b.shape[1], dtype=F64)
    for k in order if order is not None else range(a.shape[1]):
        c = f32(c + a[:, k : k + 1] * b[k : k + 1])
    return c


def tree(a, b):
    """Rounded products, added in pairs."""
    t = f32(a[:, :, None] * b[None])
    while t.shape[1] > 1:
        t = torch.nn.functional.pad(t, (0, 0, 0, t.shape[1] % 2))
        t = f32(t[:, 0::2] + t[:, 1::2])
    return t[:, 0] if a.shape[1] else torch.zeros(a.shape[0], b.shape[1], dtype=F64)


def cut(x, unit):
    return torch.trunc(x / unit) * unit


def tensor_core(a, b, row):
    """Steps of `group` products, aligned to the largest and truncated, then truncated to the accumulator's bits."""
    c = torch.zeros(a.shape[0], b.shape[1], dtype=F64)
    for k in range(0, a.shape[1], row.group):
        t = torch.cat([a[:, k : k + row.group, None] * b[None, k : k + row.group], c[:, None]], 1)
        s = cut(t, (binade(t).amax(1, keepdim=True) * row.align).clamp(1e-290, 1e290)).sum(1)
        c = cut(s, (binade(s) * 2 * row.u).clamp(1e-290, 1e290))
    return c


def parts(a, b, n, one, keep=lambda p: p):
    """Split-K in n parts of any length, added in fp32."""
    size = max(-(-a.shape[1] // n), 1)
    c = torch.zeros(a.shape[0], b.shape[1], dtype=F64)
    for k in range(0, a.shape[1], size):
        c = f32(c + keep(one(a[:, k : k + size], b[k : k + size])))
    return c


CHAINS = {
    "torch": lambda a, b: (a.float() @ b.float()).double(),
    "chain": chain,
    "reversed": lambda a, b: chain(a, b, range(a.shape[1] - 1, -1, -1)),
    "tree": tree,
    "blocks of 16": lambda a, b: parts(a, b, -(-a.shape[1] // 16) or 1, CHAINS["torch"]),
    "2 parts": lambda a, b: parts(a, b, 2, chain),
    "8 parts": lambda a, b: parts(a, b, 8, chain),
}
ENGINE_NAMES = ("cpu", "sm_80", "sm_90", "sm_100")


def choose(g, options):
    options = list(options)
    return options[int(torch.randint(len(options), (1,), generator=g))]


def epilogue(product, x, p, g):
    """alpha, beta, C0 and bias in fp32, in one of the legal orders, fused or not."""
    alpha, beta = (float(torch.tensor(p[k], dtype=torch.float32)) for k in ("alpha", "beta"))
    terms = []
    if "c0" in x and beta:
        terms.append((beta, x["c0"].double()))
    if "bias" in x:
        terms.append((1.0, x["bias"].double()))
    if choose(g, [True, False]):
        terms.reverse()
    fused = choose(g, [True, False])
    c = product if alpha == 1 else product * alpha
    c = c if fused else f32(c)
    for factor, t in terms:
        c = f32(c + (t * factor if fused else f32(t * factor)))
    return f32(c)


class Example:
    """One random case: data, contract, parameters and a correct kernel's fp32 result."""

    def __init__(self, seed, sizes=None, precision=None, kind=None, plain=False, engine=None, accumulation=None):
        g = self.g = torch.Generator().manual_seed(seed)
        self.seed, self.precision = seed, precision or choose(g, PRECISIONS)
        self.kind = kind or choose(g, kinds(self.precision))
        long = choose(g, [False] * 19 + [True])
        m, n, k = sizes or (
            choose(g, (1, 3, 8, 33)),
            choose(g, (1, 5, 16, 40)),
            choose(g, (511, 1031, 2050) if long else (0, 1, 2, 3, 16, 17, 64, 130, 300)),
        )
        beside = FILLS[self.kind].beside
        x = {"a": self.fill(self.kind, (m, k), k), "b": self.fill(beside or self.kind, (k, n), k)}
        added = "normal" if beside else self.kind
        self.p = {"alpha": 1.0, "beta": 0.0}
        if not plain and choose(g, [True, False]):
            self.p["alpha"] = choose(g, (1.0, 2.0, -1.5, 0.3))
            if choose(g, [True, False]):
                x["c0"], self.p["beta"] = self.fill(added, (m, n), k), choose(g, (0.0, 1.0, -0.5, 0.7))
            if choose(g, [True, False]):
                x["bias"] = self.fill(added, (n,), k)
        self.x, self.output = x, PRECISIONS[self.precision].output
        self.engine = engine or choose(g, ENGINE_NAMES)
        self.accumulation = accumulation or choose(g, ("fp32", "fp32", "partials"))
        self.contract = contract(self.accumulation, self.engine, self.precision)

    def fill(self, kind, shape, depth):
        return fill(kind, shape, self.precision, self.g, depth)

    def reference(self):
        return reference(self.x, self.p, self.contract)

    def operands(self):
        a, b = self.x["a"].double(), self.x["b"].double()
        if self.kind == "offgrid" and choose(self.g, [True, False]):
            return cut(a, ulp(a, TF32)), cut(b, ulp(b, TF32))
        return (rne(a, TF32), rne(b, TF32)) if self.kind == "offgrid" else (a, b)

    def product(self):
        """A correct kernel's product, by a variant that the contract allows; also its name."""
        a, b = self.operands()
        ways = dict(CHAINS)
        for row in self.contract.accumulator:
            if row.align:
                unit = partial(tensor_core, row=row)
                ways["tensor core"] = unit
                ways["tensor core, 2 parts"] = lambda a, b, unit=unit: parts(a, b, 2, unit)
                ways["tensor core, 3 parts"] = lambda a, b, unit=unit: parts(a, b, 3, unit)
        if self.accumulation == "partials":
            for n in (2, 3, 5, 16):
                ways[f"{n} rounded parts"] = lambda a, b, n=n: parts(a, b, n, chain, lambda p: rne(p, self.output))
        name = choose(self.g, ways)
        return ways[name](a, b), name

    def kernel(self):
        product, name = self.product()
        addends = "c0" not in self.x and "bias" in self.x and self.p["alpha"] == 1
        if addends and name == "chain" and choose(self.g, [True, False]):
            a, b = self.operands()
            one = torch.ones(a.shape[0], 1, dtype=F64)  # the accumulator starts from the bias
            return chain(torch.cat([one, a], 1), torch.cat([self.x["bias"].double()[None], b])), name
        return epilogue(product, self.x, self.p, self.g), name

    def cast(self, c):
        return rne(c, self.output)

    def judged(self, y, statistical=None):
        statistical = FILLS[self.kind].random_sign if statistical is None else statistical
        return conform({"c": y}, self.reference, self.output, statistical=statistical)["c"]

    def __str__(self):
        m, k = self.x["a"].shape
        return (
            f"{self.precision} {self.kind} {m}x{self.x['b'].shape[1]}x{k} {self.engine} {self.accumulation} "
            f"{self.p} with {sorted(self.x)} seed {self.seed}"
        )


def test_no_alarm_on_correct_kernels():
    for seed in range(300):
        case = Example(seed)
        c, way = case.kernel()
        verdict = case.judged(case.cast(c))
        assert not verdict.alarms, f"{case} by {way}: {verdict.explain()}"


def test_exact_kinds_are_bit_exact():
    """Integers, ones, powers, one-hot and permutation data leave nothing to judge by a bound."""
    for precision in PRECISIONS:
        for kind in (k for k in kinds(precision) if FILLS[k].exact):
            for k in (1, 7, 130, 2050):
                case = Example(1, (5, 9, k), precision, kind, plain=True)
                pre = case.reference()["c"]
                if case.accumulation == "fp32":
                    assert float(pre.b.max()) == 0.0, f"{precision} {kind} K={k} is not exact"
                verdict = case.judged(case.cast(case.kernel()[0]))
                assert not verdict.alarms, f"{case}: {verdict.explain()}"


def low(a, b, keep, n=16):
    """An accumulator that is rounded every n products."""
    c = torch.zeros(a.shape[0], b.shape[1], dtype=F64)
    for k in range(0, a.shape[1], n):
        c = keep(c + a[:, k : k + n] @ b[k : k + n])
    return c


def bf16(x):
    return rne(x, BF16)


def scaled(a, b, by):
    return f32(CHAINS["torch"](a, b) * by)


def one_off(c, by):
    c.view(-1)[c.numel() // 2] *= by
    return c


def swapped(c):
    c[:, [0, -1]] = c[:, [-1, 0]]
    return c


def without_tile(c):
    c[:16, :16] = 0
    return c


def stale(a, b):
    """A little of the first products once more."""
    n = a.shape[1] // 4
    return parts(a, b, 4, chain) + chain(a[:, :n], b[:n]) * 2**-10


def tail16(a, b):
    n = (a.shape[1] - 1) // 16 * 16
    return CHAINS["torch"](a[:, :n], b[:n])


# Each changes the product, before the last cast.
PRODUCT_FAULTS = {
    "last K dropped": lambda a, b: CHAINS["torch"](a[:, :-1], b[:-1]),
    "K tail dropped": tail16,
    "one K doubled": lambda a, b: CHAINS["torch"](torch.cat([a, a[:, :1]], 1), torch.cat([b, b[:1]])),
    "e4m3 operand": lambda a, b: CHAINS["torch"](rne(a, E4M3), b),
    "B shifted along K": lambda a, b: CHAINS["torch"](a, torch.roll(b, 1, 0)),
    "bf16 accumulator": lambda a, b: low(a, b, bf16),
    "fp16 accumulator": lambda a, b: low(a, b, lambda x: rne(x, FP16)),
    "bf16 partial sums": lambda a, b: parts(a, b, 4, chain, bf16),
    "stale accumulator": stale,
    "scale 0.1 % off": lambda a, b: scaled(a, b, 1.001),
    "scale 0.4 % off": lambda a, b: scaled(a, b, 1.004),
    "one element 5 % off": lambda a, b: one_off(CHAINS["torch"](a, b), 1.05),
    "two columns swapped": lambda a, b: swapped(CHAINS["torch"](a, b)),
    "a 16 x 16 tile skipped": lambda a, b: without_tile(CHAINS["torch"](a, b)),
}


def truncated(c):
    return (c.float().view(torch.int32) & -65536).view(torch.float32).double()


def one_ulp(c):
    y = rne(c, BF16)
    y.view(-1)[y.numel() // 2] += ulp(y, BF16).view(-1)[y.numel() // 2]
    return y


# Each is a wrong last cast to bf16.
CAST_FAULTS = {
    "truncating cast": truncated,
    "ties away from zero": lambda c: truncated(c + torch.sign(c) * ulp(c, BF16) / 2),
    "rounded twice, through fp16": lambda c: bf16(rne(c, FP16)),
    "one element one ulp off": one_ulp,
}
TESTED = ("normal", "positive", "integers")


def catches(judgements):
    return any(j.alarms for j in judgements)


def faulty(precision, product=None, cast=None, sizes=(48, 48, 384)):
    for kind in TESTED:
        case = Example(5, sizes, precision, kind, plain=True, engine="sm_90", accumulation="fp32")
        a, b = case.operands()
        c = product(a, b) if product else CHAINS["torch"](a, b)
        yield case.judged(cast(c) if cast else case.cast(c))


@pytest.mark.parametrize("name", PRODUCT_FAULTS)
def test_faults_in_the_product_are_caught_in_bf16(name):
    assert catches(faulty("bfloat16", PRODUCT_FAULTS[name]))


@pytest.mark.parametrize("name", CAST_FAULTS)
def test_faults_in_the_cast_are_caught(name):
    assert catches(faulty("bfloat16", cast=CAST_FAULTS[name]))


FP32_FAULTS = {
    "tf32 operands": lambda a, b: CHAINS["torch"](rne(a, TF32), rne(b, TF32)),
    "bf16x2 operands": lambda a, b: CHAINS["torch"](bf16(a) + bf16(a - bf16(a)), bf16(b) + bf16(b - bf16(b))),
    "last K dropped": PRODUCT_FAULTS["last K dropped"],
    "scale 0.1 % off": PRODUCT_FAULTS["scale 0.1 % off"],
    "one element 5 % off": PRODUCT_FAULTS["one element 5 % off"],
}


@pytest.mark.parametrize("name", FP32_FAULTS)
def test_faults_are_caught_in_fp32(name):
    assert catches(faulty("float32", FP32_FAULTS[name]))


@pytest.mark.parametrize("name", ["last K dropped", "fp16 accumulator", "scale 0.1 % off", "one element 5 % off"])
def test_faults_are_caught_in_fp16_and_tf32(name):
    assert catches(faulty("float16", PRODUCT_FAULTS[name]))
    assert catches(faulty("tf32", PRODUCT_FAULTS[name]))


def test_the_rounding_of_partial_sums_is_a_contract_of_its_own():
    """Partial sums in bf16 break fp32 accumulation and keep "partials"; fp8 parts keep neither."""
    case = Example(5, (48, 48, 384), "bfloat16", "normal", plain=True, engine="sm_90", accumulation="fp32")
    a, b = case.operands()
    rounded = case.cast(parts(a, b, 4, chain, bf16))
    assert case.judged(rounded).alarms
    case.contract = contract("partials", "sm_90", "bfloat16")
    assert not case.judged(rounded).alarms
    assert case.judged(case.cast(parts(a, b, 4, chain, lambda p: rne(p, E4M3)))).alarms


def test_nan_and_infinity_exactly_where_the_reference_has_them():
    case = Example(2, (16, 16, 64), "float32", "specials", plain=True, accumulation="fp32")
    y = case.cast(CHAINS["torch"](*case.operands()))
    assert y.isnan().any()
    assert y.isinf().any()
    assert not case.judged(y).alarms
    for there in (math.nan, math.inf, -math.inf, 0.0):
        for spot in (y.isnan(), y == math.inf, y.isfinite()):
            index = tuple(spot.nonzero()[0].tolist())
            wrong = y.clone()
            wrong[index] = there
            if not (wrong.nan_to_num(7.0, 8.0, 9.0) == y.nan_to_num(7.0, 8.0, 9.0)).all():
                verdict = case.judged(wrong)
                assert verdict.alarms
                assert verdict.worst.index == index


def test_c0_is_not_read_where_beta_is_zero():
    case = Example(4, (8, 8, 16), "float32", "normal", plain=True)
    case.x["c0"] = torch.full((8, 8), math.nan)
    y = case.cast(CHAINS["chain"](*case.operands()))
    assert not case.judged(y).alarms
    assert case.judged(y * math.nan).alarms


def test_alpha_zero_may_read_a_and_b_or_not():
    case = Example(4, (8, 8, 16), "float32", "normal", plain=True)
    case.p["alpha"] = 0.0
    case.x["a"][3, 2] = math.nan
    y = torch.zeros(8, 8)
    assert not case.judged(y).alarms
    y[3] = math.nan
    assert not case.judged(y).alarms
    y[4] = math.nan
    assert case.judged(y).alarms


@pytest.mark.parametrize("sizes", [(0, 4, 3), (4, 0, 3), (4, 5, 0), (0, 0, 0)])
def test_empty_sizes(sizes):
    """K = 0 gives beta C0 + bias, exactly where that is a number of the format."""
    case = Example(4, sizes, "bfloat16", "normal", plain=True)
    case.x["bias"] = case.fill("normal", (sizes[1],), 1)
    y = case.x["bias"].double().expand(sizes[:2])
    if 0 in sizes[:2] or sizes[2] == 0:
        assert not case.judged(y).alarms
    if y.numel():
        assert case.judged(y + 1).alarms


def test_a_failing_element_is_explained():
    case = Example(4, (8, 8, 16), "bfloat16", "normal", plain=True, accumulation="fp32")
    y = case.cast(CHAINS["chain"](*case.operands()))
    y[2, 5] += 1
    verdict = case.judged(y)
    assert verdict.worst.index == (2, 5)
    assert abs(verdict.worst.got - verdict.worst.expected) > verdict.worst.allowed
    assert "(2, 5)" in verdict.explain()
    assert verdict.ratio > 1


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    tally, ratios, forced, gone = Counter(), Counter(), Counter(), Counter()
    for seed in range(first, first + count):
        case = Example(seed)
        c, way = case.kernel()
        verdict = case.judged(case.cast(c))
        tally[bool(verdict.alarms)] += 1
        for name, reading in verdict.readings.items():
            ratios[name] = max(ratios[name], reading.ratio)
        gone.update(verdict.withdrawn)
        if verdict.alarms:
            print(f"ALARM {case} by {way}: {verdict.explain()}", flush=True)
        if not FILLS[case.kind].random_sign and case.kind != "offgrid":
            always = case.judged(case.cast(c), statistical=True)
            forced[bool(always.alarms)] += 1
            gone.update(f"forced {n}" for n in always.withdrawn)
            if always.alarms:
                print(f"FORCED {case} by {way}: {always.explain()}", flush=True)
    print(f"outputs {dict(tally)}; largest ratios {dict(ratios)}; withdrawn {dict(gone)}")
    print(f"statistical readings forced on other fills: {dict(forced)}")
