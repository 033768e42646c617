"""Past 2^31 elements: which indices are judged, and that an offset which wraps is seen, with the boundary at 2^14."""

import re
from pathlib import Path
from types import SimpleNamespace

import hypothesis.strategies
import numpy as np
import pytest
import rich.console
import scipy.stats
import torch
import triton

import rooftest.header
import rooftest.run
import rooftest.strategies
import rooftest.tables
from rooftest import large, rungs
from rooftest.bench import Bench
from rooftest.case import Case
from rooftest.engines import Contract
from rooftest.problem import draw, lay_out
from rooftest.process import KernelError
from rooftest.rows import parse_row
from rooftest.spec import Large, load

FOLDER = Path(__file__).parent
BOUNDARY = 2**14
SPEC = load("gemm")
# Each passes the boundary in one tensor, by a few rows.
CASES = {
    c.name: c
    for c in (
        Large("a", {"M": 130, "N": 9, "K": 128}, "nn"),
        Large("a-transposed", {"M": 130, "N": 9, "K": 128}, "tn"),
        Large("b", {"M": 9, "N": 130, "K": 128}, "nn"),
        Large("b-transposed", {"M": 9, "N": 130, "K": 128}, "nt"),
        Large("c", {"M": 130, "N": 128, "K": 9}, "nn"),
        Large("c0", {"M": 130, "N": 128, "K": 9}, "nn", given=("c0",), params={"beta": 1.0}),
        Large("batch", {"B": 5, "M": 64, "N": 64, "K": 9}, "nn"),
        Large("pitch", {"M": 40, "N": 40, "K": 40}, "nn", pitch=512),
    )
}


@pytest.fixture
def judged():
    """The outcome of a kernel on a case, with small pieces and hashes of few words."""
    opened = []

    def run(name, case, dtype="float32"):
        table = {"op": "gemm", "call": f"large_kernels.py:{name}", "devices": ["cpu"]}
        table |= {"args": {"c": "out"}} if name != "returns" else {}
        opened.append(Bench(parse_row(name, table, "test", str(FOLDER)), "cpu"))
        return large.judge(opened[-1], problem(name, CASES[case], dtype), BOUNDARY)

    yield run
    for bench in opened:
        bench.close()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(large, "PIECE", 1000)
    monkeypatch.setattr(large, "WORDS", 64)


def problem(name, it, dtype="float32"):
    stride = "padded" if it.pitch else "dense"
    case = Case("gemm", name, dtype, it.layout, it.sizes, it.params, it.given, stride=stride, seed=5)
    return lay_out(SPEC, case, pitch=it.pitch)


@pytest.mark.parametrize("case", CASES)
def test_a_right_kernel_passes(judged, case):
    assert judged("right", case).ratio <= 1


@pytest.mark.parametrize("dtype", ["bfloat16", "tf32"])
def test_a_right_kernel_passes_in_other_dtypes(judged, dtype):
    assert judged("right", "c", dtype).ratio <= 1


def test_a_kernel_that_returns_its_result_is_judged_too(judged):
    assert judged("returns", "c").ratio <= 1


@pytest.mark.parametrize(
    ("name", "case", "found"),
    [
        ("reads_a", "a", "output c: worst element"),
        ("reads_a", "a-transposed", "output c: worst element"),
        ("reads_a", "pitch", "output c: worst element|output c is NaN"),
        ("reads_b", "b", "output c: worst element"),
        ("reads_b", "b-transposed", "output c: worst element"),
        ("reads_b", "pitch", "output c: worst element|output c is NaN"),
        ("reads_c0", "c0", "output c: worst element"),
        ("writes_c", "c", r"output c is NaN at \(128, 0\): never written"),
        ("writes_c", "batch", r"output c is NaN at \(4, 0, 0\): never written"),
        ("writes_c", "pitch", "changed memory that is no output, in or behind c|output c is NaN"),
        ("strays", "a", "changed memory that is no output, in or behind a "),
    ],
)
def test_an_offset_that_wraps_is_caught(judged, name, case, found):
    with pytest.raises(rungs.Failure, match=found) as caught:
        judged(name, case)
    assert f"{name} is wrong, rung large (tensors and offsets past 2^31 elements)" in str(caught.value)


@pytest.mark.parametrize(("name", "case"), [("reads_a", "c"), ("reads_b", "a"), ("writes_c", "b"), ("reads_c0", "a")])
def test_below_the_boundary_the_same_kernels_are_right(judged, name, case):
    assert judged(name, case).ratio <= 1


def test_an_exception_is_the_kernels(judged):
    with pytest.raises(KernelError, match="ValueError: too large"):
        judged("raises", "a")


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_first_last_and_the_boundary_are_judged_whatever_is_random(case, monkeypatch):
    monkeypatch.setattr(large, "JUDGED", 0)
    made = problem("k", case)
    found = large.indices(SPEC, made, BOUNDARY)
    for axis, chosen in found.items():
        assert {0, case.sizes[axis] - 1} <= set(chosen) <= set(range(case.sizes[axis]))
    crossing = next(p for p in made.placements if large._last(p) >= BOUNDARY)
    # The elements just before and after the boundary lie at chosen indices of each axis that is judged by itself.
    axes = SPEC.axes_of(crossing.name, case.sizes)
    for offset in (BOUNDARY - 1, BOUNDARY) if not case.pitch else ():
        rest = offset
        for dim in sorted(range(len(axes)), key=lambda dim: -crossing.stride[dim]):
            at, rest = divmod(rest, crossing.stride[dim])
            assert axes[dim] not in found or at in found[axes[dim]] or at == case.sizes[axes[dim]] - 1


def test_the_random_indices_are_many_on_both_sides_and_the_same_again():
    made = problem("k", Large("c", {"M": 1000, "N": 128, "K": 9}, "nn"))
    found = large.indices(SPEC, made, BOUNDARY)
    assert found == large.indices(SPEC, made, BOUNDARY)
    assert len(found["M"]) == large.JUDGED
    assert sum(i > BOUNDARY // 128 for i in found["M"]) > large.JUDGED // 3
    assert sum(i < BOUNDARY // 128 for i in found["M"]) >= 2


def test_the_reference_of_chosen_indices_is_that_of_the_whole_there():
    sizes = {"B": 3, "M": 7, "N": 6, "K": 5}
    case = Case("gemm", "k", "float32", "nn", sizes, {"beta": 1.0}, ("c0", "bias"), seed=3)
    values, index = draw(SPEC, case, "cpu"), {"B": [0, 2], "M": [1, 4, 6], "N": [0, 3]}
    assert set(index) == set(SPEC.separate)
    taken = {name: large.take(SPEC, sizes, name, value, index) for name, value in values.items()}
    whole, part = (SPEC.reference(v, case.params, Contract())["c"] for v in (values, taken))
    assert torch.equal(large.take(SPEC, sizes, "c", whole.v, index), part.v)
    assert torch.equal(large.take(SPEC, sizes, "c", whole.b, index), part.b)


def test_pieces_cover_a_tensor_once():
    for shape in ((130, 128), (5, 64, 64), (2000,), (0, 4), (3, 5000), (1, 1)):
        tensor = torch.zeros(shape)
        for at, piece in large.pieces(tensor):
            assert piece.numel() <= large.PIECE or tensor.dim() == 1
            assert torch.equal(tensor[at[:-1]][at[-1] : at[-1] + len(piece)], piece)
            piece.add_(1)
        assert bool((tensor == 1).all())


@pytest.mark.parametrize("byte", [0, 64 * 8 * 3 + 5, 64 * 8 * 300, -1])
def test_one_changed_byte_anywhere_outside_the_outputs_is_placed(byte):
    made = problem("k", CASES["c"])
    arena = torch.full((made.span_bytes,), 255, dtype=torch.uint8)
    before = large._hashes(made, arena)
    assert large._changed(made, before, large._hashes(made, arena)) == []
    (out,) = made.outputs
    for at in (byte % made.span_bytes, out.offset_bytes - 1, out.offset_bytes + out.extent_bytes):
        if out.offset_bytes <= at < out.offset_bytes + out.extent_bytes:
            continue
        arena[at] -= 1
        (found,) = large._changed(made, before, large._hashes(made, arena))
        start = int(re.search(r"bytes from (\d+)", found)[1])
        assert start <= at < start + 64 * 8
        arena[at] += 1


# --- the declared cases -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("it", SPEC.large, ids=[it.name for it in SPEC.large])
def test_each_declared_case_passes_the_boundary_and_fits_a_gpu_of_24_gib(it):
    made = problem("k", it, "bfloat16")
    assert max(large._last(p) for p in made.placements) >= large.BOUNDARY
    assert made.span_bytes < 17 * 2**30
    assert all(it.sizes[a] <= SPEC.axes[a].high for a in it.sizes)


def test_a_row_has_the_cases_of_its_domain():
    def names(**keys):
        row = parse_row("k", {"op": "gemm", "call": "k.py:k", **keys}, "test")
        return {declared.name for declared, _ in large.declared_for(row)}

    every = {it.name for it in SPEC.large}
    assert names(strides=["dense", "padded"]) == every
    assert names() == every - {"pitch"}
    assert names(without=["B"]) == every - {"pitch", "batch"}
    assert names(without=["c0"]) == every - {"pitch", "c0"}
    assert names(layouts=["nt"]) == {"b-transposed"}
    assert names(at_most={"M": 4096}) == {"b", "b-transposed", "batch"}
    assert names(devices=["cpu"]) == set()


pytest_plugins = "pytester"
# pytester forgets what a run inside this process imported; these do not bear being imported twice.
KEPT = (torch, triton, np, scipy.stats, hypothesis.strategies, rich.console, rooftest)
ROW = '[tool.rooftest.kernels."acme.mm"]\nop = "gemm"\ncall = "ops.py:mm"\nlayouts = ["nt"]\n'
NAME = "gemm/acme.mm/large-b-transposed/bfloat16-nt"


@pytest.fixture
def repo(pytester):
    pytester.makepyprojecttoml(ROW)
    pytester.makepyfile(test_it='import rooftest\n@rooftest.checks("acme.mm")\ndef test_it(check): check()')
    return pytester


@pytest.mark.parametrize(
    ("options", "count"), [([], 0), (["-m", "large"], 1), (["-k", "large"], 1), ([f"test_it.py::test_it[{NAME}]"], 1)]
)
def test_they_run_when_they_are_asked_for(repo, options, count):
    lines = repo.runpytest("--collect-only", "-q", *options).outlines
    assert sum("large-" in line for line in lines) == count
    assert count or "deselected" in lines[-1]


def test_without_a_gpu_they_are_skipped_with_the_reason(repo):
    result = repo.runpytest("-m", "large", "-rs")
    result.assert_outcomes(skipped=1, deselected=20)
    result.stdout.fnmatch_lines(["left out, 1 test: no CUDA device: tensors past 2^31 elements are not tried"])


def test_a_known_failure_past_the_boundary_is_an_id_like_others(repo):
    entry = f'[[tool.rooftest.xfail]]\nid = "{NAME}"\nreason = "acme#1"\nuntil = 2999-01-01\n'
    repo.makepyprojecttoml(ROW + entry)
    assert repo.runpytest("-k", "bound and float16", "--roof-device=cpu").ret == 0


def trial(monkeypatch, judge, free_bytes=2**40, name="b-transposed"):
    """A large case whose GPU is faked, but for the memory that it says is free."""
    row = parse_row("acme.mm", {"op": "gemm", "call": "ops.py:mm"}, "test")
    room = lambda size, beside: size + beside <= free_bytes  # noqa: E731
    bench = SimpleNamespace(
        spec=SPEC, room=room, torch_device="cuda:0", signature=SimpleNamespace(parameters=("a", "b"))
    )
    session = SimpleNamespace(
        cases=(), device=lambda _: "cuda:0", bench=lambda _: bench, words=lambda: ["pytest"],
        config=SimpleNamespace(stash=pytest.Stash()),
    )  # fmt: skip
    monkeypatch.setattr(large, "judge", judge)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_bytes, 2**40))
    return next(made for made in large.Large.of_row(session, row) if made.declared.name == name)


def test_a_failure_says_how_to_see_it_again(monkeypatch):
    def fails(_, problem):
        raise rungs.Failure(rungs.Outcome("large", problem.case, 7.5, "hard"), "output c: worst element")

    made = trial(monkeypatch, fails)
    with pytest.raises(large.Finding, match=re.escape(f'reproduce: pytest -m large -k "{NAME}"')):
        made()
    assert made.record["ratio"] == 7.5
    assert made.record["rung"] == "large"


def test_a_crash_is_a_finding_too(monkeypatch):
    def crashes(*_):
        raise KernelError("crash", "an illegal memory access was encountered")

    made = trial(monkeypatch, crashes)
    with pytest.raises(large.Finding, match=r"acme\.mm failed, rung large: crash: an illegal memory access"):
        made()
    assert made.record["reading"] == "crash"
    assert made.record["ratio"] is None


def test_a_kernel_that_takes_no_c0_is_not_asked_for_it(monkeypatch):
    with pytest.raises(pytest.skip.Exception, match="takes no c0, beta"):
        trial(monkeypatch, None, name="c0")()


def test_where_memory_is_short_it_says_how_much_is_needed(monkeypatch):
    made = trial(monkeypatch, None, free_bytes=5 * 2**30)
    with pytest.raises(pytest.skip.Exception, match="needs 7 GiB of GPU memory, 5 are free"):
        made()
