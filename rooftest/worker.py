"""What runs in a kernel's process: it takes messages, runs the kernel, and says in one line what went wrong.

The process was forked by rooftest.zygote, so torch and triton are there and CUDA is untouched. It answers in JSON only.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import random
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import triton

from rooftest import genuine, states
from rooftest.arena import Arena, Placement
from rooftest.closures import timed  # before a kernel can replace what it measures with
from rooftest.costs import First
from rooftest.fence import Fenced, move
from rooftest.gate import imports, same
from rooftest.kernel import Fault, Kernel
from rooftest.modes import MODES

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class Worker:
    """One kernel on one device."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        self.device: str = message["device"]
        self.torch_device = self.device if self.device.startswith("cuda") else "cpu"
        self.outputs = tuple(message["outputs"])
        self.arena: Arena | None = None
        self.earlier: list[torch.Tensor] = []
        _surroundings(message)
        trees = message["trees"]
        if "base" in trees:
            imports.install(trees["head"], trees["base"])
        self.watch = same.Watch(trees["watch"]) if "watch" in trees else None
        if self.torch_device != "cpu":
            torch.cuda.set_device(self.torch_device)
            torch.cuda.init()
        if self.device == "interpreter":
            from rooftest import interpreter

            interpreter.install()
        self.first = First()
        self.kernel = Kernel(message["row"], message["args"], self.outputs, message["laid_out"])
        self.fresh = states.read()

    def call(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Runs one call; the fields of rooftest.process.Reply."""
        arena = self._attach(message["arena"])
        scalars = dict(message["scalars"])
        poison = scalars.pop("__poison__", None)
        sets: list[dict[str, torch.Tensor]] = [{}]
        moved: list[Fenced] = []
        for place, fields in enumerate(message["placements"]):
            placement = Placement(**fields)
            side = message["fences"].get(placement.name)
            # A name that stands there for the second time belongs to the second call.
            if placement.name in sets[-1]:
                sets.append({})
            if side is None:
                sets[-1][placement.name] = placement.view(arena.bytes)
            else:
                moved.append(move(placement, arena.bytes, side, place))
                sets[-1][placement.name] = moved[-1].tensor
        # A graph replays into the memory that it captured, so only a plain call must return memory of its own.
        earlier = self.earlier if message["mode"] == "plain" else None
        calls = [self.kernel.bind({**sets[0], **tensors}, scalars, poison, earlier=earlier) for tensors in sets]
        self.synchronize()
        start = time.perf_counter()
        plain = message["mode"] == "plain"
        with self.first.watch(list(sets[0].values()), self.synchronize) if plain else nullcontext():
            more = MODES[message["mode"]](calls, message["repeat"])
        self.synchronize()
        seconds = time.perf_counter() - start
        for tensor in moved:
            tensor.back()
        if moved:
            self.synchronize()  # the grader reads the arena as soon as it has the answer
        return {"seconds": seconds, "launches": None, "note": None} | more

    def measure(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Measures; see rooftest.closures."""
        placements = [Placement(**fields) for fields in message["placements"]]
        memory = self._attach(message["arena"]).bytes if placements else None
        views = {p.name: p.view(memory) for p in placements if memory is not None}
        try:
            return {"record": timed(self.kernel, self.torch_device, message["request"], views, self.first)}
        finally:
            torch.cuda.empty_cache()  # a workload takes gigabytes, and other kernels' processes wait beside this one

    def fingerprint(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """What the workload is made of; see rooftest.gate.same."""
        assert self.watch is not None
        return same.fingerprint(self.watch, self.kernel, self.torch_device, message["request"])

    def _attach(self, handle: Mapping[str, Any] | None) -> Arena:
        """The memory shared with the grader, another one than before if a handle came."""
        if handle is not None:
            self.arena = None  # the old one goes before the new one comes
            self.arena = Arena.attach(dict(handle))
        assert self.arena is not None
        return self.arena

    def undecidable(self, dtypes: Sequence[str]) -> dict[str, str]:
        """Which of the dtypes Triton's interpreter can't decide here, and why."""
        if self.device != "interpreter":
            return {}
        from rooftest.interpreter import decidable

        return {p: why for p in dtypes if (why := decidable(p))}

    def synchronize(self) -> None:
        """Waits until the device is idle, so that an error of the call is reported with the call."""
        if self.torch_device != "cpu":
            genuine.synchronize()


def main(connection_fd: int, output_fd: int) -> NoReturn:
    """Serves until the connection ends; leaves without cleaning up, as nothing here outlives the process."""
    try:
        _isolate(connection_fd, output_fd)
        connection = socket.socket(fileno=connection_fd)
        worker: Worker | None = None
        for line in connection.makefile("rb"):
            message = json.loads(line)
            try:
                if message["do"] == "start":
                    worker = Worker(message)
                    reply = worker.kernel.describe() | {"undecidable": worker.undecidable(message["row"]["dtypes"])}
                else:
                    reply = getattr(worker, message["do"])(message)
            except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt are the kernel's too
                reply = _report(error, worker)
            if "kind" in reply and not reply["dead"]:
                _let_go()
            connection.sendall(json.dumps({**reply, "number": message["number"]}).encode() + b"\n")
            if reply.get("dead"):
                break
    finally:
        os._exit(0)


def _let_go() -> None:
    """Frees what an exception held: a frame that names it keeps itself alive, and with it its tensors."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # the grader computes on the same device


def _isolate(connection_fd: int, output_fd: int) -> None:
    """A process group of its own, nothing of the grader's terminal, and first in line when memory runs out.

    It ends when the process that forked it does: nobody else could end it then.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    with suppress(PermissionError):  # the forking process may have done it first
        os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output_fd, 1), (output_fd, 2)):
        os.dup2(source, target)
        os.close(source) if source != output_fd else None
    os.close(output_fd)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.set_inheritable(connection_fd, False)  # noqa: FBT003 - it takes no keyword
    # A fork of the kernel's must not answer for it, nor keep the connection open after it died.
    held = ExitStack()  # closes once: in a fork of a fork the number may be another file's
    held.callback(os.close, connection_fd)
    os.register_at_fork(after_in_child=held.close)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - a file of the kernel's
        file.write("1000")


def _surroundings(message: Mapping[str, Any]) -> None:
    """What the grader's process has: environment, import path; the row's folder comes first."""
    keep = {k: v for k, v in os.environ.items() if k == "TRITON_INTERPRET"}
    given = {k: v for k, v in message["environment"].items() if k != "TRITON_INTERPRET"} | keep
    for name in set(os.environ) - set(given):
        del os.environ[name]
    os.environ.update(given)
    root = message["row"]["root"]
    sys.path[:] = [root, *message["path"]] if root else message["path"]
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the state that old code uses
    torch.manual_seed(0)


def _report(error: BaseException, worker: Worker | None) -> dict[str, Any]:
    """Kind and one line; `dead` where this process can't go on."""
    kind, cause, dead = _judge(error)
    if worker is None:
        return {
            "kind": "import",
            "cause": cause if kind in ("import", "exception") else f"{kind}: {cause}",
            "dead": True,
        }
    if worker is not None:
        try:
            worker.synchronize()
        except BaseException as sticky:  # noqa: BLE001 - the context is lost, whatever it is called
            return {"kind": "crash", "cause": _line(sticky).removeprefix("CUDA error: "), "dead": True}
        # What an exception left changed would be blamed on a later call, or change what it computes.
        dead = dead or bool(states.changes(worker.fresh, states.read()))
    return {"kind": kind, "cause": cause, "dead": dead}


# How torch on the CPU, Triton and cuBLAS say that memory ran out: by a RuntimeError.
_MEMORY = ("can't allocate memory", "Triton Error [CUDA]: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def _judge(error: BaseException) -> tuple[str, str, bool]:
    if isinstance(error, Fault):
        return error.kind, error.cause, error.dead
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(words in _line(error) for words in _MEMORY)
    ):
        return "out of memory", _line(error) or type(error).__name__, True  # what filled the memory goes too
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return "died", f"exit code {code}", True
    frame = _frame(error)
    said = _line(error)
    if frame is None:
        return "exception", f"{type(error).__name__}: {said}".removesuffix(": "), False
    if isinstance(error, AssertionError) and not said:
        said = (frame.line or "")[:300]
    place = f" ({Path(frame.filename).name}:{frame.lineno} in {frame.name})"
    return "exception", f"{type(error).__name__}: {said}".removesuffix(": ") + place, False


# Code that is not the kernel's: a place in it tells its author nothing.
_FOREIGN = (
    *(str(Path(m.__file__).parent) + os.sep for m in (torch, triton, importlib) if m.__file__),
    str(Path(__file__).parent) + os.sep,
    "<frozen ",
)


def _frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of the kernel's own code, None if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f for f in reversed(frames) if not f.filename.startswith(_FOREIGN)), None)


def _line(error: BaseException) -> str:
    """The first line of an error's message; of a compiler's, whose first line is a position, the last one too."""
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:  # noqa: BLE001 - an exception that can't even be printed
        return "its message can't be printed"
    if len(lines) > 1 and lines[0].startswith("at "):
        lines[0] += " " + lines[-1]
    return lines[0][:300] if lines else ""
