"""Each rung sees the fault that it is there for, on a CPU kernel in its own process."""

from pathlib import Path

import pytest
from hypothesis import find, settings
from hypothesis.errors import NoSuchExample

from rooftest import recheck, rungs, strategies
from rooftest.bench import Bench
from rooftest.case import Case
from rooftest.errors import UsageError
from rooftest.rows import parse_row
from rooftest.spec import STRIDES

FOLDER = Path(__file__).parent


@pytest.fixture
def bench():
    opened = []

    def start(name, **keys):
        table = {"op": "gemm", "call": f"rung_kernels.py:{name}", "args": {"c": "out"}, "devices": ["cpu"], **keys}
        opened.append(Bench(parse_row(name, table, "test", str(FOLDER)), "cpu"))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def case(name, **changes):
    fields = {"sizes": {"M": 1200, "N": 24, "K": 16}, "fill": "normal", "seed": 3, **changes}
    return Case("gemm", name, "float32", "nn", **fields)


def wrong(bench, rung):
    """Whether any of 50 drawn cases fails the rung, as at the ci profile."""

    def fails(drawn):
        try:
            rungs.check(bench, rung, drawn)
        except rungs.Failure:
            return True
        return False

    try:
        find(
            strategies.cases(bench, rung, "float32", "nn"),
            fails,
            settings=settings(max_examples=50, derandomize=True, database=None, deadline=None),
        )
    except NoSuchExample:
        return False
    return True


def test_a_workload_is_judged_where_no_drawn_size_reaches(bench):
    assert recheck.workload(bench("right"), case("right")).ratio <= 1
    assert not wrong(bench("zeros_below"), "bound")
    with pytest.raises(rungs.Failure, match="zeros_below is wrong"):
        recheck.workload(bench("zeros_below"), case("zeros_below"))


def test_a_workload_that_does_not_fit_the_arena_is_not_judged(bench):
    assert recheck.workload(bench("right"), case("right", sizes={"M": 8192, "N": 8192, "K": 8192})) is None


def test_a_case_too_large_for_the_memory_is_told_before_it_is_drawn(bench):
    with pytest.raises(UsageError, match=r"the case needs .* MiB, the memory shared with the kernel has"):
        rungs.check(bench("right"), "bound", case("right", sizes={"M": 2**20, "N": 2**20, "K": 3}))


@pytest.mark.parametrize(("name", "fails"), [("right", False), ("order_by_rows", True)])
def test_batch_invariance(bench, name, fails):
    assert wrong(bench(name, claims=["batch-invariant"]), "determinism") == fails


@pytest.mark.parametrize(("name", "fails"), [("right", False), ("writes_far", True), ("strides_of_c", True)])
def test_contract(bench, name, fails):
    assert wrong(bench(name, strides=list(STRIDES)), "contract") == fails


@pytest.mark.parametrize("name", ["right", "skips_zeros"])
def test_zero_times_infinity_is_judged(bench, name):
    drawn = case(name, sizes={"M": 40, "N": 30, "K": 20}, fill="specials")
    if name == "right":
        rungs.check(bench(name), "contract", drawn)
        return
    with pytest.raises(rungs.Failure, match="expected nan"):
        rungs.check(bench(name), "contract", drawn)


def test_a_case_that_does_not_fit_is_said_in_one_line(bench):
    with pytest.raises(UsageError, match="the case needs 769 MiB"):
        rungs.check(bench("right"), "bound", case("right", sizes={"M": 8192, "N": 8192, "K": 8192}))


def test_a_way_of_being_called_blames_the_case_that_tries_it_again(bench, monkeypatch):
    """The second contents come from another seed, under which this way would not be tried."""
    blamed = []
    monkeypatch.setattr(rungs, "judge_result", lambda bench, rung, case, result, values: blamed.append(case))
    opened = bench("right")
    monkeypatch.setattr(opened, "run_twice", lambda *_: ("first", "second"), raising=False)
    drawn = case("right", seed=5)
    rungs._called(opened, drawn, "graph", None, {})
    assert blamed == [drawn, drawn]
