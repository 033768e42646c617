"""The value: its arithmetic bounds what fp32 does, its shared terms say what elements have in common."""

import math

import pytest
import torch

from rooftest.errorbar import TRUNCATION, U, Value, const, lift, noise, read
from rooftest.formats import F64, TF32

torch.set_num_threads(1)
N = 2000


def data(seed, shape=(N,)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


OPERATIONS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "mixed": lambda x, y: (x * y + x) / (y * y + 1.5) - x,
    "right": lambda x, y: 1.0 / (2.0 - x) + 3.0 * y,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_fp32_arithmetic_stays_inside_the_bound_and_near_the_deviation(name):
    x, y = data(1), data(2)
    value = OPERATIONS[name](Value(x), Value(y))
    error = OPERATIONS[name](x, y).double() - value.v
    assert bool((error.abs() <= value.b).all())
    rms = float((error / value.var.clamp(min=1e-300).sqrt())[value.b > 0].square().mean().sqrt())
    assert 0.1 < rms < 1.05, rms


def test_exact_operations_add_nothing():
    x = Value(torch.arange(-8.0, 8.0))
    for y in (x + 3, x * 0.5, x - x, -x, (x + 1) * 4):
        assert float(y.b.abs().max()) == 0
        assert float(y.var.max()) == 0
    assert float((x * (1 / 3)).b.max()) > 0


def test_broadcasting_an_inexact_value_leaves_a_shared_term():
    row = Value(data(3, (4, 1))) * Value(data(5, (4, 1)))
    y = row * Value(data(4, (4, 5)))
    assert row.id in y.shared
    coefficient, fresh = y.shared[row.id]
    assert fresh == (True, False)
    assert torch.allclose(coefficient, row.s2.sqrt() * data(4, (4, 5)).double())
    assert torch.allclose(y.var, y.s2 + coefficient**2, rtol=1e-12, atol=0)


def test_named_constants_are_probed_and_carry_no_error():
    y = Value(data(5)) * const(0.125, "scale")
    assert torch.allclose(y.probes["scale"], y.v)
    assert not y.errors
    assert float((Value(torch.ones(3)) * const(0.125, "scale")).var.max()) == 0
    assert float(const(0.1).b) == pytest.approx(0.1 * U)


def test_truncation_is_no_random_error_but_counts_in_the_mean_square():
    y = Value(
        torch.ones(3), torch.ones(3) * 1e-6, torch.zeros(3), {TRUNCATION: (torch.full((3,), 1e-7).double(), (False,))}
    )
    assert not y.errors
    assert not y.probes
    assert torch.allclose(y.var, torch.full((3,), 1e-14).double())
    assert torch.allclose((y * 2.0).drift, torch.full((3,), 2e-7).double())


def test_noise_draws_errors_of_the_stated_variance_equal_for_equal_values():
    x = torch.cat([data(6), data(6)])
    value = Value(x) * Value(x + 1)
    with noise(1):
        twin = Value(x) * Value(x + 1)
    with noise(2):
        other = Value(x) * Value(x + 1)
    z = ((twin.v - value.v) / value.var.sqrt())[value.b > 0]
    assert torch.equal(twin.v[:N], twin.v[N:])
    assert not torch.equal(twin.v, other.v)
    assert float(z.square().mean()) == pytest.approx(1, abs=0.1)
    assert float(z.abs().max()) <= math.sqrt(3) * 1.01
    assert torch.equal((Value(x) * Value(x + 1)).v, value.v)  # noise ended


def test_what_is_not_finite_must_come_out_exactly():
    y = Value(torch.tensor([math.nan, math.inf, 1.0])) * 0.3
    assert y.b[:2].tolist() == [0, 0]
    assert float(y.b[2]) > 0


def test_results_below_the_normal_range_may_be_flushed():
    y = Value(torch.tensor([2.0**-80])) * Value(torch.tensor([2.0**-60]))
    assert float(y.b[0]) >= 2.0**-140


def test_reading_through_tf32_costs_a_spacing_off_its_grid():
    y = read(Value(torch.tensor([1.0, 1.0 + 2.0**-20, math.nan])), TF32)
    assert y.b.tolist() == [0, 2.0**-10, 0]


def test_lift():
    x = torch.ones(2)
    assert lift(Value(x)).exact
    assert lift(x).exact
    assert not lift(0.1).exact
    assert lift(0.5).exact


def test_maps_move_all_parts():
    y = (Value(data(7, (3, 1))) * Value(data(9, (3, 1)))) * Value(data(8, (3, 5)))
    z = y.mT
    assert z.v.shape == z.b.shape == z.var.shape == (5, 3)
    assert torch.equal(z.var, y.var.mT)
    assert next(iter(z.shared.values()))[1] == (False, True)
    assert torch.equal(z.v.to(F64), y.v.mT)
