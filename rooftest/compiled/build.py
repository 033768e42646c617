"""A row's launches and what the compiler makes of them, kept on disk: the grader's side of rooftest.compiled.child."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rooftest.case import Case
from rooftest.compiled import tile
from rooftest.compiled.capture import LOG, Launch, digest, line
from rooftest.compiled.child import LIMIT_S
from rooftest.compiled.generations import generation as known
from rooftest.errors import UsageError
from rooftest.rows import Row
from rooftest.spec import Workload

KEPT = "found.json"
Request = tuple[Row, Workload, str, str, str]
"""Row, workload, dtype, layout, generation."""
_OWN = ("capture", "child", "generations", "pretend", "tile")  # our files that decide what is launched and made
_VARIABLES = ("TRITON_", "LLVM_", "MLIR_", "PTXAS", "CUDA_TILE", "CUDA_HOME")
TREE = "$TREE"
"""Stands for the kernel's tree in what is kept."""


class CompileError(Exception):
    """A kernel that does not compile, or can't be launched as compiled; one line, the compiler's where it has one."""


@dataclass(frozen=True)
class Built:
    """One compiled kernel.

    ptx: empty where the compiler hands out none. metadata: what it says of the kernel (name, shared bytes ...), and
    which compiler it was. place: of the cubin.
    """

    launch: Launch
    cubin: bytes
    ptx: str
    metadata: Mapping[str, Any]
    place: Path


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the tree that its code comes from, in the place of head's."""

    tree: Path
    head: Path


def launches(row: Row, workload: Workload, dtype: str, layout: str, generation: str) -> list[Launch]:
    """What one call of the row's launcher on the workload would launch, in order; nothing is compiled.

    Raises UsageError for an unknown generation, CompileError if the launcher can't be run.
    """
    found = _found(_request(row, workload, dtype, layout, generation, compiles=False))[0]
    return [Launch(**entry["launch"]) for entry in found["launches"]]


def build(
    row: Row, workload: Workload, dtype: str, layout: str, generation: str, side: Side | None = None
) -> list[Built]:
    """The kernels that one call launches, each once, compiled for a generation. Empty if it launches none.

    Without a side the kernel is that of the tree at hand. Raises UsageError for an unknown generation, CompileError
    naming the kernel that does not compile.
    """
    found, folder = _found(_request(row, workload, dtype, layout, generation, side, compiles=True))
    built: dict[str, Built] = {}
    for entry in found["launches"]:
        launch, file = Launch(**entry["launch"]), entry["file"]
        if entry["error"]:
            raise CompileError(f"{launch.function} {entry['error']}")
        if file not in built:
            place = folder / f"{file}.cubin"
            ptx = place.with_suffix(".ptx").read_text(encoding="utf-8")
            built[file] = Built(launch, place.read_bytes(), ptx, entry["metadata"], place)
    return list(built.values())


def _request(
    row: Row, workload: Workload, dtype: str, layout: str, generation: str, side: Side | None = None, *, compiles: bool
) -> dict[str, Any]:
    known(generation)
    case = Case(row.op, row.name, dtype, layout, dict(workload.sizes), dict(workload.params))
    return {
        "op": row.op,
        "row": {k: getattr(row, k) for k in ("call", "prepare", "configs", "root", "dtypes")},
        "args": dict(row.args),
        "outputs": tuple(row.spec.outputs),
        "laid_out": row.spec.laid_out,
        "case": str(case),
        "generation": generation,
        "compile": compiles,
        "tree": str(side.tree) if side else row.root,
        "head": str(side.head) if side and side.tree != side.head else None,
        "path": [*([row.root] if row.root else []), *(p for p in sys.path if isinstance(p, str))],
    }


# --- kept results -----------------------------------------------------------------------------------------------


def _store() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rooftest", "compiled")


@cache
def _tools() -> str:
    """What else decides the result: versions, our own files, and the variables by which compilers are told things."""
    own = [digest(Path(__file__).with_name(f"{name}.py")) for name in _OWN]
    told = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(_VARIABLES))
    return repr((version("triton"), version("torch"), dict(tile.tools()), sys.version, own, told))


def _found(request: dict[str, Any], server: _Server | None = None) -> tuple[dict[str, Any], Path]:
    """What the child found, and the folder that it lies in: kept from an earlier run if no file has changed.

    Base has a place of its own, or both sides would build what differs in every run; but the same files in the other
    tree give the same.
    """
    tree = request["tree"]
    text = json.dumps({k: v for k, v in request.items() if k not in ("path", "tree", "head")})
    text = (text.replace(tree, TREE) if tree else text) + _tools()
    sides = [_store() / hashlib.sha256(f"{text}{side}".encode()).hexdigest()[:32] for side in ("head", "base")]
    place, other = reversed(sides) if request["head"] else sides
    for kept in (place, other):
        found = _kept(kept, tree)
        if found is not None:
            return found, kept
    place.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=place.parent))
    try:
        found = _made(request | {"folder": str(folder)}, folder, server or _server())
        if tree:
            found["files"] = {p.replace(tree, TREE): was for p, was in found["files"].items()}
            (folder / KEPT).write_text(json.dumps(found), encoding="utf-8")
        shutil.rmtree(place, ignore_errors=True)
        folder.rename(place)  # at once: another process may be about to read it
    except OSError:  # another process was faster with the same
        found = json.loads((place / KEPT).read_text(encoding="utf-8"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found, place


def _kept(place: Path, tree: str) -> dict[str, Any] | None:
    """What was found earlier, None where a file has changed since."""
    if not (place / KEPT).is_file():
        return None
    found: dict[str, Any] = json.loads((place / KEPT).read_text(encoding="utf-8"))
    files = {Path(p.replace(TREE, tree)): was for p, was in found["files"].items()}
    return found if all(p.exists() and digest(p) == was for p, was in files.items()) else None


def _made(request: dict[str, Any], folder: Path, server: _Server) -> dict[str, Any]:
    status = server.ask(request)
    if status or not (folder / KEPT).is_file():
        said = line((folder / LOG).read_text(encoding="utf-8", errors="replace"))
        how = f"{_ending(status)}: {said}"
        raise CompileError(f"{request['row']['call']} does not compile for {request['generation']}: {how}")
    found: dict[str, Any] = json.loads((folder / KEPT).read_text(encoding="utf-8"))
    if found["error"]:
        raise CompileError(f"{request['row']['call']} can't be called for {request['generation']}: {found['error']}")
    return found


def _ending(status: int) -> str:
    """How a process ended that did not end as it should, by its wait status."""
    if not os.WIFSIGNALED(status):
        return f"the launcher ended the process (exit code {os.WEXITSTATUS(status)})"
    if os.WTERMSIG(status) == signal.SIGALRM:
        return f"not done after {LIMIT_S} s"
    return f"the compiler ended (signal {signal.Signals(os.WTERMSIG(status)).name})"


# --- the process ------------------------------------------------------------------------------------------------


class _Server:
    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - read if the process has ended
        # No GPU, though one is there: only then is the result the same everywhere.
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET" and not k.startswith("PYTEST_")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rooftest.compiled.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        atexit.register(self.close)

    def ask(self, request: dict[str, Any]) -> int:
        """Have one request served; the wait status of the process that did.

        Raises UsageError if the one that forks can't be had.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())
        except (BrokenPipeError, ValueError):  # it ended: an empty line is no number
            self._errors.seek(0)
            last = (self._errors.read().decode(errors="replace").strip() or "it ended").splitlines()[-1]
            raise UsageError(f"the process that compiles kernels failed: {last}") from None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


@cache
def _server() -> _Server:
    return _Server()


def ahead(requests: Sequence[Request]) -> None:
    """Build and read these now, as many at once as there are cores: what is asked for later is found. What fails is
    tried again then, and said.
    """  # noqa: D205 - one sentence
    from rooftest.compiled import reading

    cores = min(len(os.sched_getaffinity(0)), len(requests))
    if cores < 2:
        return
    servers: SimpleQueue[_Server] = SimpleQueue()
    servers.put(_server())
    for _ in range(cores - 1):
        servers.put(_Server())

    def one(request: Request) -> None:
        server = servers.get()
        try:
            with suppress(CompileError, UsageError):
                _found(_request(*request, compiles=True), server)
                for each in build(*request):
                    reading.read(each, request[-1])
        finally:
            servers.put(server)

    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(one, requests))
    while not servers.empty():
        each = servers.get()
        if each is not _server():
            each.close()
