"""Reports of compute-sanitizer become one finding a test; what it could not watch is undecided, never passed.

The tool is played by a script that runs what it is given and prints a report in the form of the public documentation.
"""

import json
import subprocess
import sys

import pytest
import torch

from rooftest import alone, sanitize
from rooftest.case import Case
from rooftest.problem import draw, lay_out
from rooftest.spec import STRIDES, load

pytest_plugins = ["pytester"]

OUTSIDE = """\
========= COMPUTE-SANITIZER
rooftest: case 0
rooftest: case 1
========= Invalid __global__ read of size 2 bytes
=========     at scale_rows+0x3c0 in scale.py:14
=========     by thread (32,0,0) in block (4,0,0)
=========     Access to 0x7f10a2e00840 is out of bounds
=========     and is 65 bytes after the nearest allocation at 0x7f10a2e00400 of size 1,024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: launch [0x1f3a0] in launcher.so
=========
========= Invalid __global__ read of size 2 bytes
=========     at scale_rows+0x3c0 in scale.py:14
=========     by thread (33,0,0) in block (4,0,0)
=========
Traceback (most recent call last):
RuntimeError: CUDA error: unspecified launch failure
========= Target application returned an error
========= ERROR SUMMARY: 96 errors
"""
RACE = """\
========= COMPUTE-SANITIZER
rooftest: case 0
========= Error: Race reported between Write access at reduce(float *)+0x90 in reduce.cu:41
=========     and Read access at reduce(float *)+0x100 in reduce.cu:51 [508 hazards]
=========
rooftest: case 1
rooftest: all cases ran
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARNED = """\
========= COMPUTE-SANITIZER
rooftest: case 0
========= Warning: Race reported between Write access at reduce(float *)+0x90 in reduce.cu:41
=========     and Read access at reduce(float *)+0x100 in reduce.cu:51 [12 hazards]
=========
rooftest: all cases ran
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
BARRIER = """\
========= COMPUTE-SANITIZER
rooftest: case 0
========= Barrier error detected. Divergent thread(s) in block.
=========     at half(float *)+0x2c8 in half.cu:9
=========     by thread (64,0,0) in block (0,0,0)
=========
rooftest: all cases ran
========= ERROR SUMMARY: 1 error
"""
UNSET = """\
========= COMPUTE-SANITIZER
rooftest: case 0
========= Uninitialized __global__ memory read of size 4 bytes
=========     at half(float *)+0x88 in half.cu:8
=========     by thread (0,0,0) in block (0,0,0)
=========     Access to 0x7f10a2e00840
=========
rooftest: all cases ran
========= ERROR SUMMARY: 257 errors
========= ERROR SUMMARY: 157 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
CLEAN = "========= COMPUTE-SANITIZER\nrooftest: case 0\nrooftest: all cases ran\n========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize(
    ("text", "errors", "case", "first"),
    [
        (
            OUTSIDE, 96, 1,
            ("Invalid __global__ read of size 2 bytes at scale_rows+0x3c0 in scale.py:14 by thread (32,0,0) in block "
            "(4,0,0) and is 65 bytes after the nearest allocation of size 1,024 bytes"),
        ),
        (
            RACE, 1, 0,
            ("Error: Race reported between Write access at reduce(float *)+0x90 in reduce.cu:41 and Read access at "
            "reduce(float *)+0x100 in reduce.cu:51 [508 hazards]"),
        ),
        (
            BARRIER, 1, 0,
            ("Barrier error detected. Divergent thread(s) in block. at half(float *)+0x2c8 in half.cu:9 by thread "
            "(64,0,0) in block (0,0,0)"),
        ),
        (
            UNSET, 257, 0,
            ("Uninitialized __global__ memory read of size 4 bytes at half(float *)+0x88 in half.cu:8 by thread "
            "(0,0,0) in block (0,0,0)"),
        ),
    ],
)  # fmt: skip
def test_the_first_error_is_said_in_one_line(text, errors, case, first):
    assert sanitize.read(text) == sanitize.Reading(errors, first, case)


@pytest.mark.parametrize("text", [CLEAN, WARNED])
def test_nothing_is_said_of_a_clean_run(text):
    assert sanitize.read(text) == sanitize.Reading()


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("", "no summary of errors: nothing was printed"),
        (
            (
                "========= COMPUTE-SANITIZER\n"
                "========= Error: Target application terminated before first instrumented API call\n"
                "========= ERROR SUMMARY: 1 error\n"
            ),
            "the examples did not all run: Error: Target application terminated before first instrumented API call",
        ),
        # one release of the tool is known to say so of a program that it never ran
        (
            "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n",
            "the examples did not all run: nothing was printed",
        ),
        (
            (
                "========= COMPUTE-SANITIZER\nrooftest: case 0\nValueError: no\n"
                "========= Target application returned an error\n========= ERROR SUMMARY: 0 errors\n"
            ),
            "the examples did not all run: ValueError: no",
        ),
        (
            "========= COMPUTE-SANITIZER\n========= Internal Sanitizer Error: The device is not supported\n",
            "no summary of errors: Internal Sanitizer Error: The device is not supported",
        ),
    ],
)
def test_what_says_nothing_of_the_kernel_is_trouble(text, trouble):
    assert sanitize.read(text) == sanitize.Reading(trouble=trouble)


@pytest.mark.parametrize("stride", STRIDES)
def test_a_tensor_ends_where_its_allocation_ends(stride):
    case = Case("gemm", "k", "bfloat16", "nt", {"M": 5, "N": 7, "K": 3}, stride=stride)
    spec = load("gemm")
    placements, values = lay_out(spec, case).placements, draw(spec, case, "cpu")
    for p, tensor in zip(placements, alone.place(placements, values, "cpu").values(), strict=True):
        storage = tensor.untyped_storage()
        assert (tuple(tensor.shape), tensor.stride()) == (p.shape, p.stride)
        assert storage.nbytes() == tensor.storage_offset() * p.itemsize + p.extent_bytes
        assert tensor.storage_offset() == (stride == "offset")
        if p.name in values:
            assert torch.equal(tensor, values[p.name])


@pytest.fixture
def run(pytester, monkeypatch):
    """A run of the suite in a project with a kernel of its own, as if there were a GPU; the tool is a script.

    It says what it is given, or, given None, runs what it shall watch.
    """

    def run(said, *options, body="torch.matmul(a, b, out=out)"):
        pytester.makepyfile(ops=f"import torch\n\ndef matmul(a, b, out):\n    {body}\n")
        pytester.makepyfile("import rooftest\n@rooftest.checks('own')\ndef test_own(check):\n    check()\n")
        pytester.makeconftest("from rooftest import sanitize\nsanitize.unavailable = lambda device: None\n")
        pytester.makefile(
            ".toml",
            pyproject='[tool.rooftest.kernels.own]\nop = "gemm"\ncall = "ops.py:matmul"\nargs = { c = "out" }\n'
            'dtypes = ["float32"]\nlayouts = ["nn"]\nwithout = ["B"]\ndevices = ["cpu"]\n',
        )
        tool = pytester.mkdir("bin") / "compute-sanitizer"
        tool.write_text(f"#!{sys.executable}\n{PLAYED}\nplay({said!r})\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
        return pytester.runpytest_subprocess("-k", "sanitize", "-p", "no:cacheprovider", *options)

    return run


PLAYED = """
import json, os, subprocess, sys
def play(said):
    at = sys.argv.index("-P") - 1
    name = sys.argv[sys.argv.index("--tool") + 1]
    print("========= COMPUTE-SANITIZER", flush=True)
    if said is None:
        subprocess.run(sys.argv[at:])
    else:
        print("rooftest: case 0\\nrooftest: all cases ran")
    report, total = (said or {}).get(name, ["", 0])
    print(report)
    print(f"========= RACECHECK SUMMARY: {total} hazards displayed ({total} errors, 0 warnings)"
          if name == "racecheck" else f"========= ERROR SUMMARY: {total} errors")
"""


def counted(result):
    return {k: n for k, n in result.parseoutcomes().items() if k != "deselected"}


def test_a_kernel_with_nothing_to_report_passes(run):
    """The case that was asked for, truly run."""
    result = run(None, "--roof-sanitize", "--roof-case=gemm own float32 nn M=3 N=2 K=4 fill=normal seed=1")
    assert counted(result) == {"passed": 1}
    result.stdout.fnmatch_lines([" own * 1 *PASS"])


def test_an_error_is_one_finding_with_its_case(run):
    said = {"racecheck": ["========= Error: Race reported between Write access at k+0x8", 3]}
    result = run(said, "--roof-sanitize=memcheck,racecheck,initcheck")
    assert counted(result) == {"failed": 1}
    lines = [
        "gemm: own failed, compute-sanitizer racecheck: Error: Race reported between Write access at k+0x8 (3 errors)",
        "  case: gemm own float32 nn M=*",
        '  reproduce: pytest --roof-case="gemm own float32 nn M=*" --roof-sanitize=racecheck -k sanitize',
    ]
    result.stdout.fnmatch_lines(lines)


def test_examples_that_did_not_run_are_undecided(run):
    result = run(None, "--roof-sanitize", body="raise ValueError('no')")
    assert counted(result) == {"skipped": 1}
    result.stdout.fnmatch_lines(["INVALID *compute-sanitizer memcheck: the examples did not all run: ValueError: no*"])
    assert result.ret == 10


def test_a_tool_that_hangs_is_ended_and_said(tmp_path, monkeypatch):
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {tmp_path}/pid\nwait\n")
    tool.chmod(0o755)
    assert sanitize.watch(str(tool), "memcheck", {}, 0.5).trouble == "not done after 0.5 s"
    command = ["ps", "-o", "stat=", "-p", (tmp_path / "pid").read_text().strip()]
    assert subprocess.run(command, check=False, capture_output=True).stdout.strip() in (b"", b"Z")


def test_without_a_gpu_the_test_is_left_out_with_the_reason():
    assert sanitize.unavailable("interpreter") == "compute-sanitizer watches kernels on a GPU, this is interpreter"


def test_without_the_tool_the_test_is_left_out_with_the_reason(monkeypatch):
    monkeypatch.setattr(sanitize, "tool", lambda: None)
    assert "it comes with the CUDA toolkit" in sanitize.unavailable("cuda:0")


@pytest.mark.parametrize("words", [("--roof-sanitize=memchek",), ("--roof-sanitize", "suites")])
def test_a_tool_that_does_not_exist_is_a_mistake(pytester, words):
    result = pytester.runpytest_subprocess(*words)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*is none of memcheck, racecheck, synccheck, initcheck, all; write --roof-san*"])


def test_the_runner_says_each_case_and_the_end(tmp_path):
    (tmp_path / "ops.py").write_text("def matmul(a, b, out):\n    print(tuple(a.shape))\n")
    row = {"call": "ops.py:matmul", "prepare": None, "configs": None, "root": str(tmp_path), "dtypes": ["float32"]}
    case = "gemm own float32 nn M={} N=2 K=4 fill=normal seed=1"
    message = {
        "op": "gemm", "row": row, "args": {"c": "out"}, "outputs": ["c"], "laid_out": ["a", "b"], "device": "cpu",
        "path": sys.path, "cases": [{"case": case.format(m), "scalars": {}} for m in (3, 5)],
    }  # fmt: skip
    (tmp_path / "cases.json").write_text(json.dumps(message))
    command = [sys.executable, "-P", "-m", "rooftest.alone", str(tmp_path / "cases.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    want = ["rooftest: case 0", "(3, 4)", "rooftest: case 1", "(5, 4)", "rooftest: all cases ran"]
    assert done.stdout.splitlines() == want
