"""Tensors lie where the layout says, apart from each other, and cases stay inside the domain."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftest import problem, strategies
from rooftest.arena import write
from rooftest.bench import ARENA_BYTES
from rooftest.case import Case
from rooftest.process import Signature
from rooftest.rows import parse_row
from rooftest.spec import STRIDES, load

GEMM = load("gemm")
SIGNATURE = Signature(
    ("a", "b", "out", "alpha", "beta", "c0", "bias"), ("a", "b", "out"), ("small", "large"), returns=False
)


def case(**kwargs):
    sizes = {"M": 5, "N": 7, "K": 3}
    return Case("gemm", "k", "float32", "nt", **{"sizes": sizes, "given": ("c0", "bias"), **kwargs})


@pytest.mark.parametrize("kind", STRIDES)
@pytest.mark.parametrize("layout", GEMM.layouts)
def test_no_two_elements_share_a_byte(kind, layout):
    """Number every element of every tensor: each number must still be there after all have been written."""
    laid = problem.lay_out(
        GEMM, Case("gemm", "k", "float32", layout, {"B": 2, "M": 5, "N": 7, "K": 3}, {}, ("c0", "bias"), kind)
    )
    memory = torch.zeros(laid.span_bytes, dtype=torch.uint8)
    counter, expected = 0, {}
    for placement in laid.placements:
        if kind == "broadcast" and placement in laid.inputs:
            continue  # its elements share bytes on purpose
        view = placement.view(memory)
        expected[placement.name] = torch.arange(counter, counter + view.numel(), dtype=torch.float32).view(view.shape)
        counter += view.numel()
        view.copy_(expected[placement.name])
    for placement in laid.placements:
        if placement.name in expected:
            assert torch.equal(placement.view(memory), expected[placement.name])


@pytest.mark.parametrize("sizes", [{"M": 5, "N": 7, "K": 3}, {"B": 2, "M": 5, "N": 7, "K": 3}])
@pytest.mark.parametrize("layout", GEMM.layouts)
def test_what_is_broadcast_repeats_in_its_contents_and_is_written_once(layout, sizes):
    drawn = replace(case(stride="broadcast", sizes=sizes, params={"beta": 1.0}), layout=layout)
    laid, values = problem.lay_out(GEMM, drawn), problem.draw(GEMM, drawn, "cpu")
    memory = torch.zeros(laid.span_bytes, dtype=torch.uint8)
    for placement in laid.inputs:
        assert 0 in placement.stride
        write(placement.view(memory), values[placement.name])
        assert torch.equal(placement.view(memory), values[placement.name])
    assert all(0 not in placement.stride for placement in laid.outputs)
    assert problem.strides((2, 5, 3), "broadcast", transposed=False) == (0, 3, 1)
    assert problem.strides((5, 3), "broadcast", transposed=True) == (1, 0)


@pytest.mark.parametrize("kind", ["padded", "ragged"])
def test_matrices_of_a_batch_lie_further_apart_than_their_rows(kind):
    matrices, rows, _ = problem.strides((2, 5, 7), kind, transposed=False)
    assert matrices > 5 * rows


def test_layout_letters():
    a, b, *_ = problem.lay_out(GEMM, case()).inputs
    assert a.stride == (3, 1)
    assert b.stride == (1, 3)


def test_tensors_stand_a_guard_apart():
    laid = problem.lay_out(GEMM, case())
    for one, two in itertools.pairwise(laid.placements):
        assert two.offset_bytes - one.offset_bytes >= problem.GUARD_BYTES


def test_what_must_not_be_read_is_nan():
    values = problem.draw(GEMM, case(params={"beta": 0.0}), "cpu")
    assert values["c0"].isnan().all()
    assert not problem.draw(GEMM, case(params={"beta": 1.0}), "cpu")["c0"].isnan().any()


def test_the_seed_is_the_data():
    one, two, other = (problem.draw(GEMM, case(seed=s), "cpu") for s in (1, 1, 2))
    assert all(torch.equal(one[n], two[n]) for n in one)
    assert not torch.equal(one["a"], other["a"])


@pytest.mark.parametrize("rung", ["contract", "exact", "law", "bound"])
def test_cases_stay_inside_the_domain(rung):
    table = {"op": "gemm", "call": "m:f", "multiple": {"K": 8, "N": 16}, "at_most": {"M": 40}, "at_least": {"K": 16}}
    row = parse_row("k", table | {"without": ["B"], "claims": ["deterministic"]}, "test")
    bench = SimpleNamespace(row=row, spec=GEMM, signature=SIGNATURE, device="cuda:0")
    sizes_seen = set()

    @settings(max_examples=200, database=None, deadline=None, derandomize=True)
    @given(strategies.cases(bench, rung, "float32", "nt"))
    def run(drawn):
        assert row.admits("float32", "nt", drawn.sizes)
        assert "B" not in drawn.sizes
        assert "beta" not in drawn.params or "c0" in drawn.given
        sizes_seen.add(drawn.sizes["N"])

    run()
    assert {16, 48} <= sizes_seen
    assert len(sizes_seen) > 8  # of the 32 multiples of 16 up to 512
    assert (0 in sizes_seen) == (rung != "law")


@pytest.mark.parametrize(
    ("device", "keys", "reached"),
    [("cuda:0", {}, 2**19), ("cuda:0", {"multiple": {"K": 64}}, 2**15), ("interpreter", {}, 0)],
)
def test_some_cases_on_a_gpu_are_as_tall_as_the_contract_allows_and_fit_the_memory(device, keys, reached):
    table = {"op": "gemm", "call": "m:f", "tile": {"M": 128, "N": 256}, "strides": STRIDES, **keys}
    row = parse_row("k", table, "test")
    bench = SimpleNamespace(row=row, spec=GEMM, signature=SIGNATURE, device=device)
    tallest = [0]

    @settings(max_examples=200, database=None, deadline=None, derandomize=True)
    @given(strategies.cases(bench, "contract", "float32", "nt"))
    def run(drawn):
        tallest.append(max(drawn.sizes["M"], drawn.sizes["N"]))
        # Two side by side, as where two calls belong together.
        assert 2 * problem.lay_out(GEMM, drawn).span_bytes <= ARENA_BYTES["cuda"]

    run()
    assert max(tallest) > reached
    assert reached or max(tallest) < 2**10


@given(st.sampled_from(STRIDES), st.booleans(), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_strides_of_any_shape(kind, transposed, shape):
    assert len(problem.strides(tuple(shape), kind, transposed=transposed)) == len(shape)


def test_the_dtypes_and_layouts_of_a_row_see_every_configuration():
    row = parse_row("k", {"op": "gemm", "call": "m:f", "dtypes": ["float16", "bfloat16"]}, "test")
    names = tuple(f"c{i}" for i in range(7))
    pairs = list(itertools.product(row.dtypes, row.layouts))
    seen = [strategies.few(names, row, dtype, layout) for dtype, layout in pairs]
    assert {name for two in seen for name in two} == set(names)
    assert all(len(two) == 2 for two in seen)
    assert strategies.few(("only",), row, "bfloat16", "tt") == ("only",)


@pytest.mark.parametrize(
    ("kind", "c0", "bias"), [("ragged", (7, 1), 1), ("stepped", (14, 2), 2), ("offset", (7, 1), 1)]
)
def test_what_is_optional_is_stepped_and_offset_too_but_has_no_gaps(kind, c0, bias):
    placed = {p.name: p for p in problem.lay_out(GEMM, case(stride=kind)).inputs}
    assert placed["c0"].stride == c0
    assert placed["bias"].stride == (bias,)
    assert placed["bias"].offset_bytes % problem.ALIGN_BYTES == (4 if kind == "offset" else 0)
