"""What a person types and sees: collection, options, messages, exit codes. Kernels are faked; no GPU is needed."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import hypothesis.strategies
import numpy as np
import pytest
import rich.console
import scipy.stats
import torch
import triton

import rooftest.bench
import rooftest.cli
import rooftest.header
import rooftest.process
import rooftest.run
import rooftest.rungs
import rooftest.store
import rooftest.strategies
import rooftest.tables
from rooftest.case import Case
from rooftest.spec import load

pytest_plugins = "pytester"
# pytester forgets what a run inside this process imported; these do not bear being imported twice.
KEPT = (torch, triton, np, scipy.stats, hypothesis.strategies, rich.console, rooftest)

ROOT = Path(__file__).parents[1]
PEERS = set(load("gemm").peers)

# A bench without a process: how a kernel behaves is read off its name.
FAKES = """
import pytest, rooftest.bench, rooftest.rungs
from rooftest.process import KernelError, Signature

CALLS = []

class Bench:
    def __init__(self, row, device):
        self.row, self.device, self.spec = row, device, row.spec
    @property
    def signature(self):
        if "missing" in self.row.name:
            raise KernelError("import", "ModuleNotFoundError: No module named 'mylib'")
        return Signature(("a", "b"), ("a", "b"), (), True)
    def close(self):
        print("closed", self.row.name)

def check(bench, rung, case):
    CALLS.append((bench.row.name, rung, case))
    print("example", case)
    name = bench.row.name
    large = case.sizes["K"] >= 17 and case.sizes["M"] >= 1
    alarm = "wrong" in name or ("flaky" in name and CALLS.count(CALLS[-1]) == 1)
    if alarm and rung == "bound" and large:
        outcome = rooftest.rungs.Outcome(rung, case, 3.5, "hard")
        raise rooftest.rungs.Failure(outcome, "output c at (0, 0): got 1, expected 2")
    if "crash" in name and case.sizes["K"] >= 17:
        raise KernelError("crash", "killed by signal 11 (segmentation fault)")
    if "hang" in name:
        raise KernelError("time limit", "no answer in 60 s")
    if "raise" in name and case.sizes["K"] >= 17:
        raise KernelError("exception", "ValueError: no (ops.py:3 in matmul)", lives=True)
    if "flat" in name and "B" in case.sizes:
        raise KernelError("exception", "ValueError: not enough values to unpack (ops.py:3 in matmul)")
    if "shape" in name and case.sizes["K"] >= 17:
        raise KernelError("bad result", "returned c with shape (5, 3), the op asks for (3, 5)", lives=True)
    return rooftest.rungs.Outcome(rung, case, 0.25, "hard", ("rms",) if rung == "bound" else ())

real = rooftest.bench.Bench, rooftest.rungs.check
rooftest.bench.Bench, rooftest.rungs.check = Bench, check

def pytest_unconfigure():
    rooftest.bench.Bench, rooftest.rungs.check = real

def pytest_sessionfinish():
    print("calls", len(CALLS))
"""

ROW = """[tool.rooftest.kernels."{name}"]
op = "gemm"
call = "ops.py:matmul"
devices = ["cpu"]
dtypes = ["float32"]
layouts = ["nn"]
"""
SUITE = """
import rooftest

@rooftest.checks("{name}")
def test_matmul(check):
    check()

@rooftest.measures("{name}")
def test_speed(measurement):
    measurement()
"""


@pytest.fixture
def user(pytester, monkeypatch):
    """A user's repository with one kernel."""
    monkeypatch.setenv("COLUMNS", "100")

    def make(name="acme.matmul", more="", suite=SUITE):
        pytester.makeconftest(FAKES)
        pytester.makepyprojecttoml(ROW.format(name=name) + more)
        pytester.makepyfile(test_acme=suite.format(name=name))
        return pytester

    return make


def ids(lines):
    return sorted(found.group(1) for line in lines if (found := re.search(r"\[(gemm/.*)\]$", line)))


# --- ids ------------------------------------------------------------------------------------------------------------


def test_a_test_can_be_named_by_its_id(user):
    result = user().runpytest("test_acme.py::test_matmul[gemm/acme.matmul/bound/float32-nn]")
    result.assert_outcomes(passed=1)


def test_checks_by_op_bring_the_peer(user):
    repo = user(suite='import rooftest\n@rooftest.checks(op="gemm")\ndef test_all(check): check()\n')
    kernels = {name.split("/")[1] for name in ids(repo.runpytest("--collect-only", "-q").outlines)}
    assert kernels == {"acme.matmul"} | PEERS


def test_an_old_name_still_finds_the_kernel(user):
    repo = user(more='renamed_from = ["acme.mm"]\n', suite=SUITE.replace("{name}", "acme.mm"))
    assert "gemm/acme.matmul/bound/float32-nn" in ids(repo.runpytest("--collect-only", "-q").outlines)


# --- right, wrong, crashing -----------------------------------------------------------------------------------------


def test_a_right_kernel_passes_and_the_table_says_what_was_tried(user):
    result = user().runpytest()
    assert result.ret == 0
    result.assert_outcomes(passed=3, skipped=2 + 4)  # two rungs need a claim; four smoke workloads are nn
    result.stdout.fnmatch_lines(
        [
            "rooftest*, torch *, triton *, python *",
            "no CUDA device: properties run under Triton's interpreter, timing is left out",
            "*= rooftest =*",
            "kernel *on *domain *examples *worst *on rung *withdrawn *verdict",
            " acme.matmul cpu * 30 * 0.25 *PASS",
            "left out, * tests: no CUDA device: timing is left out",
        ]
    )


def test_a_wrong_kernel_prints_our_message_and_nothing_else(user):
    result = user("acme.wrong").runpytest()
    assert result.ret == 1
    result.assert_outcomes(passed=2, failed=1, skipped=6)
    result.stdout.fnmatch_lines(
        [
            "*test_matmul?gemm/acme.wrong/bound/float32-nn?*",
            "gemm: acme.wrong is wrong, rung bound*",
            "  output c at (0, 0): got 1, expected 2",
            "  case: gemm acme.wrong float32 nn *M=* N=* K=* seed=*",
            '  reproduce: pytest --roof-case="gemm acme.wrong float32 nn *M=*"',
            "*FAIL 1*",
            "FAILED *bound/float32-nn? - gemm: a*",
        ]
    )
    for noise in ("*Traceback*", "*Falsifying*", "*rooftest/conformance.py*", "*hypothesis*error*", "E  *"):
        result.stdout.no_fnmatch_line(noise)


def test_the_ci_profile_shrinks_to_the_boundary(user):
    result = user("acme.wrong").runpytest("--roof-profile", "ci")
    case = re.search(r"case: (.*)", result.stdout.str()).group(1)
    assert " M=1 " in case
    assert " K=17 " in case


def test_the_printed_command_runs_exactly_that_case(user):
    repo = user("acme.wrong")
    command = re.search(r'reproduce: pytest --roof-case="(.*)"', repo.runpytest().stdout.str()).group(1)
    result = repo.runpytest("-s", "--roof-case", command)
    assert result.ret == 1
    assert {line.split("example ")[1] for line in result.outlines if "example " in line} == {command}
    assert "test_speed" not in result.stdout.str()


def test_a_crash_is_one_line_and_is_not_tried_again(user):
    result = user("acme.crash").runpytest("-s", "--roof-profile", "ci", "-k", "bound")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["gemm: acme.crash failed, rung bound: crash: killed by signal 11*", "  case: *", '  reproduce: pytest*"']
    )
    crashed = [line for line in result.outlines if "example " in line and int(re.search(r"K=(\d+)", line)[1]) >= 17]
    assert len(crashed) == 1


@pytest.mark.parametrize("name", ["acme.raise", "acme.shape"])
def test_what_leaves_the_process_running_shrinks_like_a_failure(user, name):
    result = user(name).runpytest("--roof-profile", "ci", "-k", "bound")
    assert result.ret == 1
    case = re.search(r"case: (.*)", result.stdout.str()).group(1)
    assert re.search(r" M=1 N=1 K=(17|32|64|128) ", case)  # a boundary: wrong from 17 up
    result.stdout.no_fnmatch_line("*Traceback*")


def test_an_exception_on_a_batch_says_what_a_kernel_without_one_declares(user):
    result = user("acme.flat").runpytest("-k", "bound")
    assert result.ret == 1
    hint = '  the case is batched (B=*): a kernel that takes no batch says without = ?"B"? in its row'
    result.stdout.fnmatch_lines(["gemm: acme.flat failed, rung bound: exception: *", hint, "  case: * B=*"])


def test_a_kernel_that_hangs_is_left_after_two_time_limits(user):
    suite = SUITE.replace("measures", "checks").replace("measurement", "check")  # two tests of each rung
    result = user("acme.hang", suite=suite).runpytest("-s")
    result.assert_outcomes(failed=6, skipped=4)
    assert sum("example " in line for line in result.outlines) == 2
    left = "gemm: acme.hang left after two time limits: no answer in 60 s, case: gemm acme.hang float32 nn *"
    result.stdout.fnmatch_lines([left] * 4)


def test_a_kernel_that_is_right_on_the_second_try_is_a_finding(user):
    result = user("acme.flaky").runpytest()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["  and right when the same case was run again: it is not deterministic, or races"])


def test_a_kernel_that_cannot_be_had_fails_each_of_its_tests_in_one_line(user):
    result = user("acme.missing").runpytest()
    assert result.ret == 1
    line = "gemm: acme.missing (ops.py:matmul) can't be used: import: ModuleNotFoundError: No module named 'mylib'"
    assert result.outlines.count(line) == 3
    result.stdout.no_fnmatch_line("*Traceback*")


def test_the_bench_closes_when_the_last_test_of_a_row_has_run(user):
    suite = SUITE + '\n@rooftest.checks("acme.other")\ndef test_other(check):\n    check()\n'
    repo = user(more=ROW.format(name="acme.other"), suite=suite + SUITE.replace("test_", "test_again_"))
    lines = repo.runpytest("-s").outlines
    assert sum("closed acme.matmul" in line for line in lines) == 1
    first = next(n for n, line in enumerate(lines) if "closed acme.matmul" in line)
    assert not any("example gemm acme.other" in line for line in lines[:first])


# --- options and their mistakes -------------------------------------------------------------------------------------


def test_roof_kernel_runs_that_function_and_the_peer_only(pytester):
    result = pytester.runpytest(
        "--pyargs", "rooftest.suites", "--collect-only", "-q", "--roof-kernel=gemm=mylib.ops:mm"
    )
    assert PEERS
    assert {name.split("/")[1] for name in ids(result.outlines)} == {"mylib.ops.mm"} | PEERS


def test_rows_come_from_a_file_too(user):
    repo = user(suite=SUITE.replace("{name}", "acme.other"))
    Path("more.toml").write_text(ROW.format(name="acme.other"))
    assert ids(repo.runpytest("--collect-only", "-q", "--roof-rows", "more.toml").outlines)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--roof-profile", "hard"], "--roof-profile 'hard' is none of smoke, ci, nightly, hunt"),
        (["--roof-sanitize="], "--roof-sanitize: '' is none of memcheck, *"),
        (["--roof-report=pyproject.toml/page.md"], "--roof-report=pyproject.toml/page.md can't be written: *"),
        (["--roof-device", "tpu"], "--roof-device 'tpu' is none of *"),
        (["--roof-device", "cuda"], "--roof-device cuda:0: there is no CUDA device"),
        (["--roof-kernel", "gem=ops.py:f"], "*no op 'gem'*gemm*"),
        (["--roof-kernel", "gemm"], "*must read OP=MODULE:FUNCTION*"),
        (["--roof-rows", "nowhere.toml"], "*nowhere.toml*No such file*"),
        (["--roof-case", "gemm"], "*does not read as*"),
        (["--roof-case", "gemm acme.mul float32 nn M=1 N=1 K=1"], '*no kernel "acme.mul"; there is acme.matmul*'),
        (["--roof-case", "gemm acme.matmul float16 nn M=1 N=1 K=1"], "*dtype 'float16' is none of float32"),
        (["--roof-case", "gemm acme.matmul float32 nn M=1 N=1"], "*needs a size for K*"),
        (["--roof-case", "gemm acme.matmul float32 nn M=1 N=1 Q=1"], "*axis 'Q' is none of*"),
        *(
            ([f"--roof-case=gemm acme.matmul float32 nn M=1 N=1 K=1 {word}"], f"--roof-case *: {line}")
            for word, line in (
                ("fill=bad", "fill 'bad' is none of ones,*"),
                ("fill=offgrid", "fill 'offgrid' is none of *"),  # exists for tf32 only
                ("stride=nope", "stride 'nope' is none of dense"),
                ("stride=padded", "stride 'padded' is none of dense"),  # exists; the row does not take it
                ("stride=q:dense", "tensor 'q' is none of a, b, c0, bias, c"),
                ("stride=a:padded", "stride 'padded' is none of dense"),
                ("gamma=1", "parameter 'gamma' is none of alpha, beta"),
                ("alpha=nan", "parameter alpha=nan is no finite number"),
                ("with=c1", "optional tensor 'c1' is none of c0, bias"),
                ("seed=-1", "seed -1 is not in 0 to *"),
                (f"seed={2**63}", "seed * is not in 0 to *"),
                ("config=fast", "config 'fast': the row of acme.matmul has no configs"),
                ("B=-1", "B=-1 is not in 0 to 65535"),
                ("B=65536", "B=65536 is not in 0 to 65535"),
            )
        ),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_exit_code_4(user, arguments, line):
    result = user().runpytest(*arguments)
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"ERROR: {line}"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stderr.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("more", "suite", "line"),
    [
        ("speed = 3\n", SUITE, "*key 'speed' is none of*"),
        ("efficiency = {h2000 = 0.5}\n", SUITE, '*kernel "acme.matmul": efficiency: no device file *h2000.toml*'),
        ('claims = ["fastest"]\n', SUITE, "*claim 'fastest' is none of*"),
        (
            "",
            SUITE.replace("{name}", "acme.mul"),
            '*test_acme.py::test_matmul: @rooftest.checks: no kernel "acme.mul"*',
        ),
        ("", SUITE.replace('"{name}"', 'op="gem"'), "*no op 'gem'*"),
        ("", SUITE.replace("(check)", "()").replace("check()", "pass"), "*the test must take `check` and call it"),
        ("[[tool.rooftest.xfail]]\nid = 'gemm/*'\nreason = 'x'\n", SUITE, "*needs until = YYYY-MM-DD*"),
        ("[[tool.rooftest.xfail]]\nid = 'gemm/*'\nwhy = 'x'\n", SUITE, "*key 'why' is none of*"),
        ("[tool.rooftest.kernels\n", SUITE, "*pyproject.toml*"),
    ],
)
def test_a_mistake_in_the_repository_is_one_line_and_exit_code_4(user, more, suite, line):
    result = user(more=more, suite=suite).runpytest()
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"ERROR: {line}"])
    result.stdout.no_fnmatch_line("*rooftest/*.py*")


def test_a_choice_that_leaves_nothing_is_told(user):
    result = user().runpytest("-m", "large", "-k", "nothing")
    assert result.ret == 5
    result.stdout.fnmatch_lines(['nothing ran: -m "large" and -k "nothing" chose none of *'])


def test_a_broken_gpu_ends_the_run_in_one_line(user, monkeypatch):
    from rooftest import host

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(host, "_seen_by_nvml", lambda: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    result = user().runpytest()
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: CUDA is present but broken: NVML lists 8 GPU(s), torch can use none*"])
    assert user().runpytest("--roof-device", "cpu").ret == 0


def test_rows_of_the_project_named_once_more_are_read_once(user):
    result = user().runpytest("--roof-rows=pyproject.toml", f"--roof-rows={Path.cwd()}/./pyproject.toml")
    assert result.ret == 0


def test_commands_name_files_with_an_equals_sign(user):
    """A file as a word of its own is a path to pytest, and moves its root folder."""
    repo = user("acme.wrong")
    Path("more.toml").write_text(ROW.format(name="acme.other"))
    result = repo.runpytest("--roof-rows=more.toml", "--roof-device=cpu", "-k", "acme.wrong")
    result.stdout.fnmatch_lines(
        ['  reproduce: pytest --roof-rows=more.toml --roof-device=cpu --roof-case="gemm acme.wrong *']
    )
    said = " ".join(repo.runpytest("--help").stdout.str().split())
    for option in ("--roof-rows=FILE", "--roof-results=FILE", "--roof-case=CASE", "--roof-device=DEVICE"):
        assert option in said


def test_rows_that_are_not_read_because_pytest_moved_its_root_are_said(user, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "r.json"
    elsewhere.write_text("")
    repo = user()
    result = repo.runpytest("--roof-results", str(elsewhere))
    assert result.ret == 4
    line = f"rows of {Path.cwd()}/pyproject.toml are not read because pytest's root folder is *; write *=FILE with =*"
    result.stderr.fnmatch_lines([f"ERROR: {line}"])
    assert repo.runpytest(f"--roof-results={elsewhere}").ret == 0


def test_results_in_a_folder_are_refused_before_anything_runs(user):
    Path("there").mkdir()
    result = user().runpytest("-s", "--roof-results=there")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: --roof-results=there is a folder; name a file in it, *there/*.json"])
    result.stdout.no_fnmatch_line("*example*")


@pytest.mark.parametrize(("suite", "complete"), [("", True), ("def test_z(): pytest.exit()\n", False)])
def test_a_results_file_says_whether_its_run_ended_by_itself(user, capsys, suite, complete):
    user("acme.wrong", suite="import pytest" + SUITE + suite).runpytest("--roof-results=r.json", "--roof-device=cpu")
    assert rooftest.store.read(Path("r.json"))["complete"] is complete
    capsys.readouterr()
    assert rooftest.cli.main(["show", "r.json"]) == 0
    assert ("interrupted" in capsys.readouterr().out.splitlines()[0]) is not complete


def test_a_run_that_stops_at_the_first_failure_is_not_complete(user):
    user("acme.wrong").runpytest("--roof-results=r.json", "-x")
    assert rooftest.store.read(Path("r.json"))["complete"] is False


# --- known failures -------------------------------------------------------------------------------------------------


def xfail(name="gemm/acme.wrong/bound/*", until="2999-01-01", more=""):
    return f'[[tool.rooftest.xfail]]\nid = "{name}"\nreason = "acme#12"\nuntil = {until}\n{more}'


def test_a_known_failure_runs_and_is_reported_as_such(user):
    result = user("acme.wrong", xfail()).runpytest("-rx")
    assert result.ret == 0
    result.assert_outcomes(passed=2, xfailed=1, skipped=6)
    result.stdout.fnmatch_lines(["*known 1*", "XFAIL *bound/float32-nn*acme#12*"])


@pytest.mark.parametrize(
    ("name", "entry", "line"),
    [
        ("acme.wrong", xfail(until="2020-01-01"), "xfail * is expired*"),
        ("acme.wrong", xfail() + xfail("gemm/acme.gone/*"), "xfail *acme.gone* matches no test: remove it*"),
        ("acme.wrong", xfail() + xfail("gemm/acme.wrong/bond/*"), "xfail *; there is gemm/acme.wrong/bound/float32-nn"),
        ("acme.wrong", xfail() + xfail(until="2020-01-01", more="arch = [100]\n"), "xfail * is expired*"),
        ("acme.wrong", xfail() + xfail("gemm/gone/*", more="arch = [100]\n"), "xfail * matches no test: *"),
        ("acme.matmul", xfail("gemm/acme.matmul/bound/*"), "gemm/acme.matmul/bound/float32-nn: passes, and *remove*"),
    ],
)
def test_an_entry_that_is_expired_or_superfluous_fails(user, name, entry, line):
    result = user(name, entry).runpytest()
    assert result.ret == 1
    result.stdout.fnmatch_lines([line])


def test_entries_stand_beside_rows_in_a_file_too(user):
    repo = user("acme.other", suite=SUITE.replace("{name}", "acme.wrong"))
    Path("more.toml").write_text(ROW.format(name="acme.wrong") + xfail())
    repo.runpytest("--roof-rows=more.toml").assert_outcomes(passed=2, xfailed=1, skipped=6)


def test_one_case_that_is_right_does_not_contradict_a_known_failure(user):
    result = user("acme.wrong", xfail()).runpytest(
        "--roof-case=gemm acme.wrong float32 nn M=1 N=1 K=1 fill=normal", "-k", "bound"
    )
    assert result.ret == 0


def test_an_entry_for_another_gpu_does_not_apply(user):
    assert user("acme.wrong", xfail(more="arch = [90]\n")).runpytest().ret == 1


# --- what is left behind --------------------------------------------------------------------------------------------


def test_junit_says_id_rung_ratio_and_verdict(user):
    user().runpytest("--junitxml=junit.xml")
    cases = ET.parse("junit.xml").getroot().iter("testcase")  # noqa: S314 - our own file
    told = [{p.get("name"): p.get("value") for p in case.iter("property")} for case in cases]
    said = {"id": "gemm/acme.matmul/bound/float32-nn", "rung": "bound", "ratio": "0.25", "verdict": "PASS"}
    assert any(said.items() <= each.items() for each in told)


def test_nothing_drawn_is_not_decided(user, monkeypatch):
    repo = user()
    monkeypatch.setattr(rooftest.conformance.Check, "_examine", lambda *_: None)
    result = repo.runpytest()
    assert result.ret == 10
    result.stdout.fnmatch_lines(["not decided: 3 INVALID; exit code 10"])


def test_a_domain_with_nothing_in_it_is_not_decided(user, monkeypatch):
    monkeypatch.setattr(rooftest.strategies, "cases", lambda *_, **__: hypothesis.strategies.nothing())
    result = user().runpytest()
    assert result.ret == 10
    result.stdout.fnmatch_lines(["INVALID gemm/acme.matmul/bound/float32-nn: too few examples could be drawn*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_examples_that_compute_nothing_decide_nothing(user, monkeypatch):
    empty = Case("gemm", "acme.matmul", "float32", "nn", {"M": 0, "N": 5, "K": 5})
    monkeypatch.setattr(rooftest.strategies, "cases", lambda *_, **__: hypothesis.strategies.just(empty))
    result = user().runpytest()
    assert result.ret == 10
    result.stdout.fnmatch_lines(["INVALID gemm/acme.matmul/bound/float32-nn: every example had an axis of size 0*"])


def test_xdist_runs_the_checks_and_gathers_the_records(user):
    result = user("acme.wrong").runpytest_subprocess("-n", "2")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["gemm: acme.wrong is wrong, rung bound*", " acme.wrong cpu * 3.50 *FAIL 1"])


def test_a_mistake_under_xdist_is_one_line_too(user):
    result = user(suite=SUITE.replace("{name}", "acme.mul")).runpytest_subprocess("-n", "1")
    assert result.ret != 0
    result.stdout.fnmatch_lines(['*test_acme.py::test_matmul: @rooftest.checks: no kernel "acme.mul"*'])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_the_users_own_hypothesis_profile_is_untouched(user):
    own = "\nfrom hypothesis import settings\ndef test_own():\n    assert settings().max_examples == 100\n"
    result = user(suite=SUITE + own).runpytest()
    result.assert_outcomes(passed=4, skipped=6)
