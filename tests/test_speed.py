"""Timing tests on a simulated GPU: verdicts, table, exit codes, results files; what the disk and Ctrl-C do to them."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
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
import rooftest.ceilings
import rooftest.closures
import rooftest.header
import rooftest.measure
import rooftest.process
import rooftest.recheck
import rooftest.roof
import rooftest.run
import rooftest.rungs
import rooftest.store
import rooftest.strategies
import rooftest.tables
from rooftest import cli, host, nvml, roof, session
from rooftest.errors import UsageError
from rooftest.gate import spread, trees
from rooftest.history import base
from rooftest.measure import measure
from rooftest.plan import Plan
from rooftest.process import KernelError, Signature
from rooftest.recheck import Batch
from rooftest.roofline import Ceiling, Work
from rooftest.simulated import Knobs, Simulated

pytest_plugins = "pytester"
# pytester forgets what a run inside this process imported; these do not bear being imported twice.
KEPT = (torch, triton, np, scipy.stats, hypothesis.strategies, rich.console, rooftest)

HEAD = "workload time TFLOP/s GB/s /min of roof W vs peer verdict"
SQUARE_S = 2 * 4096**3 / 700e12  # the least time of square-4096 under the roof below
TOP = Ceiling("physical", {"bfloat16": 1000e12}, 4.8e12, 50e6, "simulated")
ROOF = Ceiling("attainable", {"bfloat16": 700e12}, 4.2e12, 50e6, "simulated")
ROW = """[tool.rooftest.kernels."acme.matmul"]
op = "gemm"
call = "ops.py:matmul"
dtypes = ["bfloat16"]
workloads = ["square-4096"]
efficiency = {{h200 = {share}}}
"""
TEST = 'import rooftest\n@rooftest.measures("acme.matmul")\ndef test_speed(measurement): measurement()\n'


class Bench:
    """A bench whose kernel takes `slow` times the least time under the attainable roof."""

    slow = 1.25
    knobs = Knobs()
    fails = False

    keeps = True

    @staticmethod
    def rechecked(case):
        return rooftest.rungs.Outcome("bound", case, 0.25, "hard")

    kept = rechecked
    wall_s = None

    def batch(self, case):
        return Batch(8, self.wall_s or 8 * SQUARE_S * self.slow, self.rechecked(case))

    def room(self, size_bytes):
        return True

    def __init__(self, row, device):
        self.row, self.device, self.process, self.spec = row, device, self, row.spec

    signature = Signature(("a", "b"), ("a", "b"), (), returns=True)

    def measure(self, request, placements):
        if self.fails:
            raise KernelError("out of memory", "CUDA out of memory")
        gpu = Simulated(self.knobs)
        seconds = {self.row.name: SQUARE_S * self.slow, request["reference"]["name"]: SQUARE_S * 1.5}
        calls = {name: gpu.kernel(name, s, moved_bytes=2e8) for name, s in seconds.items()}
        spec, sizes = self.spec, request["workload"]
        # What the kernel's process says of the work is its own; the grader computes it from the specification.
        work = Work(7 * spec.flop_of(sizes), *spec.least_bytes(sizes, request["dtype"]), request["dtype"])
        told = {"call": 3, "of": 30, "shifts": {}} if self.keeps else None
        return json.loads(json.dumps({**measure(calls, Plan(**request["plan"]), work, gpu, gpu), "kept": told}))

    def close(self):
        pass


@pytest.fixture
def bench(monkeypatch):
    class Own(Bench):
        pass

    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # pytest-benchmark takes itself for switched off under it
    monkeypatch.setattr(rooftest.recheck, "workload", lambda bench, case: Own.rechecked(case))
    monkeypatch.setattr(rooftest.recheck, "_kept", lambda bench, case, problem, request, shifts: Own.kept(case))
    monkeypatch.setattr(rooftest.recheck, "batch", lambda bench, case, call_s: bench.batch(case))
    monkeypatch.setattr(host, "gpu", lambda: "cuda:0")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(session.Session, "arch", 90)
    identity = nvml.Identity(uuid="GPU-0", name="NVIDIA H200", driver="1")
    monkeypatch.setattr(roof, "look", lambda: roof.Roof(identity, "h200", TOP, ROOF, None))
    monkeypatch.setattr(rooftest.bench, "Bench", Own)
    return Own


@pytest.fixture
def user(pytester, bench):
    def make(share=0.75):
        pytester.makepyprojecttoml(ROW.format(share=share))
        pytester.makepyfile(test_acme=TEST)
        return pytester

    return make


def test_a_fast_kernel_passes_and_everything_is_told(user):
    result = user().runpytest("--benchmark-json=bench.json", "--junitxml=junit.xml")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "device: NVIDIA H200 (GPU-0)*",
            "physical: 4800 GB/s; TFLOP/s bfloat16 1000 (simulated)",
            "attainable: 4200 GB/s*",
            "* moved",
            "workload *time *TFLOP/s *GB/s */min *of roof *W *vs peer *verdict",
            "gemm acme.matmul*",
            " square-4096 bf16-nn * us ±0.?% * 560.* 80% math * 1.2* PASS",
            "results: *-h200.json",
        ]
    )
    (stored,) = Path("results/runs").glob("*-h200.json")
    assert cli.main(["validate", str(stored)]) == 0
    (entry,) = rooftest.store.read(stored)["benchmarks"]
    assert entry["verdict"] == "PASS"
    assert entry["series"] == "gemm/acme.matmul/square-4096/bfloat16/nn/burst/cold/nograph/v1"
    (replayed,) = json.loads(Path("bench.json").read_text())["benchmarks"]
    assert replayed["stats"]["median"] == pytest.approx(entry["stats"]["median"], rel=1e-12)
    assert f'name="time_s" value="{entry["stats"]["median"]}"' in Path("junit.xml").read_text()


@pytest.mark.parametrize("options", [(), ("--roof-results=r.json",)], ids=["opened after", "opened before"])
def test_ceilings_that_were_measured_for_the_first_timing_stand_in_the_results(user, monkeypatch, options):
    known = roof.look()
    monkeypatch.setattr(roof, "look", lambda: replace(known, attainable=None))
    monkeypatch.setattr(roof, "measured", lambda _: replace(known, measured={"seconds": 15.0}))
    tester = user()
    with Path("pyproject.toml").open("a") as rows:  # a row that is left out, and so recorded, before anything is timed
        rows.write("\n" + ROW.format(share=0.75).replace("acme.matmul", "acme.cpu") + 'devices = ["cpu"]\n')
    left_out = TEST.replace("acme.matmul", "acme.cpu").replace("test_speed", "test_first")
    tester.makepyfile(test_acme=left_out + TEST.removeprefix("import rooftest\n"))
    tester.runpytest(*options).assert_outcomes(passed=1, skipped=1)
    stored = Path("r.json") if options else next(Path("results/runs").glob("*-h200.json"))
    ceilings = rooftest.store.read(stored)["ceilings"]
    assert (ceilings["attainable"]["kind"], ceilings["measured"]) == ("attainable", {"seconds": 15.0})


def test_sustained_is_a_series_of_its_own_held_to_no_declared_share(user, bench):
    bench.knobs = Knobs(throttle_factor=1.2)
    hot, told = [], []
    for regime in ("sustained", "burst"):
        result = user().runpytest(f"--roof-regime={regime}", f"--roof-results={regime}.json")
        hot.append(any(line.startswith(" square-4096 bf16-nn sustained ") for line in result.outlines))
        told += rooftest.store.read(Path(f"{regime}.json"))["benchmarks"]
    sustained, burst = told
    assert sustained["series"] == "gemm/acme.matmul/square-4096/bfloat16/nn/sustained/cold/nograph/v1"
    assert sustained["series"].replace("sustained", "burst") == burst["series"]
    assert sustained["time_s"] == pytest.approx(1.2 * burst["time_s"], rel=0.003)
    assert sustained["verdict"] == burst["verdict"] == "PASS"  # a share of 75 % is declared, of a ceiling in bursts
    assert sustained["extra_info"]["bound"]["declared_share"] is None
    assert hot == [True, False]


def test_the_table_loses_nothing_at_80_columns(user, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = user().runpytest().outlines
    head = next(n for n, line in enumerate(lines) if line.startswith("workload"))
    assert lines[head].split() == HEAD.split()
    assert lines[head + 2].endswith(" PASS")
    assert all(len(line) <= 80 for line in lines[head : head + 4])


def test_the_table_is_the_same_from_the_file(user, capsys):
    printed = user().runpytest("--roof-results", "r.json").outlines
    capsys.readouterr()
    assert cli.main(["show", "r.json"]) == 0
    line = next(line for line in printed if "square-4096" in line and "bf16" in line)
    assert line in capsys.readouterr().out.splitlines()


def test_slower_than_declared_fails_in_one_line_with_a_command(user):
    result = user(share=0.9).runpytest()
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "gemm: acme.matmul is slow, workload square-4096 in bfloat16-nn on cuda:0: slower than declared: 80*",
            "  reproduce: pytest --roof-workloads=square-4096/bfloat16-nn -k gemm/acme.matmul/square-4096/bfloat16-nn",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_the_printed_command_selects_that_test_alone(user):
    name = "gemm/acme.matmul/square-4096/bfloat16-nn"
    result = user().runpytest("--collect-only", "-q", "--roof-workloads", "square-4096/bfloat16-nn", "-k", name)
    assert [line for line in result.outlines if "[" in line] == [f"test_acme.py::test_speed[{name}]"]


def test_faster_than_physics_is_invalid_and_exit_code_10(user, bench):
    bench.slow = 0.5
    result = user().runpytest()
    assert result.ret == 10
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["INVALID gemm/acme.matmul/square-4096/bfloat16-nn: faster than physics*", "not decided: 1 *"]
    )


def test_joules_are_told_for_a_call_and_for_a_token(user):
    assert user().runpytest("--roof-energy", "--roof-results=r.json", "--junitxml=junit.xml").ret == 0
    (entry,) = rooftest.store.read(Path("r.json"))["benchmarks"]
    told = entry["extra_info"]["energy"]
    assert told["valid"], told["reason"]
    assert told["tokens"] == 4096  # rows of A
    assert told["token_j"] == told["gross_j"] / 4096
    assert told["u_token_j"] == told["u_gross_j"] / 4096
    written = Path("junit.xml").read_text()
    assert f'name="token_j" value="{told["token_j"]}"' in written
    assert f'name="launch_s" value="{entry["extra_info"]["timing"]["host_s"]}"' in written


def test_a_gpu_that_nvml_loses_in_the_middle_of_a_run_loses_nothing_recorded(user, monkeypatch):
    whole = Bench.measure

    def measure(self, request, placements):
        self.knobs = Knobs(nvml_lost_after_s=0.05 if request["workload"]["M"] == 4096 else None)
        return whole(self, request, placements)

    monkeypatch.setattr(Bench, "measure", measure)
    repo = user()
    repo.makepyprojecttoml(ROW.format(share=0.001).replace('["square-4096"]', '["square-2048", "square-4096"]'))
    result = repo.runpytest("--roof-results=r.json")
    assert result.ret == 10
    result.stdout.fnmatch_lines(["INVALID *square-4096*: NVML lost the GPU during the measurement (*: GPU is lost)"])
    first, second = rooftest.store.read(Path("r.json"))["benchmarks"]
    assert (first["verdict"], second["verdict"]) == ("PASS", "INVALID")
    assert second["extra_info"]["timing"]["median_s"] is not None
    assert second["stats"]["rounds"] >= 30


@pytest.mark.parametrize(("slow", "beaten"), [(1.25, 0), (0.9, 1)])
def test_a_kernel_between_the_roofs_passes_and_has_the_ceiling_measured_again(user, bench, monkeypatch, slow, beaten):
    asked = []
    monkeypatch.setattr(rooftest.ceilings, "beaten", asked.append)
    bench.slow = slow
    assert user().runpytest().ret == 0
    assert [identity.uuid for identity in asked] == ["GPU-0"] * beaten


def test_a_hot_gpu_is_invalid(user, bench):
    bench.knobs = Knobs(hw_thermal_per_s=0.1)
    result = user().runpytest()
    assert result.ret == 10
    result.stdout.fnmatch_lines(["INVALID *the hardware slowed down for heat*"])


def test_between_the_lines_is_ambiguous_and_does_not_fail(user, bench):
    bench.knobs = Knobs(noise=0.2)
    result = user(share=0.8).runpytest()
    assert result.ret == 0
    result.stdout.fnmatch_lines(["AMBIGUOUS gemm/acme.matmul/square-4096/bfloat16-nn: *straddles*"])


def test_a_kernel_that_cannot_be_timed_fails_in_one_line(user, bench):
    bench.fails = True
    result = user().runpytest()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["gemm: acme.matmul could not be timed, workload *: out of memory: CUDA out of memory"])


def test_a_kernel_that_hangs_while_it_is_timed_is_left_after_two_time_limits(user, monkeypatch):
    asked = []

    def measure(self, request, placements):
        asked.append(request)
        raise KernelError("time limit", "no answer in 900 s")

    monkeypatch.setattr(Bench, "measure", measure)
    repo = user()
    repo.makepyprojecttoml(ROW.format(share=0.01).replace('["square-4096"]', '["square-*"]'))
    result = repo.runpytest("--roof-workloads", "square-*")
    assert len(asked) == 2
    left = "gemm: acme.matmul left after two time limits: no answer in 900 s, workload square-1024 in bfloat16-nn *"
    result.stdout.fnmatch_lines([left] * 3)


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("square-*", ["square-4096/bfloat16-nn"]),
        ("*/bfloat16-*", ["square-4096/bfloat16-nn"]),
        ("llama*", []),
        ("*/float16-nn", []),
    ],
)
def test_workloads_are_chosen_by_glob_within_the_rows_own(user, glob, names):
    out = user().runpytest("--collect-only", "-q", "--roof-workloads", glob).outlines
    assert [line.split("acme.matmul/")[1].rstrip("]") for line in out if "[gemm" in line] == names


def test_timing_under_xdist_is_left_out_with_the_reason(user, monkeypatch):
    monkeypatch.setattr(rooftest.speed.pytest.Config, "workerinput", {}, raising=False)
    result = user().runpytest("-rs")
    result.stdout.fnmatch_lines(["*timing needs the GPU for itself*"])


# --- what is written ------------------------------------------------------------------------------------------------


def test_a_full_disk_is_one_line_and_what_was_written_is_intact(user, monkeypatch):
    real = rooftest.store.Run.add

    def add(self, kind, record):
        if self.data[kind]:
            raise UsageError(
                f"cannot write {self.journal}: No space left on device. What was recorded before is intact."
            )
        real(self, kind, record)

    monkeypatch.setattr(rooftest.store.Run, "add", add)
    repo = user()
    repo.makepyprojecttoml(ROW.format(share=0.01).replace('["square-4096"]', '["square-4096", "square-2048"]'))
    result = repo.runpytest("--roof-results", "r.json", "--roof-workloads", "square-*")
    assert result.ret == 10
    result.stdout.fnmatch_lines(["not decided: cannot write *No space left on device*"])
    assert len(rooftest.store.read(Path("r.json.part"))["benchmarks"]) == 1


def test_results_that_cannot_be_written_at_all_do_not_stop_the_run(user):
    repo = user()
    repo.makeconftest("def pytest_collection_finish():\n    open('taken', 'w').close()\n")  # after options were read
    result = repo.runpytest("--roof-results", "taken/r.json")
    assert result.ret == 10
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["not decided: cannot write *"])


HANGS = """
import rooftest.rungs, threading, pathlib
real = rooftest.rungs.check
def check(bench, rung, case):
    if rung == "exact":
        pathlib.Path("pid").write_text(str(bench.process.describe() and bench.process._child.pid))
        threading.Event().wait()
    return real(bench, rung, case)
rooftest.rungs.check = check
"""


def test_ctrl_c_leaves_the_results_so_far_and_no_process(tmp_path):
    row = ROW.format(share=0.1).replace('["bfloat16"]', '["float32"]') + 'devices = ["cpu"]\nlayouts = ["nn"]\n'
    (tmp_path / "pyproject.toml").write_text(row)
    (tmp_path / "ops.py").write_text("def matmul(a, b): return a @ b\n")
    (tmp_path / "conftest.py").write_text(HANGS)
    (tmp_path / "test_acme.py").write_text(TEST.replace("measures", "checks").replace("measurement", "check"))
    command = [sys.executable, "-m", "pytest", "--roof-results", "r.json"]
    pipe = subprocess.PIPE
    # A shell starts its background jobs deaf to Ctrl-C, and their children inherit that.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    run = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
        preexec_fn=heed,  # noqa: PLW1509 - no other thread here
    )
    while not (tmp_path / "pid").exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"ended before the kernel ran: {run.wait(timeout=0.1)}")
    os.killpg(run.pid, signal.SIGINT)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 2
    assert "KeyboardInterrupt" in out
    told = rooftest.store.read(tmp_path / "r.json")["conformance"]
    assert [entry["verdict"] for entry in told] == ["PASS"]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "cannot read r.json: No such file or directory."),
        ("{", "r.json is not JSON"),
        ("[]", "r.json is no results file"),
        ('{"schema_version": 99}', "schema version 99"),
        ('{"schema_version": 1}', "it lacks created"),
    ],
)
@pytest.mark.parametrize("command", ["show", "validate"])
def test_a_file_that_is_no_results_file_is_one_line_and_exit_code_4(tmp_path, monkeypatch, capsys, text, line, command):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("r.json").write_text(text)
    assert cli.main([command, "r.json"]) == 4
    err = capsys.readouterr().err
    assert line in err
    assert err.startswith("ERROR: ")
    assert err.count("\n") == 1


def test_a_mistake_on_the_command_line_is_exit_code_4(capsys):
    assert cli.main(["shwo"]) == 4
    assert "invalid choice" in capsys.readouterr().err


@pytest.mark.parametrize("when", ["rechecked", "kept"])
def test_a_kernel_that_is_wrong_on_a_workload_before_it_is_timed_or_meanwhile_has_no_time(user, bench, when):
    def wrong(case):
        raise rooftest.rungs.Failure(rooftest.rungs.Outcome("bound", case, 2.0, "hard"), "output c: wrong")

    setattr(bench, when, staticmethod(wrong))
    result = user().runpytest()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["gemm: acme.matmul is wrong, rung bound*", "  output c: wrong"])


@pytest.mark.parametrize(
    ("share", "reason"), [(2, "*the grader saw 8 calls take * was reported"), (0.5, "*something else")]
)
def test_a_time_that_the_graders_own_clock_contradicts_is_invalid(user, bench, share, reason):
    bench.slow = 2 * rooftest.recheck.CONFIRMED_S / SQUARE_S
    bench.wall_s = 8 * SQUARE_S * bench.slow * share
    result = user(share=0.01).runpytest()
    assert result.ret == 10
    result.stdout.fnmatch_lines([f"INVALID gemm/acme.matmul/square-4096/bfloat16-nn: {reason}"])


def test_a_time_of_which_no_call_was_judged_is_invalid(user, bench):
    bench.keeps = False
    result = user().runpytest()
    assert result.ret == 10
    result.stdout.fnmatch_lines(["INVALID *no timed call could be judged"])


def test_what_was_rechecked_is_recorded(user):
    user().runpytest("--roof-results", "r.json")
    (entry,) = rooftest.store.read(Path("r.json"))["benchmarks"]
    assert entry["extra_info"]["work"]["flop"] == 2 * 4096**3
    told = entry["extra_info"]["covariates"]["rechecked"]
    assert told["before"] == "yes: worst ratio 0.25"
    assert told["timed"] == "yes, call 3 of 30: worst ratio 0.25"
    assert told["stopwatch"] == {"calls": 8, "wall_s": 8 * SQUARE_S * 1.25, "ratio": 0.25, "confirms": True}


def test_a_run_says_of_what_revision_the_kernel_was_and_what_it_was_called(user):
    tester = user()
    with Path("pyproject.toml").open("a") as rows:
        rows.write('\nrenamed_from = ["acme.mm"]\n')
    git = lambda *words: subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *words], check=True)  # noqa: E731
    git("init", "-q")
    git("add", "pyproject.toml", "test_acme.py")
    git("commit", "-q", "-m", "one")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout[:12]
    for tree in ("clean", "changed"):
        trees.current.cache_clear()  # asked once a run, and this is one process
        tester.runpytest(f"--roof-results=runs/{tree}.json").assert_outcomes(passed=1)
        with Path("test_acme.py").open("a") as test:
            test.write("# changed\n")
    history = base.History(".")
    found = history.ask("SELECT r.name, t.revision, r.renames FROM times t JOIN runs r USING (run) ORDER BY name DESC")
    renames = '{"gemm/acme.mm": "gemm/acme.matmul"}'
    assert found == [("clean.json", commit, renames), ("changed.json", f"{commit}+changed", renames)]
    assert history.ask("SELECT DISTINCT cut FROM times")[0][0].endswith(spread.harness())
