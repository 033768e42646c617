"""Formats against torch's own casts, over all codes and midpoints."""

import math

import pytest
import torch

from rooftest.formats import (
    BF16,
    E4M3,
    E5M2,
    F64,
    FORMATS,
    FP16,
    FP32,
    PRECISIONS,
    TF32,
    binade,
    cell,
    lowbit,
    rne,
    ulp,
)

HALVES = [(BF16, torch.bfloat16), (FP16, torch.float16)]


def codes(dtype):
    """Every value of a 16-bit dtype, in order of its bits."""
    return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).double()


def same(x, y):
    return bool(((x == y) | (x.isnan() & y.isnan())).all())


@pytest.mark.parametrize(("f", "dtype"), HALVES)
def test_rne_is_torchs_cast_on_codes_midpoints_and_their_neighbours(f, dtype):
    """float32 holds codes, midpoints and neighbours exactly, so torch rounds once."""
    x = codes(dtype)
    assert same(rne(x, f), x)
    finite = x[x.isfinite()]
    quarter = ulp(finite, f) / 4
    for step in (-3, -2, -1, 1, 2, 3):
        y = (finite + step * quarter).float()
        for z in (y, torch.nextafter(y, torch.tensor(math.inf)), torch.nextafter(y, torch.tensor(-math.inf))):
            assert same(rne(z.double(), f), z.to(dtype).double())


def test_rne_of_fp32_is_torchs_cast():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(10000, generator=g, dtype=F64) * 2.0 ** torch.randint(-150, 128, (10000,), generator=g)
    assert same(rne(x, FP32), x.float().double())
    assert float(rne(torch.tensor([3.5e38], dtype=F64), FP32)) == math.inf


def test_rne_by_hand():
    x = torch.tensor([448.0, 464.0, 465.0, 1e9, -1e9, 2**-10, 2**-10 * 1.01, math.nan], dtype=F64)
    assert same(rne(x, E4M3), torch.tensor([448.0, 448, 448, 448, -448, 0, 2**-9, math.nan], dtype=F64))
    assert float(rne(torch.tensor(61440.0, dtype=F64), E5M2)) == math.inf  # half a spacing above 57344, ties to even
    assert float(rne(torch.tensor(1 + 2.0**-11, dtype=F64), TF32)) == 1.0
    assert float(rne(torch.tensor(1 + 3 * 2.0**-11, dtype=F64), TF32)) == 1 + 2 * 2.0**-10


@pytest.mark.parametrize(("f", "dtype"), HALVES)
def test_a_cell_is_what_rounds_to_its_value(f, dtype):
    """Its inside rounds to the value, what lies beyond does not; the ends belong to the even neighbour."""
    y = codes(dtype)
    y = y[~y.isnan()]
    low, high = cell(y, f)
    sign = torch.where(y < 0, -1.0, 1.0)
    inside, outside = 1 - 2.0**-40, 1 + 2.0**-40
    middle = torch.where(y.isinf(), low * 1.5, y.abs())
    for end in (low, high):
        near = middle + (end - middle) * inside
        assert same(rne(sign * near.nan_to_num(1e300), f), y)
        far = (middle + (end - middle) * outside)[end.isfinite()]
        assert not bool((rne(sign[end.isfinite()] * far, f) == y[end.isfinite()]).any())


def test_a_saturating_cell_has_no_end():
    low, high = cell(torch.tensor([448.0, -448.0, 416.0], dtype=F64), E4M3)
    assert low.tolist() == [432, 432, 400]
    assert high.tolist() == [math.inf, math.inf, 432]


def test_lowbit_and_binade():
    x = torch.tensor([1.0, 3.0, -12.0, 0.375, 2.0**-149, 0.0, math.inf, 1 + 2.0**-52], dtype=F64)
    assert lowbit(x).tolist() == [1, 1, 4, 0.125, 2.0**-149, math.inf, math.inf, 2.0**-52]
    assert bool(lowbit(torch.tensor(math.nan, dtype=F64)).isnan())
    assert binade(x[:4]).tolist() == [1, 2, 8, 0.25]


def test_tables():
    for name, f in FORMATS.items():
        assert f.name == name
        top = torch.tensor(f.max, dtype=F64)
        assert float(rne(top, f)) == f.max
    for p in PRECISIONS.values():
        whole = torch.tensor([2.0**p.integer_bits - 1, 2.0**p.integer_bits + 1], dtype=F64)
        assert (rne(whole, p.input) == whole).tolist() == [True, False]
    assert float(torch.finfo(torch.float16).max) == FP16.max
    assert float(torch.finfo(torch.bfloat16).max) == BF16.max
    assert float(torch.finfo(torch.float32).max) == FP32.max
    assert float(torch.finfo(torch.float8_e5m2).max) == E5M2.max
    assert float(torch.finfo(torch.float8_e4m3fn).max) == E4M3.max
