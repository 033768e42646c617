"""Fills: what each kind promises, on shapes of all sorts."""

import pytest
import torch

from rooftest.errors import UsageError
from rooftest.fills import FILLS, fill, kinds
from rooftest.formats import E4M3, F64, PRECISIONS, TF32, rne

ALL = [(p, k) for p in PRECISIONS for k in kinds(p)]
SHAPES = [(7, 5), (3, 7, 5), (5,), (0, 4), (4, 0), (1, 1), (2, 0, 3)]


def made(kind, shape, precision, seed=0, depth=64):
    return fill(kind, shape, precision, torch.Generator().manual_seed(seed), depth)


@pytest.mark.parametrize(("precision", "kind"), ALL)
def test_shape_dtype_seed_and_grid(precision, kind):
    row = PRECISIONS[precision]
    for shape in SHAPES:
        x = made(kind, shape, precision)
        assert x.shape == shape
        assert x.dtype == row.storage
        assert x.isfinite().all() or FILLS[kind].specials
        again = made(kind, shape, precision)
        assert torch.equal(x.nan_to_num(7), again.nan_to_num(7))
        on_grid = ((rne(x.to(F64), row.input) == x) | x.isnan()).all()
        assert on_grid or kind == "offgrid"
    other = made(kind, (40, 40), precision, seed=1)
    assert kind == "ones" or not torch.equal(other, made(kind, (40, 40), precision))


def test_never_only_zeros():
    for precision, kind in ALL:
        for shape in [(7, 5), (3, 3, 3), (1, 64)]:
            assert any(bool((made(kind, shape, precision, seed) != 0).any()) for seed in range(3)), (precision, kind)


@pytest.mark.parametrize("depth", [0, 1, 2, 64, 1000, 4096, 2**14, 2**20])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_exact_kinds_keep_their_sums_in_range(precision, depth):
    """sum |a b| stays under 2^24 lowest bits even if every element had the largest magnitude."""
    for kind in ("ones", "integers", "powers"):
        x = made(kind, (64, 64), precision, depth=depth).double().abs()
        low = float(x[x > 0].min()) if kind == "powers" else 1.0
        assert float(x.max()) ** 2 * max(depth, 1) <= 2**24 * low**2


@pytest.mark.parametrize("precision", PRECISIONS)
def test_integers_show_an_8_bit_downcast(precision):
    for depth in (64, 4096, 2**13):
        x = made("integers", (64, 64), precision, depth=depth).double()
        assert bool((x == x.round()).all())
        assert not torch.equal(rne(x, E4M3), x), depth
        assert bool(((x.abs() > 16) & (x.abs() % 2 == 1)).any())


def test_onehot_and_permutation():
    x = made("onehot", (4, 6, 9), "bfloat16").double()
    assert bool(((x != 0).sum(-1) == 1).all())
    assert bool((torch.log2(x.abs().sum(-1)) % 1 == 0).all())
    p = made("permutation", (8, 8), "float16").double()
    assert torch.equal(p @ p.mT, torch.eye(8, dtype=F64))
    wide = made("permutation", (4, 9), "float16").double()
    assert bool((wide.sum(-1) == 1).all())
    assert float(wide.sum(-2).max()) == 1


def test_offgrid_is_off_the_grid_and_only_for_tf32():
    x = made("offgrid", (32, 32), "tf32").double()
    assert bool((rne(x, TF32) != x).any())
    assert "offgrid" in kinds("tf32")
    for precision in ("float32", "float16", "bfloat16"):
        assert "offgrid" not in kinds(precision)


def test_specials_hold_all_three_or_none_and_whole_halves_of_zeros():
    held, zero = set(), set()
    for seed in range(32):
        x = made("specials", (64, 64), "float32", seed)
        held.add((int(x.isnan().sum()), int((x == float("inf")).sum()), int((x == float("-inf")).sum())))
        zero.add(tuple(int((half.nan_to_num(0, 0, 0) != 0).any()) for half in x.split(32, dim=1)))
    assert held == {(0, 0, 0), (1, 1, 1)}
    assert zero == {(0, 0), (1, 0), (1, 1)}


def test_the_table_is_whole():
    assert next(iter(FILLS)) == "ones"
    for f in FILLS.values():
        assert not (f.exact and f.random_sign)
        assert not (f.specials and f.random_sign)


def test_mistakes_name_what_exists():
    with pytest.raises(UsageError, match="bfloat16"):
        made("normal", (2,), "bf16")
    with pytest.raises(UsageError, match="integers"):
        made("random", (2,), "float32")
    with pytest.raises(UsageError, match="no fill 'offgrid' for float16"):
        made("offgrid", (2,), "float16")
