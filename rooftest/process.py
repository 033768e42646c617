"""The grader's side of a kernel's process: start, ask, time limit, one-line cause, replacement.

Both directions carry lines of JSON, so nothing that a kernel made is ever unpickled here; tensors lie in the arena.
What the kernel prints goes into a pipe that is drained while the grader waits, and its last line explains a crash.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rooftest.errors import UsageError
from rooftest.rows import Row
from rooftest.signature import mismatch
from rooftest.validity import GRADER
from rooftest.zygote import Zygote

if TYPE_CHECKING:
    from rooftest.arena import Arena, Placement

ANYWHERE = ("plain", "fenced", "batch")
MODES = (*ANYWHERE, "stream", "streams", "graph", "nosync", "launches")
"""How a call is made; all but those of ANYWHERE on CUDA only. See rooftest.modes."""

# A call takes milliseconds, under Triton's interpreter seconds; the first one of a configuration may compile, which
# takes Triton up to ten seconds and more on a busy machine.
TIME_LIMIT_S = 20.0
_FIRST = 3
_IMPORT_LIMIT_S = 300.0  # importing may build a C++ extension
_MEASURE_LIMIT_S = 900.0  # energy windows take minutes; a hang is seen by the timer's own cap long before
_GRACE_S = 2.0  # between the end of the connection and the end of a process that is ending by itself
_TAIL_BYTES = 4096  # of what the kernel printed
_PIPE_CHUNKS = 16  # a pipe holds at most 1 MiB, unless its owner raised the limit: 16 chunks of 64 KiB
_ANSWER_BYTES = 64 * 2**20


class KernelError(Exception):
    """A kernel that could not be run to its end; the message is one line, `kind: cause`.

    Kinds: "exception", "crash", "time limit", "out of memory", "died", "bad result", "changed global state",
    "synchronises", "import", "signature", "usage", "unfenced" (the device lends no memory with an end). `lives`: the
    process does, so another call costs no more than this one did.
    """

    def __init__(self, kind: str, cause: str, *, lives: bool = False) -> None:
        super().__init__(kind, cause)
        self.kind, self.cause, self.lives = kind, cause, lives
        self.claim: str | None = None
        """What the row promises and this call put to the test, where it was made for that (rooftest.rungs)."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.cause}"


@dataclass(frozen=True)
class Signature:
    """A kernel's function: its parameters, those without a default, the names of its configurations.

    `returns`: it has no parameter for an output of the op, so what it returns is the output. `undecidable`: the
    precisions that its process can't decide, and why (under Triton's interpreter).
    """

    parameters: tuple[str, ...]
    required: tuple[str, ...]
    configs: tuple[str, ...]
    returns: bool
    undecidable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """`seconds`: host time in the kernel's process from before the call until its device was idle."""

    seconds: float
    launches: int | None = None
    note: str | None = None


class KernelProcess:
    """One row's process on "cuda:N", "cpu" or "interpreter"; it starts when first needed, and again after it died."""

    def __init__(
        self,
        row: Row,
        device: str,
        arena: Arena | None = None,
        time_limit_s: float = TIME_LIMIT_S,
        trees: Mapping[str, str] | None = None,
    ) -> None:
        self.row, self.device, self.arena, self.time_limit_s = row, device, arena, time_limit_s
        self.trees = dict(trees or {})
        """For the merge gate: "head" and "base", where what head imports of its own comes from base's tree; "watch", a
        tree of which `fingerprint` tells what was read; "extensions", where torch builds C++ extensions."""
        self.starts = 0
        """How often a process was started."""
        self._child: _Child | None = None
        self._signature: Signature | None = None
        self._import_error: KernelError | None = None
        self._attached: Arena | None = None
        self._known: set[tuple[Any, ...]] = set()

    def describe(self) -> Signature:
        """The kernel's signature.

        Raises KernelError of kind "import" if it can't be imported or is no function with a readable signature, of kind
        "signature" if the op can't call it.
        """
        self._start()
        assert self._signature is not None
        return self._signature

    def call(
        self,
        placements: Sequence[Placement],
        scalars: Mapping[str, float | str | int],
        *,
        mode: str = "plain",
        repeat: int = 1,
        fences: Mapping[str, str] | None = None,
    ) -> Reply:
        """Calls the kernel `repeat` times on tensors in the arena, which the grader has filled.

        Names in `placements` and `scalars` are those of the op; `scalars["__poison__"]` is the byte that fills what the
        kernel allocates. For the modes "streams" and "graph" every tensor stands there twice, see rooftest.modes;
        for "fenced", `fences` says which tensors are moved and where each meets the end of its memory.
        Raises KernelError.
        """
        if mode not in MODES or (mode not in ANYWHERE and not self.device.startswith("cuda")):
            raise KernelError("usage", f"mode {mode!r} does not exist on {self.device}")
        if self.arena is None:
            raise KernelError("usage", "a call needs an arena")
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.synchronize(self.device)  # what the grader wrote is there before the kernel starts
        self._start()
        new = (mode, scalars.get("config"), *(p.dtype for p in placements))
        limit_s = self.time_limit_s * (1 if new in self._known else _FIRST)
        message = {
            "do": "call",
            "arena": self._handle(),
            "placements": [asdict(p) for p in placements],
            "scalars": dict(scalars),
            "mode": mode,
            "repeat": repeat,
            "fences": dict(fences or {}),
        }
        reply = self._ask(message, limit_s)
        self._known.add(new)
        return Reply(reply["seconds"], reply["launches"], reply["note"])

    def measure(self, request: dict[str, Any], placements: Sequence[Placement] = ()) -> dict[str, Any]:
        """Measures the kernel in its process: request as in rooftest.closures, answer as in rooftest.measure.

        What one timed call read and wrote is afterwards in the arena at `placements`.
        """
        self._start()
        message = {
            "do": "measure",
            "request": {"op": self.row.op, "row": self.row.name, **request},
            "arena": self._handle() if placements else None,
            "placements": [asdict(p) for p in placements],
        }
        return self._ask(message, _MEASURE_LIMIT_S)["record"]

    def fingerprint(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the workload of a request reads, launches and takes; see rooftest.gate.same. `trees` names "watch"."""
        self._start()
        message = {"do": "fingerprint", "request": {"op": self.row.op, "row": self.row.name, **request}}
        return self._ask(message, _IMPORT_LIMIT_S)

    def restart(self) -> None:
        """Ends the process; the next call starts a fresh one."""
        child, self._child, self._attached = self._child, None, None
        self._import_error = None
        self._known.clear()
        if child is not None:
            child.end(0.0)

    def close(self) -> None:
        """Ends the process for good."""
        self.restart()

    def _handle(self) -> dict[str, Any] | None:
        """What the process needs to attach the arena; None if it has, or there is none."""
        if self.arena is None or self._attached is self.arena:
            return None
        self._attached = self.arena
        return self.arena.handle()

    def _start(self) -> None:
        if self._child is not None:
            return
        if self._import_error is not None:
            raise self._import_error  # nothing changed since, and finding out again takes a process each time
        spec = self.row.spec
        self._child = _Child(self.device)
        self.starts += 1
        message = {
            "do": "start",
            "row": {k: getattr(self.row, k) for k in ("call", "prepare", "configs", "root", "dtypes")},
            "args": dict(self.row.args),
            "outputs": tuple(spec.outputs),
            "laid_out": spec.laid_out,
            "device": self.device,
            # Without pytest's own: which test runs is the grader's business.
            "environment": {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
            | {GRADER: str(os.getpid())}
            # Two trees have C++ extensions of one name.
            | ({"TORCH_EXTENSIONS_DIR": self.trees["extensions"]} if "extensions" in self.trees else {}),
            "path": [p for p in sys.path if isinstance(p, str)],
            "trees": self.trees,
        }
        try:
            reply = self._ask(message, _IMPORT_LIMIT_S)
        except KernelError as error:
            cause = error.cause if error.kind == "import" else str(error)
            self._import_error = KernelError("import", cause)
            raise self._import_error from None
        wrong = mismatch(self.row, reply["parameters"], reply["required"], takes_any=reply["takes_any"])
        if wrong is not None:
            self.restart()
            self._import_error = KernelError("signature", wrong)
            raise self._import_error
        self._signature = Signature(
            tuple(reply["parameters"]),
            tuple(reply["required"]),
            tuple(reply["configs"]),
            reply["returns"],
            reply["undecidable"],
        )

    def _ask(self, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        assert self._child is not None
        try:
            reply = self._child.ask(message, limit_s)
        except BaseException:  # Ctrl-C too: whatever happened, this process answers no more
            self.restart()
            raise
        if "kind" not in reply:
            return reply
        cause = reply["cause"]
        if reply["dead"]:
            cause += self._child.last_line()
            self.restart()
        raise KernelError(reply["kind"], cause, lives=not reply["dead"])


class _Child:
    """A running process and the two channels to it."""

    def __init__(self, device: str) -> None:
        self._zygote = zygote(device)
        self._connection, theirs = socket.socketpair()
        self._output, their_output = os.pipe()
        os.set_blocking(self._output, False)
        try:
            self.pid = self._zygote.fork(theirs.fileno(), their_output)
        except BaseException:
            _forget(self._zygote)
            raise
        finally:
            theirs.close()
            os.close(their_output)
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._connection, selectors.EVENT_READ)
        self._ready.register(self._output, selectors.EVENT_READ)
        self._printed = b""
        self._number = 0
        self._ended = False
        self._status: int | None = None

    def ask(self, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Sends a message and waits for its answer.

        Raises KernelError if there is none: the process has ended then, whatever it was doing.
        """
        deadline = time.monotonic() + limit_s
        self._number += 1
        try:
            self._connection.sendall(json.dumps({**message, "number": self._number}).encode() + b"\n")
        except OSError:
            raise self._obituary(", between two calls") from None
        parts: list[bytes] = []
        size = 0
        while (left_s := deadline - time.monotonic()) > 0:
            for key, _ in self._ready.select(left_s):
                if key.fd == self._output:
                    self._drain(1)
                    continue
                part = self._receive()
                if not part:
                    raise self._obituary()
                parts.append(part)
                size += len(part)
                if part.endswith(b"\n") or size > _ANSWER_BYTES:
                    return self._read(b"".join(parts))
        self.end(0.0)
        raise KernelError("time limit", f"no answer in {limit_s:g} s{self.last_line()}")

    def last_line(self) -> str:
        """What the kernel printed last, in brackets, or nothing."""
        self._drain(_PIPE_CHUNKS)
        lines = self._printed.decode(errors="replace").split("\n")
        words = ["".join(c if c.isprintable() else " " for c in line).strip() for line in lines]
        found = [word for word in words if word]
        return f" [{found[-1][:200]}]" if found else ""

    def end(self, grace_s: float) -> int | None:
        """Ends the process and its children; returns its wait status, None if that can't be learned."""
        if self._ended:
            return self._status
        try:
            self._status = self._zygote.reap(self.pid, grace_s)
        except UsageError:  # the forking process is gone, and took all of its processes with it
            _forget(self._zygote)
        self._drain(_PIPE_CHUNKS)
        self._ended = True
        self._ready.close()
        self._connection.close()
        os.close(self._output)
        return self._status

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(65536)
        except OSError:
            return b""

    def _drain(self, chunks: int) -> None:
        """Reads what was printed, up to so many chunks of 64 KiB, and keeps the end of it."""
        for _ in range(0 if self._ended else chunks):
            try:
                chunk = os.read(self._output, 65536)
            except BlockingIOError:
                return
            if not chunk:
                if self._output in self._ready.get_map():
                    self._ready.unregister(self._output)
                return
            self._printed = (self._printed + chunk)[-_TAIL_BYTES:]

    def _read(self, answer: bytes) -> dict[str, Any]:
        try:
            reply = json.loads(answer)
            if reply.pop("number") == self._number:
                return reply
        except (ValueError, KeyError, AttributeError):
            pass
        self.end(0.0)
        raise KernelError("died", f"its process answered with something unreadable{self.last_line()}")

    def _obituary(self, when: str = "") -> KernelError:
        status = self.end(_GRACE_S)
        if status is None:
            return KernelError("died", f"its process is gone{when}")
        if not os.WIFSIGNALED(status):
            return KernelError("died", f"exit code {os.waitstatus_to_exitcode(status)}{when}{self.last_line()}")
        number = os.WTERMSIG(status)
        name = (signal.strsignal(number) or "unknown").lower()
        if number == signal.SIGKILL:
            name += ", perhaps because memory ran out"
        return KernelError("crash", f"killed by signal {number} ({name}){when}{self.last_line()}")


_zygotes: dict[bool, Zygote] = {}


def zygote(device: str) -> Zygote:
    """The process that forks for this device, started if there is none; it gets ready by itself, in the background."""
    interpreter = device == "interpreter"
    if interpreter not in _zygotes:
        _zygotes[interpreter] = Zygote(interpreter=interpreter)
    return _zygotes[interpreter]


def _forget(broken: Zygote) -> None:
    for key in [k for k, z in _zygotes.items() if z is broken]:
        _zygotes.pop(key).close()


@atexit.register
def _end_all() -> None:
    for each in list(_zygotes.values()):
        _forget(each)
