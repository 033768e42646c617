"""--roof-configs=all: each configuration of a kernel is judged by itself, and the one that is wrong is named."""

import json
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies
import numpy as np
import pytest
import rich.console
import scipy.stats
import torch
import triton

import rooftest.bench
import rooftest.conformance
import rooftest.header
import rooftest.process
import rooftest.run
import rooftest.rungs
import rooftest.strategies
import rooftest.tables
from rooftest.case import Case
from rooftest.conformance import Tally

pytest_plugins = "pytester"
# pytester forgets what a run inside this process imported; these do not bear being imported twice.
KEPT = (torch, triton, np, scipy.stats, hypothesis.strategies, rich.console, rooftest)

# Right but in one configuration; the last of four, which a smoke run in this dtype and layout never draws.
OPS = """
CONFIGS = {"narrow": 16, "square": 32, "wide": 64, "tall": 128}

def matmul(a, b, *, out, config=None):
    assert config in (None, *CONFIGS)
    out.copy_((a.double() @ b.double()).to(out.dtype))
    if config == "tall" and out.numel():
        out[..., -1, :] = 0

def crashing(a, b, *, out, config=None):
    if config == "square":
        import os
        os.abort()
    out.copy_((a.double() @ b.double()).to(out.dtype))
"""
ROW = """[tool.rooftest.kernels."acme.{name}"]
op = "gemm"
call = "ops.py:{name}"
configs = "CONFIGS"
args = {{ c = "out" }}
devices = ["cpu"]
dtypes = ["float32"]
layouts = ["nn"]
"""
ALL = {None, "narrow", "square", "wide", "tall"}


@pytest.fixture
def run(pytester):
    def start(name, *options):
        pytester.makepyprojecttoml(ROW.format(name=name))
        pytester.makepyfile(
            ops=OPS, test_it=f'import rooftest\n@rooftest.checks("acme.{name}")\ndef test_it(check): check()'
        )
        result = pytester.runpytest("-k", "bound", "--roof-device=cpu", "--roof-results=r.json", *options)
        (record,) = json.loads(Path("r.json").read_text())["conformance"]
        return result, record

    return start


def test_a_kernel_wrong_in_one_configuration_is_caught_and_the_configuration_named(run):
    assert run("matmul")[0].ret == 0  # what a few configurations leave unseen
    result, record = run("matmul", "--roof-configs=all", "--roof-examples=4")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "gemm: acme.matmul is wrong, rung bound*",
            "  case: gemm acme.matmul float32 nn * config=tall *",
            "  by configuration: wrong in tall; right in its own choice, narrow, square, wide",
        ]
    )
    told = {part["config"]: part for part in record["configs"]}
    assert set(told) == ALL
    assert [name for name, part in told.items() if part["wrong"]] == ["tall"]
    assert all(part["examples"] == 4 for name, part in told.items() if name != "tall")
    assert record["examples"] == sum(part["examples"] for part in told.values())


def test_the_examples_are_divided_but_none_gets_fewer_than_ten(run):
    told = run("matmul", "--roof-configs=all", "--roof-examples=60")[1]["configs"]
    assert {part["examples"] for part in told if not part["wrong"]} == {12}
    told = run("matmul", "--roof-configs=all")[1]["configs"]
    assert {part["examples"] for part in told if not part["wrong"]} == {10}


def test_a_configuration_that_crashes_leaves_the_others_judged(run):
    result, record = run("crashing", "--roof-configs=all", "--roof-examples=3")
    result.stdout.fnmatch_lines(["  by configuration: wrong in square; right in its own choice, narrow, wide, tall"])
    assert {part["config"]: part["reading"] for part in record["configs"]}["square"] == "crash"
    assert {part["config"] for part in record["configs"]} == ALL


def test_a_configuration_whose_examples_computed_nothing_is_not_decided(run, monkeypatch):
    """The one example of one configuration has no rows."""
    empty = Case("gemm", "acme.matmul", "float32", "nn", {"M": 0, "N": 5, "K": 5})
    filled = replace(empty, sizes={"M": 4, "N": 5, "K": 5})
    real = rooftest.conformance._under
    drawn = hypothesis.strategies.just(empty)
    monkeypatch.setattr(rooftest.strategies, "cases", lambda *_, **__: drawn)
    monkeypatch.setattr(
        rooftest.conformance, "_under", lambda config, case: real(config, filled if config != "wide" else case)
    )
    result, record = run("matmul", "--roof-configs=all", "--roof-examples=1")
    assert [part["config"] for part in record["configs"] if not part["filled"]] == ["wide"]
    result.stdout.fnmatch_lines(["  by configuration: wrong in tall; right in *, square; not judged wide"])
    tally = Tally(filled=1, parts={None: Tally(filled=1), "wide": Tally()})
    assert tally.empty() == "every example of wide had an axis of size 0: nothing was computed"


@pytest.mark.parametrize(("options", "count"), [(["--roof-profile=nightly", "--roof-examples=2"], 5), ([], 0)])
def test_nightly_judges_each_by_itself(run, options, count):
    assert len(run("matmul", *options)[1].get("configs", ())) == count
