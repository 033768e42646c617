"""What a workload runs, on one side: files and launches; and whether two sides run the same, so need no timing.

`Watch` and `fingerprint` run in a kernel's process that is for this alone: a launch goes by way of ours there.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftest.gate.imports import harness, inside, loaded

if TYPE_CHECKING:
    from rooftest.kernel import Kernel
    from rooftest.rows import Row

RUN = ("call", "prepare", "args", "configs")
"""Keys of a row that say what is run; the others say what is promised of it."""


class Watch:
    """From its making on: which files of a tree this process reads, and what it launches.

    An audit hook sees every file that Python opens: tuned parameters in a JSON file, the CUDA source of an extension.
    """

    def __init__(self, tree: str) -> None:
        self.tree = Path(tree).resolve()
        self._opened: set[str] = set()
        self._mapped = _mapped()
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            mode = arguments[1]
            if not (isinstance(mode, str) and set(mode) & set("wax")):
                self._opened.add(os.path.abspath(os.fsdecode(arguments[0])))  # noqa: PTH100 - it may be gone

    def files(self) -> dict[str, str]:
        """The sha256 of each file of the tree that was read, by its place there, and of libraries built elsewhere."""
        paths = {path for _, path in loaded()} | {Path(p) for p in self._opened}
        found, ours = {}, harness()
        for path in {p.resolve() for p in paths | set(map(Path, _mapped()))}:
            if (
                inside(path, self.tree)
                and "__pycache__" not in path.parts
                and path.is_file()
                and path.parent not in ours
            ):
                found[path.relative_to(self.tree).as_posix()] = _digest(path.read_bytes())
        for path in map(Path, _mapped() - self._mapped):
            if not inside(path, self.tree) and not _systems(path) and path.is_file():
                found[f"library {path.name}"] = found.get(f"library {path.name}", "") + _digest(path.read_bytes())
        return found


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _mapped() -> set[str]:
    """The shared libraries of this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    names = {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}
    return {name for name in names if ".so" in Path(name).name and name.startswith("/")}


def _systems(path: Path) -> bool:
    """Whether a library comes with the system, with Python, or from Triton's cache (launchers: they follow from what is
    launched).
    """  # noqa: D205 - one sentence
    from rooftest.gate.trees import foreign

    return foreign(path) or path.parts[1:2] in (("usr",), ("lib",), ("lib64",)) or path.name.startswith(
        ("__triton_launcher", "cuda_utils")
    )  # fmt: skip


def fingerprint(watch: Watch, kernel: Kernel, device: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Call the workload twice, so that what compiles or tunes is done, and say what it was: JSON-able.

    files      as Watch.files
    launches   one for each of the second call's; None where something else than Triton launched, or nobody can tell
    """
    import torch

    from rooftest.closures import closures, tensors
    from rooftest.spec import load

    spec, alone = load(request["op"]), {**request, "reference": None}
    with torch.no_grad():
        inputs = tensors(spec, device, alone)
        call = closures(kernel, spec, device, alone, inputs)[request["row"]]
        launches = _launches(call) if device != "cpu" else None
    return {"files": watch.files(), "launches": launches}


def _launches(call: Callable[[], object]) -> list[dict[str, Any]] | None:
    """What one call launches, each with the hash of its machine code."""
    from triton.runtime import jit

    from rooftest import genuine

    found: list[dict[str, Any]] = []
    run = jit.JITFunction.run

    def recorded(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        if not warmup:
            found.append(_launch(kernel, compiled, args, kwargs, grid))
        return compiled

    jit.JITFunction.run = recorded
    try:
        traced = genuine.events_of(call)
    except Exception:  # noqa: BLE001 - no tracer, a launch of another shape: then files alone decide
        return None
    finally:
        jit.JITFunction.run = run
    names = Counter(event.name for event in traced)
    return found if found and names == Counter(launch["name"] for launch in found) else None


def _launch(kernel: Any, compiled: Any, args: Any, kwargs: Any, grid: Any) -> dict[str, Any]:
    from rooftest.compiled import elf

    names = list(kernel.signature.parameters)
    bound = kernel.signature.bind(*args, **{k: v for k, v in kwargs.items() if k in names})
    bound.apply_defaults()
    blocks = grid(dict(bound.arguments)) if callable(grid) else grid
    told = compiled.metadata._asdict()
    return {
        "name": str(compiled.metadata.name),
        "code": elf.code_digest(compiled.asm["cubin"], "its machine code"),
        "grid": [int(n) for n in blocks],
        "launch": {k: told.get(k) for k in ("num_warps", "num_ctas", "shared", "cluster_dims", "launch_pdl")},
        "arguments": {name: _word(value) for name, value in bound.arguments.items()},
    }


def _word(value: Any) -> str:
    """An argument without its address: what a tensor looks like, the value of a number."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        steps = value.stride() if callable(getattr(value, "stride", None)) else getattr(value, "strides", ())
        block = getattr(value, "block_shape", ())
        return f"{getattr(value, 'dtype', '')} {[*map(int, shape)]} {[*map(int, steps)]} {[*map(int, block)]}"
    if isinstance(value, (int, float, str, bool, type(None))):
        return repr(value)
    return str(getattr(value, "__name__", type(value).__name__))


def differences(base: Mapping[str, Any], head: Mapping[str, Any], rows: tuple[Row, Row]) -> list[str]:
    """What differs between two sides in words, none if both run the same.

    Equal files read by equal rows do; equal launches with nothing else launched do too, whatever the files say: the
    lines of a kernel may have moved. Nothing read of either tree says nothing.
    """
    found = [f"row: {key}" for key in RUN if getattr(rows[0], key) != getattr(rows[1], key)]
    one, two = base["launches"], head["launches"]
    if one is not None and one == two:
        return [word for word in found if word not in ("row: call", "row: args")]
    files = {**base["files"], **head["files"]}
    found += sorted(name for name in files if base["files"].get(name) != head["files"].get(name))
    return found or ([] if files else ["no file of either tree was read"])
