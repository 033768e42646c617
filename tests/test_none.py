"""A kernel that no specification describes: its row names a launch, and its machine code is judged, nothing else."""

import json

import pytest

pytest_plugins = "pytester"

KERNELS = """
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def halve(x_ptr, BLOCK: tl.constexpr):
        at = x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(at, tl.load(at) * 0.5 + 1.0)

    def launch():
        x = torch.zeros(8, 1024, device="cuda")
        halve[(8,)](x, BLOCK=1024)

    def asks(x):
        halve[(8,)](x, BLOCK=1024)
"""
ROW = """
    [tool.rooftest.kernels."acme.{0}"]
    op = "none"
    call = "ops.py:{0}"
    compiled = {{ sm_90 = {{ needs = ["{1}"] }}, sm_120 = {{ spills = 0 }} }}
"""
BOTH = """
    import rooftest

    @rooftest.checks(op="none")
    def test_code(check):
        check()

    @rooftest.measures(op="none")
    def test_speed(measurement):
        measurement()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Where what these tests compile is kept."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def project(pytester, monkeypatch, store):
    """A user's project; call it with the rows."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(store))
    pytester.makepyfile(ops=KERNELS, test_it=BOTH)

    def made(*rows):
        pytester.makepyprojecttoml("\n".join(ROW.format(*row) for row in rows))
        return pytester

    return made


@pytest.mark.parametrize("glob", [[], ["--roof-workloads=*"]])
def test_its_machine_code_is_judged_and_nothing_else(project, glob):
    pytester = project(("launch", "load 16 bytes"))
    result = pytester.runpytest_subprocess("--roof-results=run.json", *glob)
    result.assert_outcomes(passed=1, skipped=1)  # of speed there is no test
    run = json.loads((pytester.path / "run.json").read_text())
    (mine,) = run["conformance"]
    assert not run["benchmarks"]
    assert mine["id"] == "none/acme.launch/compiled/own-own"
    assert [(c["generation"], c["kernel"], c["launch"]["grid"]) for c in mine["compiled"]] == [
        ("sm_90", "halve", [8]), ("sm_120", "halve", [8]),
    ]  # fmt: skip
    # Nobody says how much work it does.
    assert [each["cycles"] for each in mine["bound"]] == [{}, {}]
    assert [each["read_bytes"] for each in mine["bound"]] == [{"fewest": None, "asked": None}] * 2


def test_a_broken_promise_and_a_launch_that_wants_arguments_are_told(project):
    pytester = project(("launch", "wgmma"), ("asks", "load 16 bytes"))
    result = pytester.runpytest_subprocess("-m", "compiled")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines([
        "none: acme.launch compiled for sm_90, example in own-own: halve has no wgmma",
        "  reproduce: pytest -m compiled -k none/acme.launch/compiled/own-own",
        "none: acme.asks compiled for sm_90, *: TypeError: asks() missing 1 required positional argument: 'x'",
    ])  # fmt: skip


def test_a_test_of_an_op_that_has_no_kernels_here_is_left_out(project):
    pytester = project()
    pytester.makepyfile(test_it=BOTH + "\n    def test_mine(): pass\n")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, deselected=2)
