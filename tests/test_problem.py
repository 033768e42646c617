"""Tensors lie where the layout says, apart from each other, and cases stay inside the domain."""

import itertools
import math
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
    ("kind", "c0", "bias"),
    [("ragged", (10, 1), 1), ("stepped", (14, 2), 2), ("offset", (7, 1), 1), ("transposed", (1, 5), 1)],
)
def test_what_is_added_is_strided_too_as_far_as_it_has_rows(kind, c0, bias):
    placed = {p.name: p for p in problem.lay_out(GEMM, case(stride=kind)).inputs}
    assert placed["c0"].stride == c0
    assert placed["bias"].stride == (bias,)
    assert placed["bias"].offset_bytes % problem.ALIGN_BYTES == (4 if kind == "offset" else 0)


def test_each_tensor_has_the_strides_of_its_own_kind():
    drawn = case(stride="a:padded,b:stepped,c0:transposed,c:ragged")
    placed = {p.name: p.stride for p in problem.lay_out(GEMM, drawn).placements}
    assert placed == {"a": (16, 1), "b": (2, 6), "c0": (1, 5), "bias": (1,), "c": (10, 1)}


def drawn_for(keys, *, device="interpreter", rung="contract", count=300):
    """What is drawn for a row, in nt."""
    bench = SimpleNamespace(
        row=parse_row("k", {"op": "gemm", "call": "m:f", **keys}, "test"), spec=GEMM, signature=SIGNATURE, device=device
    )
    seen = []

    @settings(max_examples=count, database=None, deadline=None, derandomize=True)
    @given(strategies.cases(bench, rung, "float32", "nt"))
    def run(drawn):
        seen.append(drawn)

    run()
    return seen


@pytest.mark.parametrize("device", ["interpreter", "cpu", "cuda:0"])
def test_batches_are_of_any_small_size_and_sometimes_many(device):
    seen = {drawn.sizes.get("B") for drawn in drawn_for({}, device=device)}
    assert {None, *range(1, 10)} <= seen
    assert any(count is not None and count > 16 for count in seen)
    assert any(count is not None and count > 40000 for count in seen) == (device == "cuda:0")


def test_pairs_of_stride_kinds_meet_on_a_and_b_and_on_c0_and_c():
    seen = [drawn for drawn in drawn_for({"strides": STRIDES}, count=1500) if drawn.kinds]
    assert {(d.kind("a"), d.kind("b")) for d in seen} == set(itertools.product(STRIDES[:-1], repeat=2))
    beside = {(d.kind("c0"), d.kind("c")) for d in seen if "c0" in d.given}
    assert len(beside) > 36  # of 7 x 6
    assert {kind for d in seen if "bias" in d.given for kind in [d.kind("bias")]} == {
        "dense", "stepped", "offset", "broadcast",
    }  # fmt: skip
    assert all("c" in d.kinds or d.kind("c") == "dense" for d in seen)
    one = drawn_for({"strides": ["padded"]})
    assert {d.stride for d in one} == {"padded"}


@pytest.fixture(scope="module")
def attentions():
    """The sizes that are drawn for attention under the interpreter."""
    spec = load("attention")
    signature = Signature((*spec.inputs, "o", "lse", *spec.params), ("q", "k", "v", "o"), (), returns=False)
    row = parse_row("k", {"op": "attention", "call": "m:f"}, "test")
    bench = SimpleNamespace(row=row, spec=spec, signature=signature, device="interpreter")
    seen = []

    @settings(max_examples=300, database=None, deadline=None, derandomize=True)
    @given(strategies.cases(bench, "contract", "float32", "nnn"))
    def run(drawn):
        seen.append(drawn.sizes)

    run()
    return seen


def test_attentions_keys_are_drawn_as_what_is_summed_over(attentions):
    """None often enough, and more than two tiles of 64, also where an axis ends at 33 otherwise."""
    keys = [sizes["Sk"] for sizes in attentions]
    assert keys.count(0) > 6  # 300 x 1/9 edges x 2/5
    assert max(keys) > 128
    assert {65, 129} & set(keys)


def test_heads_beside_each_other_are_few_and_of_any_number(attentions):
    """Odd ones too: a kernel that takes two at a time leaves one over."""
    assert {3, 5, 6} <= {sizes["G"] * sizes["R"] for sizes in attentions}
    assert {2, 3} <= {sizes["R"] for sizes in attentions if sizes["G"] > 1}
    assert max(sizes["B"] * sizes["G"] * sizes["R"] for sizes in attentions) <= 12  # 6, and an edge of 2 beside them


def test_scalars_are_any_numbers_and_often_powers_of_two():
    alphas = [d.params["alpha"] for d in drawn_for({}) if "alpha" in d.params]
    assert all(float(torch.tensor(x)) == x for x in alphas if x != 0.3)  # numbers of float32
    listed = GEMM.params["alpha"]
    assert set(listed) <= set(alphas)
    other = [x for x in alphas if x not in listed]
    powers = sum(math.frexp(abs(x))[0] == 0.5 for x in other)
    assert 0.3 < powers / len(other) < 0.7
    assert min(map(abs, other)) < 2.0**-17 < 2.0**17 < max(map(abs, other)) < 2.0**21
    assert {x < 0 for x in other} == {True, False}
    assert strategies.number("any", 0, 20) == 1.0


def test_fifty_examples_are_fifty():
    seen = drawn_for({}, count=50)
    assert len({str(replace(d, fill="", seed=0)) for d in seen}) > 45
    assert len({d.seed for d in seen}) > 45
