"""State of the whole process that a kernel leaves changed: told in one line, and the process goes."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rooftest import states
from rooftest.kernel import find

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import boundary  # noqa: E402 - it lies beside this file
from boundary import PLACEMENTS, POISON, cause_of, views  # noqa: E402 - it lies beside this file

arena, start = boundary.arena, boundary.start

ON_CUDA = ("preferred BLAS library", "seed of torch on CUDA", "current CUDA device", "current CUDA stream")
WATCHED = [name for name in states.STATES if name not in ON_CUDA]


def test_each_watched_state_is_changed_by_a_test():
    assert list(find("process_kernels.py:CHANGES", str(HERE))) == WATCHED


@pytest.mark.parametrize("name", WATCHED)
def test_a_state_left_changed_is_told_and_costs_the_process(start, monkeypatch, name):
    monkeypatch.setenv("HOW", name)
    kernel = start("changes")
    said = cause_of(kernel)
    print(said)
    assert said.startswith("changed global state: ")
    assert name in said
    assert kernel._child is None


def test_what_was_changed_is_said_in_words(start, monkeypatch):
    said = {}
    for name in ("default dtype", "environment variable", "running thread", "resource limit"):
        monkeypatch.setenv("HOW", name)
        said[name] = cause_of(start("changes")).removeprefix("changed global state: ")
    assert said == {
        "default dtype": "default dtype is torch.float64, was torch.float32",
        "environment variable": "environment variable ACME",  # its contents may be a password
        "running thread": "running thread late",
        "resource limit": "resource limit NOFILE",
    }


@pytest.mark.parametrize("name", [*sorted(states.IMPORTS_SET), "default dtype"])
def test_what_importing_a_library_sets_is_not_told(start, monkeypatch, name):
    monkeypatch.setenv("HOW", name)
    monkeypatch.setenv("IMPORT", "colorsys")
    kernel = start("changes")
    if name in states.IMPORTS_SET:
        kernel.call(PLACEMENTS, POISON)
    else:
        assert cause_of(kernel).startswith("changed global state: ")


def test_an_exception_that_leaves_a_state_changed_costs_the_process(start, monkeypatch):
    monkeypatch.setenv("HOW", "default dtype")
    kernel = start("changes_and_raises")
    assert cause_of(kernel).startswith("exception: ValueError: no")
    assert kernel._child is None


def test_a_kernel_that_puts_back_what_it_changes_is_right(start, arena):
    kernel = start("restores")
    for _ in range(2):
        kernel.call(PLACEMENTS, POISON)
    a, b, c = views(arena)
    assert torch.equal(c, a @ b)


def test_states_of_cuda_are_read_once_it_is_in_use(monkeypatch):
    before = states.read()
    stream = SimpleNamespace(cuda_stream=3)
    for name, value in {
        "is_initialized": True, "current_device": 1, "initial_seed": 7, "current_stream": stream,
        "is_current_stream_capturing": False,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    told = states.changes(before, states.read())
    assert told == [
        "seed of torch on CUDA is 7, was None",
        "current CUDA device is 1, was None",
        "current CUDA stream is 3, was None",
        "function torch.cuda.current_stream",
    ]


def test_a_state_that_cannot_be_read_ends_nothing(monkeypatch):
    monkeypatch.setattr(states, "STATES", {"working folder": lambda: (_ for _ in ()).throw(FileNotFoundError())})
    assert states.read()["working folder"] == "FileNotFoundError"
