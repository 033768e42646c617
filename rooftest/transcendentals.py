"""How far the transcendental functions of this GPU are off, over all 2**32 fp32 numbers: measured once, and kept.

A rounding error is judged by what the hardware does, not by what a table promises. Functions as kernels call them:
Triton's own, the device library's, and the fast instructions.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from rooftest import store
from rooftest.cuda import Cuda
from rooftest.errors import UsageError
from rooftest.formats import F64, FP32, ulp
from rooftest.nvml import Identity, Monitor

VERSION = 1
KEYS = ("version", "uuid", "name", "driver", "software", "functions")
CHUNK = 2**24  # numbers at once: some twenty float64 copies of them are 3 GB
SMALLEST = 2.0**FP32.emin  # of the normal numbers
INSTRUCTION = re.compile(r"\b(?:ex2|lg2|rsqrt|sqrt|rcp|tanh|div)\.[\w.]+")


@triton.jit
def rooftest_apply(x_ptr, y_ptr, NAME: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Store f(x) for whole blocks of fp32 numbers, f by its name in FUNCTIONS."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    if NAME == "exp":
        y = tl.exp(x)
    elif NAME == "exp2":
        y = tl.exp2(x)
    elif NAME == "log":
        y = tl.log(x)
    elif NAME == "log2":
        y = tl.log2(x)
    elif NAME == "rsqrt":
        y = tl.rsqrt(x)
    elif NAME == "sqrt":
        y = tl.sqrt(x)
    elif NAME == "sqrt_rn":
        y = tl.sqrt_rn(x)
    elif NAME == "reciprocal":
        y = 1.0 / x
    elif NAME == "sigmoid":
        y = tl.sigmoid(x)
    elif NAME == "erf":
        y = tl.erf(x)
    elif NAME == "tanh":
        y = libdevice.tanh(x)
    else:  # an instruction by its name in PTX
        y = tl.inline_asm_elementwise(NAME + ".f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(y_ptr + at, y)


@dataclass(frozen=True)
class Function:
    """A function in float64, and what of a result's error a reference has to charge for the unit.

    `charged`: x, what is right and the error's magnitude, to units of u = 2**-24.
    """

    exact: Callable[[Tensor], Tensor]
    charged: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda _x, want, error: error / want.abs() * 2**24


def _beyond_argument(x: Tensor, want: Tensor, error: Tensor) -> Tensor:
    """Relative, less the 2 u |x| that references charge by themselves for exp's argument, x log2(e)."""
    return error / want.abs() * 2**24 - 2 * x.abs()


def _near_one(_x: Tensor, want: Tensor, error: Tensor) -> Tensor:
    """Share of max(|want|, 1): near 1 a logarithm's error is absolute."""
    return error / want.abs().clamp(min=1.0) * 2**24


FUNCTIONS = {
    "exp": Function(torch.exp, _beyond_argument),
    "exp2": Function(torch.exp2),
    "log": Function(torch.log, _near_one),
    "log2": Function(torch.log2, _near_one),
    "rsqrt": Function(torch.rsqrt),
    "sqrt": Function(torch.sqrt),
    "sqrt_rn": Function(torch.sqrt),
    "reciprocal": Function(torch.reciprocal),
    "sigmoid": Function(torch.sigmoid),
    "erf": Function(torch.erf),
    "tanh": Function(torch.tanh),
    "ex2.approx": Function(torch.exp2),
    "lg2.approx": Function(torch.log2, _near_one),
    "rsqrt.approx": Function(torch.rsqrt),
    "tanh.approx": Function(torch.tanh),
}
"""What is measured, by name. float64 functions are right within 2**-50: nothing beside an error in fp32."""


def every_float(device: str, chunk: int = CHUNK) -> Iterator[Tensor]:
    """All 2**32 fp32 numbers (infinities and NaN too), `chunk` at a time."""
    for first in range(-(2**31), 2**31, chunk):
        yield torch.arange(first, first + chunk, device=device, dtype=torch.int32).view(torch.float32)


def same(a: Tensor, b: Tensor) -> Tensor:
    """Equal, zeros of either sign, or both NaN."""
    return (a == b) | (a.isnan() & b.isnan())


def sweep(call: Callable[[Tensor], Tensor], function: Function, inputs: Iterable[Tensor]) -> dict[str, Any]:
    """The errors of `call`, fp32 in and out, over the inputs (tensors of one dimension), JSON-able.

    `normal`, results that are normal numbers: the largest relative error (in units of 2**-24) and the largest in ulp,
    each with its input; `charged_u`, the largest that a reference has to charge. `subnormal`, results below them: the
    largest error in units of 2**-149, and how many came as zero. `special`, what is or should be NaN, infinite or zero:
    how many are wrong, and one of them. `inputs_subnormal` stand apart from all of these: how many gave what zero
    gives, wrongly, and the largest relative error of the others.
    """
    peaks: dict[str, tuple[Tensor, Tensor]] = {}
    counts: dict[str, Tensor] = {}

    def count(name: str, where: Tensor) -> None:
        counts[name] = counts.get(name, 0) + where.sum()

    def peak(name: str, where: Tensor, value: Tensor, x: Tensor) -> None:
        new, at = torch.where(where, value, 0.0).max(0)
        kept, kept_x = peaks.get(name, (torch.zeros_like(new), torch.zeros_like(x[0])))
        peaks[name] = torch.where(new > kept, new, kept), torch.where(new > kept, x.take(at), kept_x)

    for x in inputs:
        tiny = (x.abs() < SMALLEST) & (x != 0)
        got, for_zero = call(x), call(torch.where(tiny, x * 0, x))
        want = function.exact(x.to(F64))
        right, error = want.float(), (got.to(F64) - want).abs()
        number = got.isfinite() & right.isfinite() & (right != 0)
        normal = number & ~tiny & (want.abs() >= SMALLEST)
        small = number & ~tiny & (want.abs() < SMALLEST)
        special = ~number & ~tiny
        wrong = special & ~same(got, right)
        flushed = tiny & same(got, for_zero) & ~same(got, right)
        relative = error / want.abs() * 2**24
        for name, where in {
            "normal": normal, "subnormal": small, "subnormal_as_zero": small & (got == 0), "special": special,
            "special_wrong": wrong, "inputs_subnormal": tiny, "inputs_flushed": flushed,
        }.items():  # fmt: skip
            count(name, where)
        peak("relative_u", normal, relative, x)
        peak("charged_u", normal, function.charged(x.to(F64), want, error), x)
        peak("ulp", normal, error / ulp(want, FP32), x)
        peak("subnormal_eta", small, error * 2.0**149, x)
        peak("special_wrong", wrong, torch.ones_like(error), x)
        peak("inputs_relative_u", tiny & ~flushed & number, relative, x)
    found = {name: {"value": float(value), "x": float(x).hex()} for name, (value, x) in peaks.items()}
    n = {name: int(value) for name, value in counts.items()}
    return {
        "charged_u": found["charged_u"],
        "normal": {"count": n["normal"], "relative_u": found["relative_u"], "ulp": found["ulp"]},
        "subnormal": {
            "count": n["subnormal"],
            "as_zero": n["subnormal_as_zero"],
            "smallest_numbers": found["subnormal_eta"],
        },
        "special": {
            "count": n["special"],
            "wrong": n["special_wrong"],
            "x": found["special_wrong"]["x"] if n["special_wrong"] else None,
        },
        "inputs_subnormal": {
            "count": n["inputs_subnormal"],
            "flushed": n["inputs_flushed"],
            "relative_u": found["inputs_relative_u"],
        },
    }


def compiled(name: str) -> tuple[Callable[[Tensor], Tensor], list[str]]:
    """The function as a kernel of the current GPU has it, and (after its first call) the instructions it came to."""
    instructions: list[str] = []
    block = 1024

    def call(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        kernel = rooftest_apply[(x.numel() // block,)](x, y, NAME=name, BLOCK=block)
        instructions[:] = sorted(set(INSTRUCTION.findall(kernel.asm["ptx"])))
        return y

    return call, instructions


def measure(device: Cuda, monitor: Monitor) -> dict[str, Any]:
    """Measure every function on the current GPU (about a second each) and return them with their provenance."""
    begun, identity = time.perf_counter(), monitor.identity()
    functions: dict[str, Any] = {}
    for name, function in FUNCTIONS.items():
        call, instructions = compiled(name)
        try:
            functions[name] = sweep(call, function, every_float("cuda")) | {"instructions": instructions}
        except Exception as error:  # noqa: BLE001  a compiler raises what it likes for an instruction that a GPU lacks
            functions[name] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    return {
        "version": VERSION,
        "uuid": identity.uuid or device.uuid,
        "name": identity.name or device.properties.name,
        "driver": identity.driver,
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "software": _software(),
        "functions": functions,
        "seconds": time.perf_counter() - begun,
    }


def _software() -> dict[str, str]:
    return {"torch": torch.__version__, "triton": triton.__version__}


def cache_path(identity: Identity) -> Path:
    """Where the errors of a GPU are kept: one file for each UUID, driver, and version of torch and of the compiler."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = "-".join((str(identity.uuid), str(identity.driver), *_software().values()))
    return root / "rooftest" / "transcendentals" / f"{name}.json"


def load(path: Path) -> dict[str, Any]:
    """Errors from a file; raises UsageError when it cannot be used."""
    data = store.load(path)
    if not isinstance(data, dict) or data.get("version") != VERSION or any(key not in data for key in KEYS):
        raise UsageError(f"{path} holds no errors of version {VERSION}; delete it, and they are measured again.")
    return data


def transcendentals(device: Cuda, monitor: Monitor, *, again: bool = False) -> dict[str, Any]:
    """The errors on the current GPU from the cache, or measured and kept; `again` measures whatever the cache holds."""
    path = cache_path(monitor.identity())
    if not again and path.exists():
        try:
            return load(path)
        except UsageError:
            pass  # an old or broken cache is measured anew and overwritten
    data = store.finite(measure(device, monitor))
    try:
        store.write(path, data)
    except UsageError as error:
        data["not_cached"] = str(error)
    return data
