"""Broken kernels, one slip each: all are right outside their trigger, and the judge finds every trigger.

The clean ones, from which each differs by its slip, are the controls that no rung may catch. README.md in broken/ lists
them by kind, with the public bugs that they were rebuilt from.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # broken is a package of the tests, and two scripts beside them import it too

from broken import CONTROLS, FAULTS, KINDS  # noqa: E402
from broken_score import GPU, PLACE, judged  # noqa: E402

README = (HERE / "broken/README.md").read_text()
ALL = {**CONTROLS, **FAULTS}


def here(names, *, judged=False):
    """The names that can exist on this machine; the others are skipped, with the reason that stands in the fault."""

    def reason(fault):
        if PLACE not in fault.places:
            return f"{fault.name} exists on a {' or '.join(fault.places)} only: {fault.why}"
        if judged and fault.waits:
            return f"{fault.name} is beyond examples: the rung {fault.waits} has cases"
        return f"{fault.name} is not caught: {fault.missed}" if judged and fault.missed else None

    marks = {n: [pytest.mark.skip(reason=why)] if (why := reason(ALL[n])) else [] for n in names}
    return [pytest.param(n, marks=marks[n]) for n in names]


def firsts(op):
    """The first of each kind: all that there is time for where a call takes long; broken_score.py judges all."""
    return [next(f.name for f in FAULTS.values() if (f.op, f.kind) == (op, kind)) for kind in KINDS[op]]


def test_each_kind_has_at_least_two_faults_that_no_public_bug_suggested():
    own = Counter((fault.op, fault.kind) for fault in FAULTS.values() if not fault.lines)
    assert [(op, kind) for op, kinds in KINDS.items() for kind in kinds if own[op, kind] < 2] == []


def test_the_readme_lists_every_fault_and_every_public_line_once_built():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\d, ]+|own) \|", README, re.MULTILINE)
    assert {(name, kind, lines) for name, kind, lines in rows} == {
        (f.name, f.kind, ", ".join(map(str, f.lines)) or "own") for f in FAULTS.values()
    }
    waiting = {int(n) for line in re.findall(r"^\| ([\d, ]+) \|", README, re.MULTILINE) for n in line.split(", ")}
    assert waiting.isdisjoint(n for f in FAULTS.values() for n in f.lines)


@pytest.mark.parametrize("name", ALL)
def test_a_fault_can_be_made_from_its_base(name):
    compile(ALL[name].source(), name, "exec")


@pytest.fixture(scope="module")
def probed():
    """What plain float64 says of every kernel, in a process of its own, without the judge."""
    mine = [p.values[0] for p in here(ALL) if not p.marks]
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"OMP_NUM_THREADS": "1"} | ({} if GPU else {"TRITON_INTERPRET": "1"})
    command = [sys.executable, str(HERE / "broken_probe.py"), *mine]
    done = subprocess.run(command, check=False, capture_output=True, env=env)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", here(ALL))
def test_right_outside_its_trigger_and_wrong_within(probed, name):
    assert probed[name] == {"wrong outside": [], "right within": []}


JUDGED = [*(name for name, fault in FAULTS.items() if fault.op == "gemm"), *firsts("attention")]


@pytest.mark.parametrize("name", here(JUDGED, judged=True))
def test_the_judge_catches_it(name, tmp_path):
    caught = judged(name, tmp_path)
    assert caught is not None
    print(caught.text)  # shown with -rP: what a person would have read


# Attention's are rows of the suites, where every rung judges them.
@pytest.mark.parametrize("name", [name for name, fault in CONTROLS.items() if fault.op == "gemm"])
def test_the_judge_leaves_the_clean_ones_alone(name, tmp_path):
    assert judged(name, tmp_path, 4) is None
