"""The merge gate from end to end on a simulated GPU: a git repository with a kernel, compared with revisions of it."""

import math
import shutil
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

import hypothesis.strategies
import numpy as np
import pytest
import rich.console
import scipy.optimize
import scipy.stats
import torch
import triton

import rooftest.bench
import rooftest.gate.trial
import rooftest.judge
import rooftest.process
import rooftest.recheck
import rooftest.run
import rooftest.rungs
import rooftest.tables
from rooftest import host, session, store
from rooftest.gate import arms, spread
from rooftest.spec import Workload

pytest_plugins = "pytester"
ROOT = Path(__file__).parents[1]
# pytester forgets what a run inside this process imported; these do not bear being imported twice.
KEPT = (torch, triton, np, scipy.stats, scipy.optimize, hypothesis.strategies, rich.console, rooftest)

ROW = """[tool.rooftest.kernels."acme.matmul"]
op = "gemm"
call = "{call}"
args = {{ c = "out" }}
dtypes = ["float32"]
layouts = ["nn"]
devices = ["cuda", "cpu"]
{more}
"""
TEST = 'import rooftest\n@rooftest.measures("acme.matmul")\ndef test_speed(measurement): measurement()\n'
FAST = '"""Ours."""\nimport torch\n\ndef matmul(a, b, out):\n    torch.matmul(a, b, out=out)\n'
SLOW = FAST + "    out.mul_(1.0)\n"
ID = "gemm/acme.matmul/tiny/float32-nn"


class Repository:
    """A git repository with a kernel, a row and a test; `commit` writes files and commits them."""

    def __init__(self, pytester):
        self.pytester, self.path = pytester, pytester.path
        self.git("init", "-q", "-b", "main")
        (self.path / ".gitignore").write_text("__pycache__\nresults\n.benchmarks\n.pytest_cache\n")

    def git(self, *words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *identity, *words], cwd=self.path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, files):
        for name, text in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True) if text is None else path.write_text(text)

    def commit(self, kernel=FAST, *, call="ops.py:matmul", more="", files=None):
        self.write({"ops.py": kernel, "pyproject.toml": ROW.format(call=call, more=more), "test_acme.py": TEST})
        self.write(files or {})
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a commit")
        return self.git("rev-parse", "HEAD")

    def run(self, *options):
        sys.path_importer_cache.clear()
        words = ("-p", "no:cacheprovider", "--roof-results=results/r.json")
        return self.pytester.runpytest(*words, *options, no_reraise_ctrlc=True)

    def record(self):
        (found,) = store.read(self.path / "results" / "r.json")["gate"]
        return found


@pytest.fixture
def repository(pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(host, "gpu", lambda: None)
    # An operation on each element takes a twentieth of a product: slower by 5 % is one more of them.
    monkeypatch.setattr(session.Session, "simulated", {"other_s": 50e-6, "noise": 0.002})
    monkeypatch.setattr(session.Session, "device", lambda self, row: "cpu")
    tiny = Workload("tiny", {"M": 8, "N": 8, "K": 8}, "nn")
    monkeypatch.setattr(session.Session, "timed", lambda self, row: [] if row.peer else [(tiny, "float32")])
    return Repository(pytester)


SERIES = "gemm/acme.matmul/tiny/float32/nn/burst/cold/nograph/v1"
GPU = "h200-GPU-simulated"


def arm(time_s=1e-3):
    return {"time_s": time_s, "ci95_s": [time_s, time_s], "cycles": None, "clock_hz": None, "peer_s": None,
            "timer": "events", "u_timer_s": 0.0, "n": 60, "status": "ok", "reasons": [], "tags": []}  # fmt: skip


def known(repository, sigma=0.004, pairs=40):
    """A/A pairs of an earlier night."""
    made = [
        {"stage": "calibrate", "order": "AB", "valid": True, "reasons": [], "log_ratio": x,
         "base": arm(), "head": arm(1e-3 * math.exp(x))}
        for x in (sigma if n % 2 else -sigma for n in range(pairs))
    ]  # fmt: skip
    store = spread.Store(repository.path / "results" / "spread", GPU)
    store.add(SERIES, spread.covariates("0", "events", "burst"), made)
    return store.path


def both(repository, base, head, **more):
    """Two commits, the second checked out; the first's name."""
    first = repository.commit(base)
    repository.commit(head, **more)
    return f"--roof-against={first[:12]}"


# --- verdicts and exit codes ----------------------------------------------------------------------------------------


def test_one_commit_compared_with_itself_measures_the_spread(repository):
    repository.commit()
    for pairs in (3, 7):
        result = repository.run("--roof-against=HEAD", *([] if pairs == 3 else ["--roof-pairs=4"]))
        assert result.ret == 0
        found = repository.record()
        assert found["verdict"] == "UNARMED"
        assert found["reason"] == f"the same code on both sides: {pairs} pairs are known now"
    assert [pair["stage"] for pair in found["pairs"]] == ["calibrate"] * 4
    assert [pair["order"] for pair in found["pairs"]] == ["AB", "BA", "AB", "BA"]
    assert len(list((repository.path / "results" / "spread" / GPU).iterdir())) == 2
    result.stdout.fnmatch_lines(["against: base HEAD (*), head *; budget 0.02; the same code on both sides*"])


def test_once_the_spread_is_known_a_comparison_with_itself_counts_false_alarms(repository, monkeypatch):
    canned(monkeypatch, [0.0] * 3)
    repository.commit()
    known(repository)
    result = repository.run("--roof-against=HEAD")
    assert (result.ret, repository.record()["verdict"]) == (0, "PASS")
    result.stdout.fnmatch_lines(["false alarms where nothing changed: 0 of 1 screened"])
    told = store.read(repository.path / "results" / "r.json")["against"]
    assert (told["aa"], told["false_alarms"]) == (True, [0, 1])


def test_a_gate_that_could_time_nothing_is_undecided(repository, monkeypatch):
    monkeypatch.setattr(session.Session, "simulated", None)
    against = both(repository, FAST, SLOW)
    result = repository.run(against)
    assert (result.ret, repository.record()["verdict"]) == (10, None)
    result.stdout.fnmatch_lines([
        "left out, 1 test: no CUDA device: timing is left out",
        f"not decided: nothing was timed against {against.partition('=')[2]}; exit code 10",
    ])  # fmt: skip
    assert repository.run().ret == 0  # nothing was asked
    repository.write({"test_other.py": "def test_other(): assert False"})
    result = repository.run(against)
    assert result.ret == 1
    result.stdout.no_fnmatch_line("*exit code 10*")
    result.stdout.fnmatch_lines(["not decided: nothing was timed against *"])


def test_what_runs_the_same_is_not_timed(repository):
    against = both(repository, FAST, FAST, files={"README.md": "more"})
    result = repository.run(against)
    found = repository.record()
    assert (result.ret, found["verdict"], found["pairs"]) == (0, "UNCHANGED", [])


def test_a_slower_kernel_fails_and_everything_is_told(repository):
    against = both(repository, FAST, SLOW)
    known(repository)
    result = repository.run(against, "--junitxml=j.xml")
    assert result.ret == 1
    found = repository.record()
    assert found["verdict"] == "FAIL"
    assert found["change"] == pytest.approx(0.051, abs=0.003)
    assert found["ci95"][0] < found["change"] < found["ci95"][1]
    assert [stage["name"] for stage in found["stages"]] == ["screen", "confirm"]
    assert [pair["stage"] for pair in found["pairs"]] == ["screen"] * 3 + ["confirm"] * 5
    assert found["changed"] == ["ops.py"]
    assert (found["sigma"], found["pairs_known"]) == (pytest.approx(0.004, rel=1e-3), 40)
    assert found["series"] == SERIES
    assert found["base"] == {"revision": against[-12:], "row": "pyproject.toml", "name": "acme.matmul"}
    told = result.stdout.str()
    assert f"acme.matmul, workload tiny in float32-nn on cpu, against {against[-12:]}: slower by 5." in told
    assert "changed: ops.py" in told
    assert f"reproduce: pytest {against} --roof-workloads=tiny/float32-nn -k {ID}" in told
    result.stdout.fnmatch_lines([f"{ID} +5.*% FAIL: slower by *", " tiny fp32-nn *+5.*% ±*% * 1.05* ms *% FAIL"])
    junit = (repository.path / "j.xml").read_text()
    assert "<failure" in junit
    for name in ("change", "sigma", "mde", "verdict"):
        assert f'name="{name}"' in junit


def test_as_fast_as_before_passes(repository, monkeypatch):
    canned(monkeypatch, [0.0] * 3)
    against = both(repository, FAST, FAST.replace("Ours", "Mine"))
    known(repository)
    result = repository.run(against)
    found = repository.record()
    assert (result.ret, found["verdict"], found["changed"]) == (0, "PASS", ["ops.py"])
    assert len(found["pairs"]) == 3


def test_faster_beyond_chance_passes_and_is_said(repository, monkeypatch):
    canned(monkeypatch, [-0.05] * 3)
    against = both(repository, SLOW, FAST)
    known(repository)
    assert repository.run(against).ret == 0
    found = repository.record()
    assert (found["verdict"], found["reason"]) == ("PASS", "faster beyond what chance allows")


def test_without_a_known_spread_nothing_can_fail(repository):
    result = repository.run(both(repository, FAST, SLOW))
    found = repository.record()
    assert (result.ret, found["verdict"]) == (0, "UNARMED")
    assert found["change"] == pytest.approx(0.051, abs=0.003)
    assert found["reason"] == "no A/A pairs of this series on this GPU"


def test_the_spread_of_another_gpu_arms_nothing(repository, monkeypatch):
    canned(monkeypatch)
    against = both(repository, FAST, SLOW)
    path = known(repository)
    path.parent.rename(path.parents[1] / "h200-GPU-other")
    result = repository.run(against)
    assert (result.ret, repository.record()["verdict"]) == (0, "UNARMED")


def canned(monkeypatch, ratios=(0.05, 0.05, 0.05), *, looked=False, **more):
    """Pairs of these log ratios, whatever the kernel does: where timing is not what a test is about.

    Unless `looked`, nor is what the sides run: they differ, and head is right.
    """
    if not looked:
        seen = {side: {"files": {"ops.py": side}, "launches": None} for side in ("base", "head")}
        monkeypatch.setattr(arms, "fingerprints", lambda *_: seen)
        monkeypatch.setattr(rooftest.gate.trial.Gate, "bench", lambda _: None)
        monkeypatch.setattr(rooftest.gate.trial.Gate, "_recheck", lambda *_: {})
    left = list(ratios)

    def pair(arms, request, stage, order, estimator):
        x = left.pop(0)
        reasons = ["head: other processes use the GPU: 7"] if x is None else []
        identity = {"name": "NVIDIA H200", "uuid": "GPU-simulated", "driver": "0", "cc": "9.0"}
        plan, memory = {"regime": "burst", "l2": "cold"}, {"base_bytes": None, "head_bytes": None}
        made = {"stage": stage, "order": order, "base": arm(), "head": arm(1e-3 * math.exp(x or 0)), "log_ratio": x,
                "valid": x is not None, "reasons": reasons}  # fmt: skip
        return {**made, "identity": identity, "plan": plan, "memory": memory, **more}

    monkeypatch.setattr(arms, "pair", pair)
    return left


def test_an_alarm_that_fresh_pairs_do_not_confirm_is_ambiguous_and_does_not_block(repository, monkeypatch):
    against = both(repository, FAST, SLOW)
    known(repository)
    left = canned(monkeypatch, [0.05] * 3 + [0.0] * 5)
    result = repository.run(against)
    assert (result.ret, repository.record()["verdict"], left) == (0, "AMBIGUOUS", [])
    result.stdout.fnmatch_lines([f"AMBIGUOUS {ID}: *"])


def test_a_disturbed_pair_is_taken_again_and_too_many_are_invalid(repository, monkeypatch):
    against = both(repository, FAST, SLOW)
    known(repository)
    canned(monkeypatch, [None, 0.0, None, 0.0, 0.0])
    assert (repository.run(against).ret, repository.record()["verdict"]) == (0, "PASS")
    canned(monkeypatch, [None, 0.0, None, 0.0, None])
    result = repository.run(against)
    assert (result.ret, repository.record()["verdict"]) == (10, "INVALID")
    result.stdout.fnmatch_lines([f"INVALID {ID}: screen has 2 of 3 valid pairs: head: other processes use the GPU: 7"])


@pytest.mark.parametrize(("head", "code"), [(1000, 0), (1030, 1)], ids=["within the budget", "beyond"])
def test_memory_is_gated_without_statistics(repository, monkeypatch, head, code):
    against = both(repository, FAST, SLOW)
    canned(monkeypatch, [0.0] * 3, memory={"base_bytes": 1000, "head_bytes": head})
    result = repository.run(against)
    assert (result.ret, repository.record()["memory"]["head_bytes"]) == (code, head)
    if code:
        result.stdout.fnmatch_lines(["*: takes 1030 bytes of memory beside its inputs and outputs, base 1000"])


def test_a_wrong_kernel_fails_before_it_is_timed(repository):
    against = both(repository, FAST, FAST + "    out.zero_()\n")
    result = repository.run(against)
    assert (result.ret, repository.record()["pairs"]) == (1, [])
    result.stdout.fnmatch_lines(["*: wrong on workload tiny"])


# --- baselines that can't be had ------------------------------------------------------------------------------------


def undecided(repository, *options):
    result = repository.run(*options)
    found = repository.record()
    assert (result.ret, found["verdict"], found["pairs"]) == (10, "INVALID", [])
    return found["reason"]


def test_a_row_of_another_name_is_no_baseline_unless_it_says_so(repository, monkeypatch):
    canned(monkeypatch)
    first = repository.commit()
    row = ROW.replace("acme.matmul", "acme.mm")
    repository.write({"pyproject.toml": row.format(call="ops.py:matmul", more=""), "ops.py": SLOW})
    repository.write({"test_acme.py": TEST.replace("matmul", "mm", 1)})
    assert undecided(repository, f"--roof-against={first}") == (
        f'no baseline: pyproject.toml of {first[:12]} has no kernel "acme.mm"; if it had another name, say '
        'renamed_from = ["..."]'
    )
    more = 'renamed_from = ["acme.matmul"]'
    repository.write({"pyproject.toml": row.format(call="ops.py:matmul", more=more)})
    repository.run(f"--roof-against={first}")
    found = repository.record()
    assert (found["verdict"], found["base"]["name"]) == ("UNARMED", "acme.matmul")


def test_a_base_without_the_file_of_rows_is_no_baseline(repository):
    first = repository.commit()
    repository.git("mv", "pyproject.toml", "rows.toml")
    repository.write({"pyproject.toml": ""})
    repository.commit(files={"rows.toml": ROW.format(call="ops.py:matmul", more=""), "pyproject.toml": "[tool.a]"})
    reason = undecided(repository, f"--roof-against={first}", "--roof-rows=rows.toml")
    assert reason == f"no baseline: {first[:12]} has no rows.toml where the row of acme.matmul stands"


def test_a_row_of_another_harness_is_said_and_invalid(repository):
    first = repository.commit(more='flavour = "sweet"')
    repository.commit(SLOW)
    reason = undecided(repository, f"--roof-against={first}")
    assert reason.startswith(
        f"no baseline: pyproject.toml of {first[:12]}: kernel \"acme.matmul\": key 'flavour' is none"
    )


def test_a_row_that_did_not_take_the_workload_is_no_baseline(repository):
    first = repository.commit(more="at_least = { M = 64 }")
    repository.commit(SLOW)
    reason = undecided(repository, f"--roof-against={first}")
    assert reason == f"no baseline: the row in {first[:12]} does not take tiny in float32-nn"


def test_a_base_that_cannot_be_imported_is_invalid_and_a_head_fails(repository):
    broken = "import nowhere\n" + FAST
    first = repository.commit(broken)
    second = repository.commit(SLOW)
    reason = undecided(repository, f"--roof-against={first}")
    assert reason.startswith("base could not be run: import: ModuleNotFoundError: No module named 'nowhere'")
    repository.commit(broken)
    result = repository.run(f"--roof-against={second}")
    assert (result.ret, repository.record()["verdict"]) == (1, "FAIL")
    result.stdout.fnmatch_lines(
        ["*: could not be run: import: ModuleNotFoundError: No module named 'nowhere' (ops.py:1*"]
    )


def test_a_base_that_crashes_is_invalid(repository):
    first = repository.commit(FAST + "    import os; os.kill(os.getpid(), 11)\n")
    repository.commit(SLOW)
    assert "killed by signal 11" in undecided(repository, f"--roof-against={first}")


def test_a_build_that_fails_is_said_and_one_that_works_is_used(repository, monkeypatch):
    canned(monkeypatch, looked=True)
    build = "--roof-build=test ! -e broken || { echo no compiler; exit 3; }; cp ops.py built.py"
    first = repository.commit(call="built.py:matmul", files={"broken": "x"})
    second = repository.commit(
        SLOW, call="built.py:matmul", files={"broken": None, ".gitignore": "built.py\nresults\n"}
    )
    reason = undecided(repository, f"--roof-against={first}", build)
    assert reason == f"--roof-build in base ({first[:12]}): ended with 3: no compiler"
    repository.commit(call="built.py:matmul", files={"broken": "x"})
    result = repository.run(f"--roof-against={second}", build)
    assert (result.ret, repository.record()["verdict"]) == (1, "FAIL")
    repository.commit(call="built.py:matmul", files={"broken": None})
    repository.run(f"--roof-against={second}", build)
    assert repository.record()["changed"] == ["built.py"]


# --- the command line, trees, the spread's files --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ["--roof-against=nowhere"],
            "ERROR: --roof-against nowhere: * has no such revision, and there is no such folder",
        ),
        (["--roof-against="], "ERROR: --roof-against is empty: name a revision or a folder"),
        (["--roof-against=-x"], "ERROR: --roof-against -x: * has no such revision, and there is no such folder"),
        (["--roof-against=tests"], "ERROR: --roof-against tests: */tests holds neither pyproject.toml nor ops.py*"),
        (["--roof-build=make"], "ERROR: --roof-build says how to compare: it needs --roof-against=REV or a folder"),
        (["--roof-against=HEAD", "--roof-budget=2"], "*'2' is no share between 0 and 1: write 2% or 0.02"),
    ],
)
def test_a_mistake_is_one_line_and_ends_the_run(repository, options, line):
    repository.commit(files={"tests/a": ""})
    result = repository.pytester.runpytest(*options)
    assert result.ret == 4
    (result.stderr if any(result.errlines) else result.stdout).fnmatch_lines([line])


def test_a_kernel_that_is_installed_elsewhere_would_be_the_same_on_both_sides(repository):
    repository.commit(call="numpy.linalg:norm")
    result = repository.pytester.runpytest("--roof-against=HEAD")
    assert result.ret == 4
    words = (
        "ERROR: --roof-against: kernel acme.matmul: numpy is installed in */numpy, so both sides would run that one; "
    )
    result.stderr.fnmatch_lines([words + "install it from its tree: pip install -e ."])


def test_a_changed_head_is_compared_and_said(repository, monkeypatch):
    canned(monkeypatch, looked=True)
    repository.commit()
    repository.write({"ops.py": SLOW})
    result = repository.run("--roof-against=HEAD")
    found = repository.record()
    assert (found["changed"], found["head"]["dirty"]) == (["ops.py"], True)
    result.stdout.fnmatch_lines(["against: base HEAD (*), head * with 1 changed files of *; budget 0.02"])


def test_a_folder_stands_in_for_a_revision(repository, monkeypatch, tmp_path):
    canned(monkeypatch, looked=True)
    repository.commit()
    there = tmp_path / "there"
    shutil.copytree(repository.path, there, ignore=shutil.ignore_patterns(".git", "results"))
    assert repository.run(f"--roof-against={there}").ret == 0
    assert repository.record()["verdict"] == "UNCHANGED"
    (there / "ops.py").write_text(SLOW)
    repository.run(f"--roof-against={there}")
    assert repository.record()["changed"] == ["ops.py"]


def test_the_package_of_base_is_its_own_wherever_head_finds_it(repository, monkeypatch):
    monkeypatch.syspath_prepend(repository.path / "src")
    files = {"src/acme_gate/__init__.py": "", "src/acme_gate/ops.py": "from acme_gate.deep import matmul\n"}
    files |= {"src/acme_gate/deep.py": FAST}
    first = repository.commit(call="acme_gate.ops:matmul", files=files)
    repository.commit(call="acme_gate.ops:matmul", files={"src/acme_gate/deep.py": SLOW})
    repository.run(f"--roof-against={first}")
    found = repository.record()
    assert found["changed"] == ["src/acme_gate/deep.py"]
    assert found["change"] == pytest.approx(0.051, abs=0.003)


def test_parameters_in_a_file_that_a_kernel_reads_are_part_of_it(repository, monkeypatch):
    canned(monkeypatch, looked=True)
    reads = FAST.replace("import torch", "import json, pathlib, torch\n\nEXTRA = json.loads("
                         "pathlib.Path(__file__).with_name('tuned.json').read_text())")  # fmt: skip
    reads += "    for _ in range(EXTRA): out.mul_(1.0)\n"
    first = repository.commit(reads, files={"tuned.json": "0"})
    repository.commit(reads, files={"tuned.json": "1"})
    repository.run(f"--roof-against={first}")
    assert repository.record()["changed"] == ["tuned.json"]


@pytest.mark.parametrize("interrupted", [False, True])
def test_nothing_is_left_behind(repository, monkeypatch, tmp_path_factory, interrupted):
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    against = both(repository, FAST, SLOW)
    canned(monkeypatch)
    if interrupted:
        monkeypatch.setattr(arms, "pair", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    result = repository.run(against)
    assert result.ret == (2 if interrupted else 0)
    assert len(repository.git("worktree", "list").splitlines()) == 1
    assert repository.git("status", "--porcelain") == ""
    assert not list(folder.glob("rooftest-base-*"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text[: len(text) // 2], "*.json is not JSON: * at line *."),
        (lambda text: text.replace('"spread_version": 1', '"spread_version": 9'), "*no A/A pairs of version 1 (*9*"),
        (lambda text: text.replace("h200-GPU-simulated", "h200-GPU-7"), "*holds A/A pairs of h200-GPU-7, not of *"),
    ],
    ids=["cut", "of another version", "of another GPU"],
)
def test_a_spread_that_cannot_be_read_decides_nothing_and_loses_nothing(repository, monkeypatch, change, reason):
    canned(monkeypatch)
    against = both(repository, FAST, SLOW)
    path = known(repository)
    path.write_text(change(path.read_text()))
    result = repository.run(against)
    found = repository.record()
    assert (result.ret, found["verdict"], len(found["pairs"])) == (10, "INVALID", 3)
    assert fnmatch(found["reason"], reason)


def test_nothing_of_a_tree_is_loaded_in_the_process_that_forks():
    loaded = "[n for n, p in imports.loaded() if p.is_relative_to({!r})]"
    code = (
        "import sys, numpy, torch, triton.language\nfrom rooftest import worker\nfrom rooftest.gate import imports\n"
        f"print({loaded.format(str(ROOT))})"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
