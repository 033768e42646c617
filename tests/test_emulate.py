"""The emulated matrix unit: against exact fractions, within the rows' bounds; and what tells it from another unit."""

import importlib.util
import json
import math
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftest.emulate import NAN, NO_PART, emulate
from rooftest.engines import CHAIN, ENGINES, INPUTS, Sums, accumulator, contract
from rooftest.errorbar import Value
from rooftest.formats import BF16, E4M3, E5M2, F64, FP16, FP32, TF32, rne
from rooftest.primitives import matmul

torch.set_num_threads(1)

HERE = Path(__file__).parent
FORMATS = {"tf32": TF32, "float16": FP16, "bfloat16": BF16, "e4m3": E4M3, "e5m2": E5M2}
UNITS = [(e, i) for e in ENGINES for i in INPUTS if len(accumulator(e, i)) > 1]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("verify_engines", HERE / "device" / "verify_engines.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def unit(inputs, engine="sm_90"):
    return accumulator(engine, inputs)[1]


def dot(row, f, a, b, start=0.0):
    a, b = (torch.tensor(x, dtype=F64) for x in (a, b))
    return float(emulate(row, a[None, :], b[:, None], f, start=torch.full((1, 1), start, dtype=F64)))


def numbers(f, seed, shape, low, high):
    """Normal numbers of the format, both signs, exponents from low to high within its range."""
    generator = torch.Generator().manual_seed(seed)
    low, high = max(low, f.emin), min(high, math.frexp(f.max)[1] - 2)
    e = torch.randint(min(low, high), high + 1, shape, generator=generator).to(F64)
    x = (1 + torch.rand(shape, generator=generator).to(F64)) * torch.exp2(e)
    return rne(torch.where(torch.rand(shape, generator=generator) < 0.5, x, -x), f).clamp(-f.max, f.max)


def by_fractions(row, f, a, b):
    """One output in exact arithmetic, written down from the row's description and nothing else."""

    def exponent(x, least):
        return max(math.frexp(x)[1] - 1, least) if x else NO_PART

    fraction, bits = round(-math.log2(row.align)), round(-math.log2(row.u))
    total = Fraction(0)
    for k in range(0, len(a), row.group):
        terms = [
            (Fraction(x) * Fraction(y), exponent(x, f.emin) + exponent(y, f.emin))
            for x, y in zip(a[k : k + row.group], b[k : k + row.group], strict=True)
        ]
        terms.append((total, exponent(float(total), -126)))
        unit_ = Fraction(2) ** (max(-400, *(e for _, e in terms)) - fraction)
        exact = sum(math.trunc(value / unit_) for value, _ in terms) * unit_
        spacing = Fraction(2) ** (exponent(float(exact), -126) - bits + 1)
        total = math.trunc(exact / spacing) * spacing
    return float(total)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(UNITS), st.integers(1, 70), st.integers(-20, 8), st.integers(0, 24), st.integers(0, 2**31))
def test_every_output_is_what_exact_fractions_give(which, length, low, spread, seed):
    row, f = unit(which[1], which[0]), FORMATS[which[1]]
    a, b = (numbers(f, seed + n, shape, low, low + spread) for n, shape in enumerate([(2, length), (length, 2)]))
    a[0, :: seed % 5 + 2] = 0
    a[1, 1:2] = 2.0 ** (f.emin - f.p + 1)  # the smallest subnormal
    got = emulate(row, a, b, f)
    for i in range(2):
        for j in range(2):
            assert float(got[i, j]) == by_fractions(row, f, a[i].tolist(), b[:, j].tolist())


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(UNITS), st.integers(1, 300), st.integers(-14, 8), st.integers(0, 24), st.integers(0, 2**31))
def test_the_error_stays_within_the_rows_bound(which, length, low, spread, seed):
    row, f = unit(which[1], which[0]), FORMATS[which[1]]
    a, b = (numbers(f, seed + n, shape, low, low + spread) for n, shape in enumerate([(4, length), (length, 4)]))
    if seed % 2:
        a, b = a.abs(), b.abs()
    got = emulate(row, a, b, f)
    p = a[:, None, :] * b.mT[None, :, :]
    exact = torch.tensor([[math.fsum(one) for one in line] for line in p.tolist()], dtype=F64)
    count = torch.full_like(exact, length)
    sums = Sums(exact, p.abs().sum(-1), (p * p).sum(-1), p.sign().sum(-1), count, length)
    assert bool(((got.to(F64) - exact).abs() <= row.bound(sums) * sums.g).all())


def test_a_subnormal_operand_is_charged_as_the_alignment_takes_it():
    # 2**-24 has the exponent of 2**-14, so that the step is cut off at 2**-39, not at 2**-49.
    a, b = [2.0**-24] + [2.0**-20] * 15, [1.0] + [2.0**-20] * 15
    row, error = unit("float16"), 15 * 2.0**-40
    assert dot(row, FP16, a, b) == 2.0**-24
    assert 2 * (2 * row.u + 17 * row.align) * (2.0**-24 + error) < error  # by sizes alone it could not be
    operands = (Value(torch.tensor([a])), Value(torch.tensor([b]).mT))
    assert float(matmul(*operands, contract("fp32", "sm_90", "float16")).b) > error


def test_a_zero_takes_no_part_in_the_alignment():
    # With the exponent of 2**-126, as in the public model, its product with 2**127 would have that of 2.
    assert dot(unit("bfloat16"), BF16, [0.0, 2.0**-30], [2.0**127, 1.0]) == 2.0**-30
    tiny = 2.0**-149 + 2.0**-152  # an empty accumulator leaves products below 2**-126 their bits, for the sum to carry
    assert dot(unit("bfloat16"), BF16, [tiny * 2.0**75] * 8, [2.0**-75] * 8) == 9 * 2.0**-149


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(UNITS), st.integers(1, 200), st.integers(0, 2**31))
def test_sums_that_fit_are_exact(which, length, seed):
    row, f = unit(which[1], which[0]), FORMATS[which[1]]
    most = min(2**f.p, math.isqrt(2**row.bits // length))
    generator = torch.Generator().manual_seed(seed)
    a, b = (
        torch.randint(-most, most + 1, s, generator=generator).to(F64).clamp(-f.max, f.max)
        for s in ((3, length), (length, 3))
    )
    a, b = rne(a, f), rne(b, f)
    a, b = (torch.where(x.abs() > most, x.sign(), x) for x in (a, b))
    assert torch.equal(emulate(row, a, b, f).to(F64), a @ b)


def test_what_a_step_keeps_by_hand():
    row = unit("float16")
    small = 2.0**-12
    assert dot(row, FP16, [1, small], [1, small]) == 1  # 1 + 2**-24 is kept by the alignment, cut off by fp32
    assert dot(row, FP16, [1, small, small], [1, small, small]) == 1 + 2**-23  # two of them are one ulp
    assert dot(row, FP16, [1, -small], [1, small]) == 1 - 2.0**-24
    assert dot(row, FP16, [1, -small], [1, small / 4]) == 1  # 2**-26 is below the alignment: no borrow
    # 1.5 x 1.5 = 2.25 has the exponent of 1 until it is normalised: 2**-25 beside it is still kept.
    assert dot(row, FP16, [1.5, -small], [1.5, small / 2]) == 2.25 - 2.0**-22
    assert dot(row, FP16, [2, -small], [1.125, small / 2]) == 2.25
    assert dot(row, FP16, [small] * 16, [small] * 16, start=1.0) == 1 + 2**-20  # the running sum is one of the terms
    fp8 = unit("e4m3")
    assert dot(fp8, E4M3, [256, 1], [64, 1]) == 2**14  # 2**14 + 1 needs 15 bits
    assert dot(fp8, E4M3, [256, -1], [64, 1]) == 2**14  # 1 is below the alignment of 2**14: 2**(14 - 13) is kept


def test_what_is_not_finite():
    row, inf, nan = unit("bfloat16"), math.inf, math.nan
    assert dot(row, BF16, [inf, 1], [1, 1]) == inf
    assert dot(row, BF16, [-(2.0**127), 1], [2, 1]) == -inf
    assert dot(row, BF16, [2.0**127, -(2.0**127)], [4, 4]) == 0  # within a step nothing overflows
    for a, b in (([inf, -inf], [1, 1]), ([inf, 1], [0, 1]), ([nan, 1], [1, 1])):
        got = emulate(row, torch.tensor([a], dtype=F64), torch.tensor([b], dtype=F64).mT, BF16)
        assert got.view(torch.int32).item() == NAN
    minus = emulate(row, torch.tensor([[-0.0]], dtype=F64), torch.ones(1, 1, dtype=F64), BF16)
    assert minus.view(torch.int32).item() == 0
    tiny = 2.0**-75
    assert dot(row, BF16, [tiny], [tiny]) == 0  # half of fp32's smallest
    assert dot(row, BF16, [-1.5 * tiny], [2 * tiny]) == -(2.0**-149)


def test_a_chain_is_no_matrix_unit():
    with pytest.raises(ValueError, match="fp32 chain"):
        dot(CHAIN, FP32, [1], [1])


# --- could the comparison with a device fail ------------------------------------------------------------------------

OTHERS = {
    "rounds to nearest": lambda row: replace(row, truncates=False),
    "one bit more": lambda row: replace(row, align=row.align / 2),
    "one bit less": lambda row: replace(row, align=row.align * 2),
    "half the group": lambda row: replace(row, group=row.group // 2),
    "twice the group": lambda row: replace(row, group=row.group * 2),
    "a bit less in the result": lambda row: replace(row, u=row.u * 2),
    "a bit more in the result": lambda row: replace(row, u=row.u / 2),
}


def silicon(row, f, zero=NO_PART):
    return lambda a, b: emulate(row, a, b.mT, f, zero=zero)


@pytest.mark.parametrize("inputs", FORMATS)
def test_the_same_unit_is_verified(script, inputs):
    row, f = unit(inputs), FORMATS[inputs]
    found = script.verify(row, f, silicon(row, f), "cpu", programs=2, size=8)
    assert found["verified"]
    assert found["outputs"] >= 8 * 3 * 2 * 8 * 8
    assert len(found["kinds"]) >= 9


@pytest.mark.parametrize("inputs", ["bfloat16", "e4m3"])
@pytest.mark.parametrize("other", OTHERS)
def test_another_unit_is_told_apart(script, monkeypatch, inputs, other):
    monkeypatch.setattr(script, "fit", lambda *_: [])
    row, f = unit(inputs), FORMATS[inputs]
    found = script.verify(row, f, silicon(OTHERS[other](row), f), "cpu", programs=2, size=8)
    assert not found["verified"]
    assert found["mismatches"] > 0.05 * found["outputs"]
    kind = next(each for each in found["kinds"].values() if each["mismatches"])
    assert kind["first"]["got"] != kind["first"]["want"]


@pytest.mark.parametrize(("inputs", "zero"), [("float16", FP16.emin), ("bfloat16", FP32.emin), ("e4m3", E4M3.emin)])
def test_a_unit_that_aligns_zeros_otherwise_is_told_apart(script, monkeypatch, inputs, zero):
    monkeypatch.setattr(script, "fit", lambda *_: [])
    row, f = unit(inputs), FORMATS[inputs]
    found = script.verify(row, f, silicon(row, f, zero), "cpu", programs=2, size=8)
    assert next(kind for kind, each in found["kinds"].items() if each["mismatches"]) == "zeros"


def test_the_search_finds_the_unit_that_is_there(script):
    row = unit("e4m3")
    there = replace(row, group=16, align=2.0**-15)
    seen = script.cases(E4M3, row.group, silicon(there, E4M3), "cpu", 2, 4)
    best = script.fit(row, E4M3, [case for case in seen if case.kind in ("ladder", "wide") and case.a.shape[-1] == 64])
    wanted = {"group": 16, "fraction": 15, "significant": 14, "truncates": True, "zero": NO_PART, "mismatches": 0}
    assert best[0] == wanted


# --- what the table says of itself -----------------------------------------------------------------------------------


def unbacked(rows, root):
    """Rows that call themselves verified without a committed comparison, of that very row, in which no bit differed."""
    out = []
    for inputs, row in rows:
        if not row.source.startswith("verified"):
            continue
        path = root / row.source.partition("(")[2].rstrip(")")
        entry = json.loads(path.read_text())["rows"].get(inputs, {}) if path.is_file() else {}
        same = {k: v for k, v in vars(row).items() if k not in ("name", "source")} == entry.get("parameters")
        if not (same and entry["verified"] and entry["mismatches"] == 0 and entry["outputs"] >= 10**6):
            out.append(inputs)
    return out


def test_rows_that_are_called_verified_have_a_committed_comparison():
    rows = [(inputs, unit(inputs, engine)) for engine, inputs in UNITS]
    assert not unbacked(rows, HERE.parent)
    for _, row in rows:
        assert row.source.startswith(("verified on", "from model"))


def test_a_row_cannot_call_itself_verified(script, tmp_path):
    row = replace(unit("e4m3"), source="verified on a GPU bit for bit (here.json)")
    assert unbacked([("e4m3", row)], tmp_path) == ["e4m3"]
    entry = {"parameters": script.parameters(row), "verified": True, "mismatches": 0, "outputs": 10**6}
    path = tmp_path / "here.json"
    for change, left in (({}, []), ({"mismatches": 1}, ["e4m3"]), ({"parameters": {}}, ["e4m3"])):
        path.write_text(json.dumps({"rows": {"e4m3": entry | change}}))
        assert unbacked([("e4m3", row)], tmp_path) == left
