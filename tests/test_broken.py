"""Broken GEMMs, one slip each: all are right outside their trigger, and the judge finds every trigger.

The clean one, from which each differs by its slip, is the control that no rung may catch.
"""

import difflib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from zlib import crc32

import pytest
import torch
from hypothesis import errors, given, seed

from rooftest import profiles, rungs, strategies
from rooftest.bench import Bench
from rooftest.process import KernelError
from rooftest.rows import DEVICES, parse_row
from rooftest.spec import FLOATS, STRIDES

HERE = Path(__file__).parent
FOLDER = HERE / "broken"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
GPU = torch.cuda.is_available()
DEVICE = "cuda:0" if GPU else "interpreter"
LAYOUTS = ("nn", "nt", "tn", "tt")
# Each dtype in one layout, then in the next: the first four pairs show every dtype and every layout.
PAIRS = [(dtype, LAYOUTS[(i + turn) % 4]) for turn in range(4) for i, dtype in enumerate(FLOATS)]

# Not the clean kernel with a slip: another library, and two that split K and so need a workspace and its epilogue.
OTHERS = {"torch_default", "race", "lost_update"}


def constant(name, word):
    line = next(line for line in (FOLDER / f"{name}.py").read_text().splitlines() if line.startswith(f"{word} = "))
    return line.removeprefix(f"{word} = ")


def here(names):
    """The names that can exist on this machine; the others are skipped, with the reason that stands in the file."""
    place = "gpu" if GPU else "cpu"
    marks = {
        n: pytest.mark.skip(
            reason=f"tests/broken/{n}.py exists on a GPU only: {constant(n, 'WHERE').partition('# ')[2]}"
        )
        for n in names
        if f'"{place}"' not in constant(n, "WHERE")
    }
    return [pytest.param(n, marks=marks.get(n, ())) for n in names]


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OTHERS])
def test_a_broken_kernel_is_the_clean_one_but_for_its_slip(name):
    def body(stem):
        text = (FOLDER / f"{stem}.py").read_text().split('"""', 2)[2]
        return [line for line in text.splitlines() if line.strip() and not line.startswith(("TRIGGER", "WHERE"))]

    changed = [x for x in difflib.ndiff(body("clean"), body(name)) if x.startswith(("+ ", "- "))]
    assert len(changed) <= 11, "\n".join(changed)


@pytest.fixture(scope="module")
def probed():
    """What plain float64 says of every kernel, in a process of its own, without the judge."""
    mine = [p.values[0] for p in here(NAMES) if not p.marks]
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {} if GPU else {"TRITON_INTERPRET": "1"}
    command = [sys.executable, str(HERE / "broken_probe.py"), *mine]
    done = subprocess.run(command, check=False, capture_output=True, env=env)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", here(NAMES))
def test_right_outside_its_trigger_and_wrong_within(probed, name):
    assert probed[name] == {"wrong outside": [], "right within": []}


def examine(bench, rung, dtype, layout):
    """Draw and judge as the suite does for this rung, dtype and layout; raises what it finds."""
    settings = profiles.chosen("ci", Path(tempfile.gettempdir()), shrink=False)

    @seed(crc32(f"gemm/{bench.row.name}/{rung}/{dtype}-{layout}".encode()))
    @settings
    @given(strategies.cases(bench, rung, dtype, layout))
    def example(case):
        rungs.check(bench, rung, case)

    example()


def judged(name, pairs):
    """What the ladder says of one kernel at the ci profile: the first finding, or None."""
    table = {"op": "gemm", "call": f"{name}.py:matmul", "args": {"c": "out"}, "strides": STRIDES, "devices": DEVICES}
    row = parse_row(f"broken.{name}", table, "tests/test_broken.py", str(FOLDER))
    bench = Bench(row, DEVICE)
    profiles.register()
    try:
        for rung, (dtype, layout) in ((r, p) for r in rungs.RUNGS for p in pairs):
            if not rungs.RUNGS[rung].applies(row):
                examine(bench, rung, dtype, layout)
    except (rungs.Failure, KernelError, errors.Flaky) as error:  # a race may be right when it is run again
        return str(error)
    finally:
        bench.close()
    return None


@pytest.mark.parametrize("name", here([n for n in NAMES if n != "clean"]))
def test_the_judge_catches_it(name):
    found = judged(name, PAIRS)
    assert found is not None
    print(found)  # shown with -rP: what a person would have read


def test_the_judge_leaves_the_clean_one_alone():
    assert judged("clean", PAIRS[:4]) is None
