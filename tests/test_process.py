"""The process boundary, on the CPU: what comes back, what a broken kernel costs, what is left behind."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from rooftest import process
from rooftest.arena import Arena, Placement
from rooftest.process import KernelError, KernelProcess
from rooftest.rows import parse_row

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import boundary  # noqa: E402 - it lies beside this file
from boundary import PLACEMENTS, POISON, K, M, N, cause_of, row_of, views  # noqa: E402 - it lies beside this file

arena, start = boundary.arena, boundary.start


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# What comes back


@pytest.mark.parametrize("function", ["matmul", "returning", "positional"])
def test_call_gives_what_a_direct_call_gives(start, arena, function):
    start(function).call(PLACEMENTS, POISON)
    a, b, c = views(arena)
    assert torch.equal(c, a @ b)


def test_only_the_output_is_written(start, arena):
    kernel = start("returning")
    before = arena.bytes.clone()
    kernel.call(PLACEMENTS, POISON)
    after = arena.bytes.clone()
    assert not torch.equal(after, before)
    for memory in (before, after):
        PLACEMENTS[2].view(memory).zero_()
    assert torch.equal(after, before)


def test_scalars_are_renamed_and_passed(start, arena):
    kernel = start("matmul", args={"c": "out", "alpha": "alpha"})
    kernel.call(PLACEMENTS, {**POISON, "alpha": -1.5, "config": "small"})
    a, b, c = views(arena)
    assert torch.equal(c, (a @ b) * -1.5)


def test_prepare_replaces_the_last_laid_out_input(start, arena):
    start("repacked", prepare="process_kernels.py:repack").call(PLACEMENTS, POISON)
    a, b, c = views(arena)
    torch.testing.assert_close(c, a @ b)


def test_another_arena_takes_the_place_of_the_first(start):
    kernel = start("matmul")
    kernel.call(PLACEMENTS, POISON)
    kernel.arena = Arena("cpu", 4096)
    a, b, c = views(kernel.arena)
    a.fill_(1.0)
    b.fill_(2.0)
    kernel.call(PLACEMENTS, POISON)
    assert torch.equal(c, torch.full((M, N), 2.0 * K))
    assert kernel.starts == 1


def test_repeat_calls_again_in_the_same_process(start, arena):
    kernel = start("counted")
    kernel.call(PLACEMENTS, POISON, repeat=4)
    assert views(arena)[2].unique().tolist() == [4]
    kernel.restart()
    kernel.call(PLACEMENTS, POISON)
    assert views(arena)[2].unique().tolist() == [1]
    assert kernel.starts == 2


def test_each_row_has_a_process_of_its_own(start, arena):
    for _ in range(2):
        start("counted").call(PLACEMENTS, POISON)
        assert views(arena)[2].unique().tolist() == [1]


def test_describe(start):
    signature = start("matmul", configs="CONFIGS").describe()
    assert signature.parameters == ("a", "b", "out", "alpha", "config")
    assert signature.required == ("a", "b", "out")
    assert signature.configs == ("small", "large")
    assert not signature.returns
    assert start("returning").describe().returns


def test_messages_of_the_kernel_are_json(start, monkeypatch):
    """Nothing that the kernel's process sends is unpickled: unpickling would run its code here."""
    seen = []
    read = process._Child._read
    monkeypatch.setattr(process._Child, "_read", lambda self, answer: seen.append(answer) or read(self, answer))
    monkeypatch.setattr("pickle.loads", None)
    start("matmul").call(PLACEMENTS, POISON)
    assert len(seen) == 2
    assert all(isinstance(json.loads(answer), dict) for answer in seen)


@pytest.mark.parametrize("how", ["empty", "empty_like", "new_empty", "empty_strided"])
@pytest.mark.parametrize("byte", [0xFF, 0x5A])
def test_poison_fills_what_the_kernel_allocates(start, arena, monkeypatch, how, byte):
    monkeypatch.setenv("HOW", how)
    start("undefined").call(PLACEMENTS, {"__poison__": byte})
    assert views(arena)[2].contiguous().view(torch.uint8).unique().tolist() == [byte]


# What is wrong with the kernel, in one line


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        ("wrong_shape", "bad result: returned c with shape (5, 3), the op asks for (3, 5)"),
        ("wrong_dtype", "bad result: returned c with dtype torch.float64, the op asks for torch.float32"),
        ("alias", "bad result: returned c in the memory of one of its inputs"),
        ("nothing", "bad result: returned a NoneType for c, not a tensor"),
        ("subclass", "bad result: returned a Lazy for c, not a tensor"),
        ("pair", "bad result: returned 2 values, the op has 1"),
        ("raises", "exception: ValueError: K must be a multiple of 16"),
        ("unprintable", "exception: E: its message can't be printed"),
        ("holds_tensor", "exception: ValueError: big"),
        ("recursion", "exception: RecursionError: maximum recursion depth exceeded"),
        ("interrupts", "exception: KeyboardInterrupt (process_kernels.py:LINE in interrupts)"),
        (
            "raises_in_torch",
            "exception: RuntimeError: shape '[3, 5, 7]' is invalid for input of size 1 (process_kernels.py:LINE in",
        ),
        ("asserts", "exception: AssertionError: assert a.shape[1] % 16 == 0 (process_kernels.py:LINE in asserts)"),
    ],
)
def test_a_mistake_leaves_the_process_running(start, function, cause):
    kernel = start(function)
    if function == "alias":  # the result must fit into a
        square = [Placement(n, "float32", (3, 3), (3, 1), 256 * i) for i, n in enumerate("abc")]
        with pytest.raises(KernelError) as caught:
            kernel.call(square, POISON)
        assert str(caught.value) == cause
    else:
        assert re.sub(r"\.py:\d+ in", ".py:LINE in", cause_of(kernel)).startswith(cause)
    assert kernel.describe().parameters[:2] == ("a", "b")
    assert kernel.starts == 1


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        ("segfault", "crash: killed by signal 11 (segmentation fault) [about to read address 0]"),
        ("aborts", "crash: killed by signal 6 (aborted) [LLVM ERROR: Cannot select: intrinsic]"),
        ("leaves", "died: exit code 3"),
        ("exits", "died: exit code 3"),
        ("memory", "out of memory: MemoryError"),
        (
            "memory_of_the_host",
            "out of memory: [enforce fail at LINE] err == 0. DefaultCPUAllocator: can't allocate memory",
        ),
        ("killed", "crash: killed by signal 9 (killed, perhaps because memory ran out)"),
        ("memory_of_torch", "out of memory: CUDA out of memory. Tried to allocate 9 GiB"),
        ("floods_then_dies", "died: exit code 7 [the last line]"),
        ("garbles", "died: its process answered with something unreadable"),
    ],
)
def test_a_death_is_one_line_and_the_next_call_has_a_fresh_process(start, arena, function, cause):
    kernel = start(function)
    kernel.describe()
    pid = kernel._child.pid
    assert re.sub(r"at \S+:\d+\]", "at LINE]", cause_of(kernel)).split(": you tried")[0] == cause
    assert not running(pid)
    kernel.row = row_of("matmul")
    kernel.call(PLACEMENTS, POISON)
    a, b, c = views(arena)
    assert torch.equal(c, a @ b)
    assert kernel.starts == 2


@pytest.mark.parametrize("function", ["endless", "floods_forever", "stopped", "deaf"])
def test_time_limit(start, monkeypatch, function):
    monkeypatch.setattr(process, "_FIRST", 1)
    kernel = start(function, time_limit_s=0.5)
    kernel.describe()
    pid = kernel._child.pid
    assert cause_of(kernel).startswith("time limit: no answer in 0.5 s")
    assert not running(pid)


def test_the_first_call_of_a_configuration_has_more_time(start):
    kernel = start("endless", time_limit_s=0.1)
    assert cause_of(kernel) == "time limit: no answer in 0.3 s"


def test_children_of_the_kernel_are_killed_with_it(start):
    cause = cause_of(start("endless_with_child", time_limit_s=0.2))
    assert cause.startswith("time limit: no answer in 0.6 s [")
    assert not running(int(cause.rpartition("[")[2].rstrip("]")))


def test_a_daemon_of_the_kernel_ends_with_it(start, arena, tmp_path, monkeypatch):
    monkeypatch.setenv("SIGN", str(tmp_path / "sign"))
    (tmp_path / "sign").touch()
    kernel = start("escapes")
    kernel.call(PLACEMENTS, POISON)
    daemon = int((tmp_path / "sign").read_text())
    assert running(daemon)
    kernel.close()
    assert not running(daemon)


def test_a_kernel_that_kills_the_process_that_forked_it_ends_too(start, arena):
    kernel = start("kills_its_parent")
    kernel.describe()
    pid = kernel._child.pid
    assert cause_of(kernel) == "died: its process is gone"
    kernel.row = row_of("matmul")
    kernel.call(PLACEMENTS, POISON)
    a, b, c = views(arena)
    assert torch.equal(c, a @ b)
    assert not running(pid)


def test_a_kill_from_outside_is_told(start):
    kernel = start("endless")
    kernel.describe()
    threading.Timer(0.2, os.kill, (kernel._child.pid, signal.SIGKILL)).start()
    assert cause_of(kernel) == "crash: killed by signal 9 (killed, perhaps because memory ran out)"


def test_what_an_exception_holds_is_let_go(start):
    kernel = start("holds_tensor")
    for _ in range(2):
        assert cause_of(kernel).startswith("exception: ValueError: big (process_kernels.py")
    assert kernel.starts == 1


def test_a_fork_of_the_kernel_does_not_hide_its_death(start):
    assert cause_of(start("forks_endless")) == "died: exit code 5"


def test_a_fork_that_returns_does_not_answer(start, arena):
    kernel = start("forks")
    for _ in range(3):
        assert cause_of(kernel) == "changed global state: having child processes is True, was False"
    a, b, c = views(arena)
    assert torch.equal(c, a @ b)


def test_a_process_that_closes_its_connection_is_killed(start, monkeypatch):
    monkeypatch.setattr(process, "_GRACE_S", 0.2)
    kernel = start("closes_everything")
    kernel.describe()
    pid = kernel._child.pid
    assert cause_of(kernel).startswith("crash: killed by signal 9")
    assert not running(pid)


def test_a_death_between_two_calls_is_told_by_the_next(start):
    kernel = start("dies_later")
    kernel.call(PLACEMENTS, POISON)
    # Its leading thread is gone before the others have let go of the connection: wait for the connection.
    waiting = select.poll()
    waiting.register(kernel._child._connection, select.POLLRDHUP)
    waiting.poll()
    assert cause_of(kernel) == "crash: killed by signal 11 (segmentation fault), between two calls"
    kernel.call(PLACEMENTS, POISON)


def test_flood_reaches_neither_the_terminal_nor_the_disk(start, arena, capfd):
    kernel = start("floods")
    kernel.call(PLACEMENTS, POISON)
    a, b, c = views(arena)
    assert torch.equal(c, a @ b)
    assert len(kernel._child._printed) <= process._TAIL_BYTES
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("keys", "cause"),
    [
        ({"call": "no_such_module:f"}, "import: ModuleNotFoundError: No module named 'no_such_module'"),
        ({"call": "no_such_file.py:f"}, f"import: there is no file {HERE}/no_such_file.py"),
        ({"call": "process_kernels.py:matmull"}, "import: process_kernels.py has no 'matmull'; did you mean 'matmul'?"),
        ({"call": "process_kernels.py:number"}, "import: process_kernels.py:number is a int, not a function"),
        (
            {"call": "torch:matmul"},
            "import: torch:matmul has no signature that Python can read; wrap it in a function",
        ),
        (
            {"call": "triton.language.standard:softmax"},
            "import: triton.language.standard:softmax is a kernel itself; name the Python function that launches it",
        ),
        ({"configs": "CONFIG"}, "import: process_kernels.py has no 'CONFIG'; did you mean 'CONFIGS'?"),
        ({"prepare": "process_kernels.py:pack"}, "import: process_kernels.py has no 'pack'; did you mean 'repack'?"),
    ],
)
def test_import_errors(start, keys, cause):
    kernel = start("matmul", **keys)
    for _ in range(2):
        with pytest.raises(KernelError) as caught:
            kernel.describe()
        assert str(caught.value) == cause
        assert caught.value.kind == "import"
    assert kernel.starts == 1


@pytest.mark.parametrize(
    ("parameters", "args", "cause"),
    [
        ("x, w", {}, 'its parameters are x, w; the op passes a, b: say args = { a = "x", b = "w" }'),
        ("a, b, out", {}, 'its parameters are a, b, out; the op passes a, b: say args = { c = "out" }'),
        ("a, w, out", {"c": "out"}, "its parameters are a, w, out; the op passes a, b, out: say args = {"),
        ("a, b, c, depth", {}, "its parameters are a, b, c, depth; the op passes a, b, c: give depth a default"),
        ("a, b", {"c": "out"}, "its parameters are a, b; the op passes a, b, out: say args without out"),
        ("a", {}, "its parameters are a; the op passes a, b"),
        ("a, b", {}, None),
        ("a, b, c, *, bias=None, scale=1", {}, None),
        ("a, b, bias", {}, None),
        ("**kwargs", {}, None),
        ("x, **kwargs", {}, 'its parameters are x, **kwargs; the op passes a, b: say args = { c = "x" }'),
    ],
)
def test_a_signature_that_the_op_cannot_call(tmp_path, arena, parameters, args, cause):
    (tmp_path / "ops.py").write_text(f"def f({parameters}): pass")
    row = parse_row("test.ops", {"op": "gemm", "call": "ops.py:f", "args": args}, "test", str(tmp_path))
    kernel = KernelProcess(row, "cpu", arena)
    if cause is None:
        kernel.describe()
        kernel.close()
        return
    for _ in range(2):
        with pytest.raises(KernelError) as caught:
            kernel.describe()
        assert str(caught.value).startswith(f"signature: {cause}")
    assert kernel.starts == 1
    assert kernel._child is None


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import sys; sys.exit('no')", "import: died: exit code 1"),
        ("import os; os._exit(4)", "import: died: exit code 4"),
        ("def f(:", "import: SyntaxError: invalid syntax (broken.py, line 1)"),
        ("\n1 / 0", "import: ZeroDivisionError: division by zero (broken.py:2 in <module>)"),
    ],
)
def test_modules_that_break_while_imported(tmp_path, arena, text, cause):
    (tmp_path / "broken.py").write_text(text)
    row = parse_row("test.broken", {"op": "gemm", "call": "broken.py:f"}, "test", str(tmp_path))
    with pytest.raises(KernelError) as caught:
        KernelProcess(row, "cpu", arena).describe()
    assert str(caught.value) == cause


def test_row_folder_is_on_the_import_path(tmp_path, arena):
    (tmp_path / "ops.py").write_text("from neighbour import matmul")
    (tmp_path / "neighbour.py").write_text("def matmul(x, y): return x @ y")
    table = {"op": "gemm", "call": "ops:matmul", "args": {"a": "x", "b": "y"}}
    kernel = KernelProcess(parse_row("test.ops", table, "test", str(tmp_path)), "cpu", arena)
    assert kernel.describe().parameters == ("x", "y")
    kernel.close()


@pytest.mark.parametrize("mode", ["stream", "graph", "nosense"])
def test_modes_of_the_gpu_are_refused_here(start, mode):
    with pytest.raises(KernelError, match=f"usage: mode '{mode}' does not exist on cpu"):
        start("matmul").call(PLACEMENTS, POISON, mode=mode)


def test_there_is_no_timing_here(start):
    with pytest.raises(KernelError, match="usage: there is no timing on cpu"):
        start("matmul").measure({"workload": {"M": 3, "N": 5, "K": 7}, "dtype": "float32", "layout": "nn"})


def test_the_kernel_does_not_see_which_test_runs(start, arena):
    start("sees_pytest").call(PLACEMENTS, POISON)
    assert "PYTEST_CURRENT_TEST" in os.environ
    assert views(arena)[2].unique().tolist() == [0]


# The interpreter


def test_interpreter_is_on_where_asked_and_nowhere_else(tmp_path):
    (tmp_path / "ask.py").write_text(
        "import os, triton\n"
        "@triton.jit\ndef k(): pass\n"
        "def f(a, b, out):\n"
        "    out.fill_(float(type(k).__name__ == 'InterpretedFunction') + 2 * ('TRITON_INTERPRET' in os.environ))\n"
    )
    row = parse_row("test.ask", {"op": "gemm", "call": "ask.py:f", "args": {"c": "out"}}, "test", str(tmp_path))
    arena = Arena("cpu", 4096)
    for device, expected in (("interpreter", 3.0), ("cpu", 0.0)):
        kernel = KernelProcess(row, device, arena)
        kernel.call(PLACEMENTS, POISON)
        assert views(arena)[2].unique().tolist() == [expected]
        kernel.close()


# What is left behind

_SCRIPT = f"""
import sys; sys.path.insert(0, {str(HERE)!r})
from test_process import *
arena = Arena("cpu", 4096)
kernel = KernelProcess(row_of("endless_with_sign"), "cpu", arena)
kernel.describe()
print(kernel._child.pid, kernel._child._zygote._process.pid, flush=True)
kernel.call(PLACEMENTS, POISON)
"""


def heed():
    """A shell starts its background jobs deaf to Ctrl-C, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_grader(number, tmp_path, monkeypatch):
    """Ctrl-C, and a grader that had no chance to clean up, while the kernel hangs."""
    monkeypatch.setenv("SIGN", str(tmp_path / "sign"))
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _SCRIPT], stdout=pipe, stderr=pipe, preexec_fn=heed) as grader:  # noqa: PLW1509 - no other thread here
        pids = [int(word) for word in grader.stdout.readline().split()]
        assert all(running(pid) for pid in pids)
        while not (tmp_path / "sign").exists():  # the kernel is in its loop
            assert grader.poll() is None
        grader.send_signal(number)
        grader.wait(20)
        assert grader.returncode == -number
    deadline = time.monotonic() + 20
    while any(running(pid) for pid in pids) and time.monotonic() < deadline:
        pass
    assert not any(running(pid) for pid in pids)


def test_a_zygote_that_was_killed_is_replaced(start, arena):
    kernel = start("matmul")
    kernel.call(PLACEMENTS, POISON)
    kernel._child._zygote._process.kill()
    kernel._child._zygote._process.wait()
    kernel.restart()
    kernel.call(PLACEMENTS, POISON)
    a, b, c = views(arena)
    assert torch.equal(c, a @ b)


def test_importing_the_grader_side_imports_no_torch():
    code = "import sys, rooftest.process, rooftest.arena; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_memory_of_an_earlier_result_is_not_returned_again(start):
    for function, reused in (("returning", False), ("reuses", True)):
        kernel = start(function)
        kernel.call(PLACEMENTS, POISON)
        if reused:
            assert cause_of(kernel) == (
                "bad result: returned c in the memory of an earlier result, which its caller may hold"
            )
        else:
            kernel.call(PLACEMENTS, POISON)
