"""CUDA Tile's kernels (cuTile Python): what a launcher gives `ct.launch`, recorded and compiled without GPU and driver.

For a process of its own that ends afterwards, as rooftest.compiled.capture. cuTile derives signature, constants and
divisibility from a launch's arguments itself, but asks for the driver first; one that says yes to everything is enough.
"""

from __future__ import annotations

import ctypes
import io
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from inspect import signature as parameters_of
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooftest.compiled.capture import Launch, Recorder

PACKAGE = "cuda-tile"
COMPILERS = ("nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm")  # what the compiler is, and what it calls
_DRIVER = 13000  # the least that cuTile takes
# cuTile's module that loads the driver, and what it then asks it for functions with: cuGetProcAddress in <cuda.h>.
_LOADER, _POINTER = "cuda.tile._load_libcuda", "cuGetProcAddress_v2_ptrptr"
_Find = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p
)
_Version = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
_Any = ctypes.CFUNCTYPE(ctypes.c_int)


@cache
def tools() -> Mapping[str, str]:
    """The versions of cuTile and its compiler, as far as they are installed; where another compiler would be found."""
    found = {}
    for name in (PACKAGE, *COMPILERS):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"tileiras": shutil.which("tileiras") or ""}


def install(recorder: Recorder) -> None:
    """Have this process's launches of cuTile's kernels recorded; nothing where it is not installed."""
    if PACKAGE not in tools():
        return
    import cuda.tile

    sys.modules[_LOADER] = _Driver()
    cuda.tile.launch = lambda _stream, grid, kernel, args, /, **_: _record(recorder, grid, kernel, args)


class _Driver(ModuleType):
    """Stands where cuTile loads CUDA's driver: each function succeeds and does nothing."""

    def __init__(self) -> None:
        super().__init__(_LOADER)
        self._version, self._done, self._find = _Version(_say_version), _Any(lambda: 0), _Find(self._function)
        self._cell = ctypes.cast(self._find, ctypes.c_void_p)
        setattr(self, _POINTER, ctypes.addressof(self._cell))

    def _function(self, name: bytes, place: Any, *_: Any) -> int:
        place[0] = ctypes.cast(self._version if name == b"cuDriverGetVersion" else self._done, ctypes.c_void_p).value
        return 0


def _say_version(place: Any) -> int:
    place[0] = _DRIVER
    return 0


def _record(recorder: Recorder, grid: Any, kernel: Any, args: Any) -> None:
    from cuda.tile.compilation import CallingConvention, KernelSignature, export_kernel

    # cuTile's own symbol is the name with the whole signature, some 200 characters.
    name = kernel._pyfunc.__name__  # noqa: SLF001 - no public way
    convention = CallingConvention.cutile_python_v2()
    signature = KernelSignature.from_kernel_args(kernel, tuple(args), convention, symbol=name)
    entry: dict[str, Any] = {"error": None, "metadata": None, "file": None}
    entry["launch"] = asdict(_launch(kernel, signature, grid))
    if recorder.compiles:
        cubin = io.BytesIO()
        try:
            arch = recorder.generation.name
            export_kernel(kernel, [signature], cubin, gpu_code=arch, output_format="cubin")
            compiler = f"tileiras {tools().get(COMPILERS[0], '')}".strip()
            # Shared memory is the cubin's own affair: a launch adds none.
            entry |= recorder.keep(cubin.getvalue(), {"name": name, "shared": 0, "compiler": compiler})
        except Exception as error:  # noqa: BLE001 - the compiler's own, of many kinds
            entry["error"] = recorder.refused(error)
    recorder.found.append(entry)


def _launch(kernel: Any, signature: Any, grid: Any) -> Launch:
    """The launch in the words of Triton's: types, constants, and what is taken for granted of each argument."""
    from cuda.tile.compilation import ConstantConstraint

    from rooftest.compiled.capture import Launch, place

    given = dict(zip(parameters_of(kernel._pyfunc).parameters, signature.parameters, strict=True))  # noqa: SLF001
    constants = {name: each for name, each in given.items() if isinstance(each, ConstantConstraint)}
    others = {name: _fields(each) for name, each in given.items() if name not in constants}
    options = {field.name: getattr(kernel._compiler_options, field.name) for field in fields(kernel._compiler_options)}  # noqa: SLF001
    return Launch(
        function=f"{place(kernel._pyfunc)}:{kernel._pyfunc.__qualname__}",  # noqa: SLF001
        signature={
            name: " ".join([each["dtype"], *([f"{each['ndim']}-D"] if "ndim" in each else [])]) if "dtype" in each
            else str(given[name]) for name, each in others.items()
        },
        constants={name: repr(each.value) for name, each in constants.items()},
        attributes={
            name: {k: v for k, v in each.items() if k not in ("dtype", "ndim")}
            for name, each in others.items() if "ndim" in each
        },
        options={k: v if isinstance(v, (int, str)) else str(v) for k, v in options.items() if v is not None},
        grid=tuple(int(n) for n in grid),
        descriptors={},
    )  # fmt: skip


def _fields(constraint: Any) -> dict[str, Any]:
    """What is known of one argument, as plain data."""
    found = {field.name: getattr(constraint, field.name) for field in fields(constraint)}
    return {k: v if isinstance(v, (bool, int, tuple)) else str(v) for k, v in found.items()}
