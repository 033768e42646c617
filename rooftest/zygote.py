"""A process that has imported torch and triton, has touched no GPU, and forks kernels' processes from that state.

A fork takes milliseconds where a fresh interpreter with torch takes seconds, and every kernel begins in the same state.
Two of them can be needed: Triton reads TRITON_INTERPRET when it is imported, so the interpreter has one of its own.
multiprocessing's forkserver would do the forking, but there is one for a whole program, it imports the program's main
module into every child, and it can't be told to kill.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path

from rooftest.errors import UsageError

# Importing torch and triton from a cold network disk is the longest that an answer can take.
_ANSWER_LIMIT_S = 180.0
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


class Zygote:
    """The grader's side. One forks for all kernels of a run; when the grader ends, it kills them and ends too."""

    def __init__(self, *, interpreter: bool) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_ANSWER_LIMIT_S)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        # OpenMP's threads spin for a while after their work; where cores are few that takes one from somebody who has
        # work: calls of 50 us then took 20 ms. It is read when torch is imported, so it can't be set later.
        environment.setdefault("OMP_WAIT_POLICY", "passive")
        if interpreter:  # its matrices are tiles: threads that wait for each other cost a hundred times the product
            environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                # -P: what lies in the working folder must not pass for torch or triton.
                [sys.executable, "-P", "-m", "rooftest.zygote", str(theirs.fileno())],
                env=environment | ({"TRITON_INTERPRET": "1"} if interpreter else {}),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C goes to the grader alone, which then ends the others in order
            )

    def fork(self, connection: int, output: int) -> int:
        """Starts a kernel's process on these two file descriptors; returns its id, which is its process group's too."""
        return self._ask(b"fork", [connection, output])

    def reap(self, pid: int, grace_s: float) -> int:
        """Waits `grace_s` for a process to end by itself, kills it and all of its group, returns its wait status."""
        return self._ask(b"reap %d %d" % (pid, grace_s * 1e3), [])

    def close(self) -> None:
        """Ends the process and every process that it forked."""
        self._control.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _ask(self, words: bytes, files: list[int]) -> int:
        try:
            socket.send_fds(self._control, [words], files)
            answer = self._control.recv(64)
        except OSError as error:  # a time limit is one too
            answer, reason = b"", str(error)
        else:
            reason = "it ended"
        if not answer:
            self._errors.seek(0)
            last = (self._errors.read().decode(errors="replace").strip() or reason).splitlines()[-1]
            raise UsageError(f"the process that starts kernels failed: {last}")
        return int(answer)


def _fork(connection: int, output: int, control: socket.socket) -> int:
    from rooftest import worker

    with warnings.catch_warnings():
        # Python warns of forks beside threads: numpy's BLAS has some, idle, and prepares for forks itself.
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        control.close()
        worker.main(connection, output)
    os.setpgid(pid, pid)  # here too, so that it holds before the first `reap`
    return pid


def _reap(pid: int, grace_s: float) -> int:
    """Kills while the process is not yet waited for, so that its id can't have gone to another one."""
    deadline = time.monotonic() + grace_s
    flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
    while time.monotonic() < deadline and os.waitid(os.P_PID, pid, flags) is None:
        time.sleep(1e-3)
    os.killpg(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _end_orphans(children: set[int]) -> None:
    """Kills what kernels left behind outside their process groups; its parent is this process by now."""
    while found := _born() - children:
        for pid in found:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _born() -> set[int]:
    """The processes whose parent is this one."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


def main(control_fd: int) -> None:
    """Serves until the grader's end of the socket closes."""
    import numpy  # noqa: F401, ICN001 - what kernels import; each child has them from its first moment
    import torch  # noqa: F401
    import triton.language  # noqa: F401

    from rooftest import worker  # noqa: F401

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    gc.freeze()  # a collection in a child then looks at what the kernel made, not at all of torch
    control = socket.socket(fileno=control_fd)
    children: set[int] = set()
    while True:
        words, files, *_ = socket.recv_fds(control, 64, 2)
        match words.split():
            case [b"fork"]:
                connection, output = files
                answer = _fork(connection, output, control)
                children.add(answer)
                os.close(connection)
                os.close(output)
            case [b"reap", child, grace_ms]:
                children.discard(int(child))
                answer = _reap(int(child), int(grace_ms) / 1e3)
                _end_orphans(children)
            case _:
                break
        control.send(str(answer).encode())
    for pid in children:
        _reap(pid, 0.0)
    _end_orphans(set())


if __name__ == "__main__":
    main(int(sys.argv[1]))
