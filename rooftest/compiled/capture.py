"""What a kernel's launcher launches, recorded in a process without a GPU and, if asked, compiled there.

`run` is for a process of its own that ends afterwards (rooftest.compiled.child): it replaces parts of torch and Triton.
The launcher is the kernel's real one; Triton itself derives signature, constants and alignment from its arguments.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooftest.gate.same import Watch

_VALUES = ("cannot be called on meta tensors", "Cannot copy out of meta tensor", "meta tensor; no data")
# What a compiler's own line reads like, among lines that say where it was.
_TELLING = re.compile(r"error|fatal|cannot|assert|failed|not supported|unsupported", re.IGNORECASE)
_SILENT = ("error encountered during parsing", "PassManager::run failed")
LOG = "log.txt"  # in the folder of a request: what the process wrote to stdout and stderr
_NOISE = re.compile(
    r"^(Traceback|File |\^|note:|#\d|PLEASE|Internal Triton PTX|Stack dump|.*recommended|Repro command)", re.IGNORECASE
)


@dataclass(frozen=True)
class Launch:
    """One launch: JSON-able, all that the compiler was given.

    function: "module:name"; signature: each parameter's type as its compiler names it; constants: each constant's text;
    attributes: what is known of each argument, such as divisibility by 16; options: num_warps, num_stages, maxnreg ...;
    descriptors: shape, strides, block and layout of each tensor descriptor that the host made.
    """

    function: str
    signature: Mapping[str, str]
    constants: Mapping[str, str]
    attributes: Mapping[str, Any]
    options: Mapping[str, Any]
    grid: tuple[int, ...]
    descriptors: Mapping[str, Any]


def line(text: str) -> str:
    """The line of a compiler's output that says what is wrong."""
    lines = [each.strip() for each in text.splitlines() if each.strip() and not _NOISE.match(each.strip())]
    telling = [each for each in lines if _TELLING.search(each)]
    return (telling[0] if telling else lines[-1] if lines else "it said nothing")[:400]


def run(request: Mapping[str, Any], folder: Path) -> None:
    """Call the kernel once on the case, and write what it launched to `folder`: found.json, N.cubin, N.ptx.

    request: op, row (call, prepare, configs, root, dtypes), args, outputs, laid_out, case, generation, path, compile;
    tree, the folder that the kernel's source lies in; head, where tree stands in that one's place, else None.
    """
    from rooftest.gate import imports, same

    sys.path[:] = request["path"]
    if request["head"]:
        imports.install(request["head"], request["tree"])
    watch = same.Watch(request["tree"]) if request["tree"] else None
    before = set(sys.modules)
    found: dict[str, Any] = {"launches": [], "error": None}
    try:
        recorder = Recorder(folder, request["generation"], compiles=request["compile"])
        _call(request, recorder)
        found["launches"] = recorder.found
    except BaseException as error:  # noqa: BLE001 - a launcher may raise anything; the grader says what it was
        found["error"] = _words(error)
    found["files"] = _files(before) | (_read(watch, folder) if watch else {})
    (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


class Recorder:
    """Stands in JITFunction.run and cuTile's launch: every launch is recorded, and compiled instead of launched."""

    def __init__(self, folder: Path, name: str, *, compiles: bool) -> None:
        from triton.runtime import jit

        from rooftest.compiled import pretend, tile
        from rooftest.compiled.generations import generation

        self.folder, self.generation, self.compiles = folder, generation(name), compiles
        self.found: list[dict[str, Any]] = []
        self.mode = pretend.install(self.generation)
        self._given: tuple[Any, ...] | None = None
        self._known: dict[int, tuple[Any, ...]] = {}
        self._run, self._compile = jit.JITFunction.run, jit.JITFunction._do_compile  # noqa: SLF001
        tile.install(self)
        jit.JITFunction.run = self._launched()
        jit.JITFunction._do_compile = self._asked()  # noqa: SLF001

    def _asked(self) -> Any:
        """Instead of JITFunction._do_compile: keep what it is given."""

        def compile_(kernel: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, attributes: Any,
                     warmup: Any) -> Any:  # fmt: skip
            self._given = (signature, constants, options, attributes)
            if not self.compiles:
                return None
            return self._compile(kernel, key, signature, device, constants, options, attributes, warmup)

        return compile_

    def _launched(self) -> Any:
        """Instead of JITFunction.run: the same up to where the GPU would be needed."""

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:  # noqa: ARG001 - as Triton calls it
            entry: dict[str, Any] = {"error": None, "metadata": None, "file": None}
            self._given, compiled = None, None
            try:
                compiled = self._run(kernel, *args, grid=grid, warmup=True, **kwargs)
                if compiled is not None:
                    self._given = self._known.setdefault(id(compiled), self._given or ())
                    entry |= self._kept(compiled)
            except Exception as error:  # noqa: BLE001 - the compiler's own, of many kinds
                entry["error"] = self.refused(error)
            if self._given is None:  # it did not come as far as the compiler
                raise RuntimeError(entry["error"])
            entry["launch"] = asdict(_launch(kernel, args, kwargs, grid, self._given))
            self.found.append(entry)
            return compiled

        return run

    def refused(self, error: BaseException) -> str:
        """That it does not compile, in the compiler's own line: what it only wrote to stderr is in the log."""
        words, log = _words(error), self.folder / LOG
        silent = any(each in words for each in _SILENT) and log.is_file()
        said = line(log.read_text(encoding="utf-8", errors="replace")) if silent else ""
        return f"does not compile for {self.generation.name}: {said if _TELLING.search(said) else words}"

    def keep(self, cubin: bytes, metadata: Mapping[str, Any], ptx: str = "") -> dict[str, Any]:
        """Write what the compiler made beside found.json; what an entry says of it."""
        name = hashlib.sha256(cubin).hexdigest()[:16]
        (self.folder / f"{name}.cubin").write_bytes(cubin)
        (self.folder / f"{name}.ptx").write_text(ptx, encoding="utf-8")
        return {"metadata": metadata, "file": name}

    def _kept(self, compiled: Any) -> dict[str, Any]:
        metadata = {
            k: v for k, v in compiled.metadata._asdict().items() if isinstance(v, (str, int, float, type(None)))
        }
        metadata["compiler"] = f"triton {metadata.get('triton_version', '')}".strip()
        shared, most = int(compiled.metadata.shared), self.generation.cta_shared_bytes
        excess = f"can't be launched on {self.generation.name}: it needs {shared} bytes of shared memory, "
        excess += f"a CTA has {most} at most"
        kept = self.keep(compiled.asm["cubin"], metadata, compiled.asm["ptx"])
        return kept | {"error": excess if shared > most else None}


def _launch(kernel: Any, args: Any, kwargs: Any, grid: Any, given: tuple[Any, ...]) -> Launch:
    signature, constants, options, attributes = given
    names = list(kernel.signature.parameters)
    bound = kernel.signature.bind(*args, **{k: v for k, v in kwargs.items() if k in names})
    bound.apply_defaults()
    blocks = grid(dict(bound.arguments)) if callable(grid) else grid
    path = lambda where: ".".join([names[where[0]], *map(str, where[1:])])  # noqa: E731 - a tuple argument has parts
    return Launch(
        function=f"{place(kernel.fn)}:{kernel.fn.__qualname__}",
        signature={name: str(kind) for name, kind in signature.items()},
        constants={path(where): _text(value) for where, value in constants.items()},
        attributes={path(where): value for where, value in attributes.items() if value},
        options={k: v for k, v in vars(options).items() if isinstance(v, (str, int, float, bool))},
        grid=tuple(int(n) for n in blocks),
        descriptors={
            name: {
                "shape": [int(n) for n in value.shape], "strides": [int(n) for n in value.strides],
                "block": [int(n) for n in value.block_shape], "layout": _text(getattr(value, "layout", None)),
            }
            for name, value in bound.arguments.items() if hasattr(value, "block_shape")
        },
    )  # fmt: skip


def place(function: Any) -> str:
    """The module of a function, or its file where that was imported by path and so has a name of ours."""
    module = str(function.__module__)
    return Path(function.__code__.co_filename).name if module.startswith("_rooftest_") else module


def _text(value: Any) -> str:
    """A constant's text, without addresses."""
    return getattr(value, "__name__", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _call(request: Mapping[str, Any], recorder: Recorder) -> None:
    import torch

    from rooftest.case import parse
    from rooftest.kernel import Kernel
    from rooftest.problem import lay_out
    from rooftest.spec import load

    case, spec = parse(request["case"]), load(request["op"])
    with recorder.mode:
        kernel = Kernel(request["row"], request["args"], request["outputs"], request["laid_out"])
        tensors = {}
        if spec.inputs:  # else the function makes its own
            problem = lay_out(spec, case)
            memory = torch.empty(problem.span_bytes, dtype=torch.uint8, device="cuda")
            tensors = {p.name: p.view(memory) for p in problem.placements}
        scalars: dict[str, Any] = dict(case.params)
        if case.dtype in ("float32", "tf32") and "precision" in kernel.parameters:
            scalars["precision"] = case.dtype
        if case.config is not None:
            scalars["config"] = case.config
        call = kernel.bind(tensors, scalars)
        call.function(*call.args, **call.kwargs)


def _words(error: BaseException) -> str:
    """An exception in one line: of a compiler's, its own."""
    from rooftest.kernel import Fault

    if isinstance(error, Fault):
        return error.cause
    text = str(error)
    if any(words in text for words in _VALUES):
        return "the launcher reads the values of a tensor: there are none without a GPU"
    inner = error
    while inner.__cause__ is not None:  # Triton wraps an error in the frames of the kernels around it
        inner = inner.__cause__
    # Triton's and cuTile's own names for what is wrong without the source lines round it.
    told = (getattr(inner, name, None) for name in ("error_message", "message"))
    said = next((text for text in told if isinstance(text, str) and text), None) or str(inner) or str(error)
    return f"{type(inner).__name__}: {line(said)}" if said else type(inner).__name__


def _files(before: set[str]) -> dict[str, str]:
    """Every Python file that the launcher brought in, but for what is installed, with its hash."""
    modules: list[ModuleType] = [m for n, m in list(sys.modules.items()) if n not in before and m is not None]
    paths = {getattr(m, "__file__", None) for m in modules}
    own = (Path(p) for p in paths if p and p.endswith(".py") and "site-packages" not in p)
    return {str(p): digest(p) for p in own if p.is_file() and not p.is_relative_to(Path(sys.base_prefix, "lib"))}


def _read(watch: Watch, mine: Path) -> dict[str, str]:
    """What else of the tree was read, such as tuned parameters, and the folders that a module might have come from."""
    found = [watch.tree / name for name in watch.files() if not any(p.startswith(".") for p in Path(name).parts)]
    kept = [path for path in found if path.is_file() and not path.is_relative_to(mine)]
    return {str(p): digest(p) for p in (*kept, *{path.parent for path in kept})}


def digest(path: Path) -> str:
    """Hash of a file's contents; of a folder, of what Python could import from it."""
    if path.is_dir():
        names = sorted(
            p.name for p in path.iterdir() if p.suffix in (".py", ".so") or (p.is_dir() and p.name[0] not in "._")
        )
        return hashlib.sha256("/".join(names).encode()).hexdigest()
    return hashlib.sha256(path.read_bytes()).hexdigest()
