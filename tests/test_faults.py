"""Whole runs with bad kernels among good ones: each costs its own test, in one line, and nothing of the others'."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rooftest import rungs
from rooftest.case import Case
from rooftest.conformance import Check, Tally, _Ended

HERE = Path(__file__).parent
GOOD = ("first", "middle", "last")
ROW = """[tool.rooftest.kernels."{name}"]
op = "gemm"
call = "{file}:{function}"
args = {{ c = "out" }}
devices = ["{device}"]
dtypes = ["float32"]
layouts = ["nn"]
without = ["B"]
at_least = {{ M = 1, N = 1, K = 1 }}
"""
CONFTEST = "import rooftest.process\nrooftest.process._FIRST = {}\n"
# A kernel of process_kernels.py or cuda_kernels.py, and what its one test says of it.
ANYWHERE = {
    "segfault": r"crash: killed by signal 11 \(segmentation fault\) \[about to read address 0\]",
    "aborts": r"crash: killed by signal 6 \(aborted\) \[LLVM ERROR: Cannot select: intrinsic\]",
    "killed": r"crash: killed by signal 9 \(killed, perhaps because memory ran out\)",
    "leaves": r"died: exit code 3",
    "exits": r"died: exit code 3",
    "endless": r"time limit: no answer in \d+ s",
    "memory": r"out of memory: MemoryError",
    "memory_of_the_host": r"out of memory: \[enforce fail at .*can't allocate memory",
    "holds_tensor": r"exception: ValueError: big \(process_kernels.py:\d+ in holds_tensor\)",
    "recursion": r"exception: RecursionError: maximum recursion depth exceeded",
    "recursion_in_c": r"crash: killed by signal 11|exception: RecursionError",  # Python 3.12 has a limit for C too
    "forks": r"changed global state: having child processes is True, was False",
    "forks_endless": r"died: exit code 5",
    "floods_then_dies": r"died: exit code 7 \[the last line\]",
    "garbles": r"died: its process answered with something unreadable",
    **{
        "LEAVES." + re.sub(r"\W", "_", name): f"changed global state: {name}"
        for name in (
            "default dtype", "default device", "fp32 precision of CUDA's matmul", "deterministic algorithms",
            "environment variable", "working folder", "seed of torch", "module", "warnings filters", "signal handler",
            "resource limit", "running thread",
        )
    },
}  # fmt: skip
ON_CUDA = {
    "illegal": r"crash: an illegal memory access was encountered",
    "misaligned": r"crash: misaligned address",
    "traps": r"crash: unspecified launch failure",
    "asserts": r"crash: device-side assert triggered",
    "spins": r"time limit: no answer in \d+ s",
    "greedy": r"out of memory: CUDA out of memory",
    "holds_memory": r"exception: ValueError: big",
    "sets_stream": r"changed global state: current CUDA stream",
    "seeds": r"changed global state: seed of torch on CUDA",
}


def run(folder, device, rows, first):
    """Starts pytest on these rows, each (name, file, function); examples are few."""
    folder.mkdir()
    (folder / "log").mkdir()
    table = "".join(
        ROW.format(name=n, file=HERE / file, function=f, device=device.split(":")[0]) for n, file, f in rows
    )
    (folder / "pyproject.toml").write_text(table)
    (folder / "conftest.py").write_text(CONFTEST.format(first))
    tests = (f'@rooftest.checks("{n}")\ndef test_{i}(check): check()\n' for i, (n, _, _) in enumerate(rows))
    (folder / "test_rows.py").write_text("import rooftest\n" + "".join(tests))
    command = [sys.executable, "-m", "pytest", "-q", "-k", "bound", "-p", "no:cacheprovider", "--roof-examples=4"]
    command += ["--roof-results=run.json", f"--roof-device={device}"]
    with (folder / "out").open("w") as out:
        environment = os.environ | {"LOG": str(folder / "log"), "COLUMNS": "200"}
        return subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env=environment)


def records(folder):
    data = json.loads((folder / "run.json").read_text())
    assert data["complete"]
    return {record["kernel"]: record for record in data["conformance"] if record["status"] != "skipped"}


def judge(folder, device, faults, first):
    """Runs all, and the good ones alone, at the same time; prints the seconds that each fault cost."""
    good = [(name, "process_kernels.py", f"LOGGED.{name}") for name in GOOD]
    bad = [(f"bad.{file[:3]}.{function}", file, function) for file, function in faults]
    half = len(bad) // 2
    mixed, alone = folder / "mixed", folder / "alone"
    rows = [good[0], *bad[:half], good[1], *bad[half:], good[2]]
    runs = [run(mixed, device, rows, first), run(alone, device, good, first)]
    codes = [each.wait(300) for each in runs]
    assert (mixed / "run.json").exists(), (mixed / "out").read_text()[-3000:]
    told, expected = records(mixed), records(alone)
    print(f"{'seconds':>8}  row")
    for name, record in told.items():
        print(f"{record['wall_s']:8.2f}  {name}: {record.get('message', 'right').splitlines()[0]}")
    assert codes == [1, 0], (mixed / "out").read_text()[-3000:]
    for name in GOOD:
        mine, theirs = ({k: v for k, v in r[name].items() if k != "wall_s"} for r in (told, expected))
        assert mine == theirs
        assert mine["verdict"] == "PASS"
        logs = [(each / "log" / name).read_text() for each in (mixed, alone)]
        assert logs[0] == logs[1]
        assert len(logs[0].split()) >= 4  # as many calls as examples
    for (name, _, _), cause in zip(bad, faults.values(), strict=True):
        assert told[name]["verdict"] == "FAIL"
        first_line, *rest = told[name]["message"].splitlines()
        assert re.match(f"gemm: {re.escape(name)} failed, rung bound: ({cause})", first_line), first_line
        assert [line.split(":")[0] for line in rest] == ["  case", "  reproduce"]
    said = (mixed / "out").read_text()
    assert "Traceback" not in said
    assert f"{len(bad)} failed, {len(GOOD)} passed" in said


def test_a_grader_without_memory_says_so_in_one_line_and_ends_the_kernels_process(monkeypatch):
    """A kernel can hold all of a device and still be right."""

    def check(bench, rung, case):
        raise torch.OutOfMemoryError("CUDA out of memory")

    restarts = []
    process = SimpleNamespace(restart=lambda: restarts.append(1))
    bench = SimpleNamespace(device="cuda:0", process=process)
    trial = Check.__new__(Check)
    trial.session, trial.what = SimpleNamespace(command=lambda case: "pytest"), "bound"
    trial.row = SimpleNamespace(spec=SimpleNamespace(optional_axes=()), at_least={})
    monkeypatch.setattr(rungs, "check", check)
    tally, case = Tally(), Case("gemm", "acme.hoard", "float32", "nn", {"M": 1, "N": 1, "K": 1})
    with pytest.raises(_Ended):
        trial._one(bench, case, tally, hunt=False)
    said = (
        "gemm: acme.hoard failed, rung bound: out of memory: too little was left on cuda:0 to judge beside the kernel's"
    )
    assert tally.found.splitlines()[0] == f"{said} process"
    assert restarts


def test_faults_on_the_cpu_cost_one_test_each_and_change_no_other(tmp_path):
    # 3 s for the one that hangs: more than a good kernel's first call needs on a busy machine.
    judge(tmp_path, "cpu", {("process_kernels.py", f): cause for f, cause in ANYWHERE.items()}, 0.15)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_faults_on_a_gpu_cost_one_test_each_and_change_no_other(tmp_path):
    some = ("segfault", "killed", "leaves", "recursion_in_c", "forks_endless", "LEAVES.fp32_precision_of_CUDA_s_matmul")
    faults = {("cuda_kernels.py", f): cause for f, cause in ON_CUDA.items()}
    faults |= {("process_kernels.py", f): ANYWHERE[f] for f in some}
    judge(tmp_path, "cuda:0", faults, 0.4)  # 8 s for those that hang: a good kernel's first call compiles
