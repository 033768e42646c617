"""State of the whole process that a call must leave as it found it: a table of what is watched and how it is read.

A kernel that changes such a state changes what its caller computes next, and its own later calls, so that its result
depends on the order of calls. What it changes during the call and puts back is its own business, and so is what a
module does while it is imported: whoever imports it has asked for that. Random numbers may be drawn; to seed their
generator is a change.
"""

from __future__ import annotations

import _signal  # signal.getsignal looks up an enumeration: 5 us a signal instead of 0.1
import gc
import locale
import os
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils import _device

_LEAST = 5e-324  # the smallest double, a denormal one
_THREE, _TEN = 3.0, 10.0  # to nearest, a third is rounded down and a tenth up: other modes change one of them
_IMPORTED = "modules imported"  # how many
_SHOWN = 150  # characters; a finding is one line
# By number: an enumeration's name costs more than the rest of the reading.
_SIGNALS = {f"SIG{n}": int(getattr(signal, f"SIG{n}")) for n in ("INT", "TERM", "HUP", "ALRM", "USR1", "CHLD", "SEGV")}
_LIMITS = {n: getattr(resource, f"RLIMIT_{n}") for n in ("AS", "DATA", "NOFILE", "CPU")}
_MODULES = ("torch", "triton", "numpy", "os", "sys", "time")
_FUNCTIONS = {
    "torch.empty": (torch, "empty"),
    "torch.empty_like": (torch, "empty_like"),
    "torch.matmul": (torch, "matmul"),
    "torch.cuda.synchronize": (torch.cuda, "synchronize"),
    "torch.cuda.current_stream": (torch.cuda, "current_stream"),
    "time.perf_counter": (time, "perf_counter"),
    "os._exit": (os, "_exit"),
}


def _precision(backend: Callable[[], Any]) -> Callable[[], str]:
    # "none" is what torch begins with, "ieee" what its older switches put back; both compute the same.
    return lambda: "ieee" if (found := backend().fp32_precision) == "none" else found


def _on_cuda(read: Callable[[], Any]) -> Callable[[], Any]:
    """Nothing where CUDA is untouched: reading must not begin to use it."""
    return lambda: read() if torch.cuda.is_initialized() else None


def _cuda_device() -> int:
    return torch.cuda.current_device()


def _cuda_seed() -> int | None:
    return None if torch.cuda.is_current_stream_capturing() else torch.cuda.initial_seed()  # refused in a capture


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # looks, and takes nothing away
    except ChildProcessError:
        return False
    return True


class Arrivals(frozenset[str]):
    """Names of which only new ones are a change: a thread that its module started may end at any time."""

    def __ne__(self, later: object) -> bool:
        return not (isinstance(later, Arrivals) and later <= self)

    __hash__ = frozenset.__hash__


_torch: Any = torch  # whose stubs lack some of these attributes
_matmul, _cudnn, _sdp = _torch.backends.cuda.matmul, _torch.backends.cudnn, _torch.backends.cuda

# Read before and after each judged call, 45 us together: functions in C, or next to it. Of a mapping only the names
# of what differs are told, as the environment holds passwords.
STATES: Mapping[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype,
    "default device": lambda: _device.CURRENT_DEVICE,
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "anomaly detection": torch.is_anomaly_enabled,
    "autocast": lambda: {name: torch.is_autocast_enabled(name) for name in ("cuda", "cpu")},
    "function modes": torch._C._len_torch_function_stack,  # noqa: SLF001 - torch has no public reader
    "dispatch modes": torch._C._len_torch_dispatch_stack,  # noqa: SLF001 - likewise
    "deterministic algorithms": torch.get_deterministic_debug_mode,
    "fill of uninitialized memory": lambda: _torch.utils.deterministic.fill_uninitialized_memory,
    "fp32 precision of CUDA's matmul": _precision(lambda: _matmul),
    "fp32 precision of cuDNN's convolutions": _precision(lambda: _cudnn.conv),
    "fp32 precision of the CPU's matmul": _precision(lambda: _torch.backends.mkldnn.matmul),
    "reduced-precision reductions in fp16": lambda: _matmul.allow_fp16_reduced_precision_reduction,
    "reduced-precision reductions in bf16": lambda: _matmul.allow_bf16_reduced_precision_reduction,
    "accumulation in fp16": lambda: _matmul.allow_fp16_accumulation,
    "preferred BLAS library": torch._C._get_blas_preferred_backend,  # noqa: SLF001 - the public one imports
    "cuDNN flag": lambda: {
        "enabled": _cudnn.enabled, "benchmark": _cudnn.benchmark, "deterministic": _cudnn.deterministic,
    },
    "attention backend": lambda: {
        "flash": _sdp.flash_sdp_enabled(), "memory-efficient": _sdp.mem_efficient_sdp_enabled(),
        "math": _sdp.math_sdp_enabled(), "cuDNN": _sdp.cudnn_sdp_enabled(),
    },
    "threads of torch": torch.get_num_threads,
    "seed of torch": torch.initial_seed,
    "seed of torch on CUDA": _on_cuda(_cuda_seed),
    "current CUDA device": _on_cuda(_cuda_device),
    "current CUDA stream": _on_cuda(lambda: torch.cuda.current_stream().cuda_stream),
    "flushing of denormals": lambda: _LEAST * 1.0 == 0,
    "rounding mode": lambda: (1.0 / _THREE, 1.0 / _TEN),
    "numpy's error handling": np.geterr,
    "environment variable": os.environ._data.copy,  # type: ignore[attr-defined]  # noqa: SLF001 - undecoded: faster
    "working folder": os.getcwd,
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "CPU affinity": lambda: os.sched_getaffinity(0),
    "resource limit": lambda: {name: resource.getrlimit(limit) for name, limit in _LIMITS.items()},
    "signal handler": lambda: {name: _signal.getsignal(s) for name, s in _SIGNALS.items()},
    "alarm": lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0,
    "warnings filters": lambda: tuple(warnings.filters),
    "sys.path": lambda: tuple(sys.path),
    "module": lambda: {name: id(sys.modules.get(name)) for name in _MODULES},
    "function": lambda: {name: id(getattr(module, word)) for name, (module, word) in _FUNCTIONS.items()},
    "standard stream": lambda: {"sys.stdout": id(sys.stdout), "sys.stderr": id(sys.stderr)},
    "recursion limit": sys.getrecursionlimit,
    "trace function": lambda: {"sys.settrace": sys.gettrace(), "sys.setprofile": sys.getprofile()},
    "garbage collection": gc.isenabled,
    "having child processes": _has_children,
    # A pool's workers wait for work; torch.compile keeps such a pool.
    "running thread": lambda: Arrivals(
        t.name for t in threading.enumerate() if not t.name.startswith("ThreadPoolExecutor-")
    ),
}  # fmt: skip

# Importing a library sets these too. torch.compile, which imports much at its first call, sets most of them.
IMPORTS_SET = frozenset({
    "environment variable", "sys.path", "recursion limit", "warnings filters", "running thread", "signal handler",
    "having child processes",
})  # fmt: skip


def read() -> dict[str, Any]:
    """What all watched states are now; one that can't be read (a working folder that is gone) is its error's name."""
    found: dict[str, Any] = {_IMPORTED: len(sys.modules)}
    for name, state in STATES.items():
        try:
            found[name] = state()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the call
            found[name] = type(error).__name__
    return found


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Each state that differs, in words."""
    if before == after:  # nearly always, and faster
        return []
    excused = IMPORTS_SET if before[_IMPORTED] != after[_IMPORTED] else frozenset()
    return [_told(n, before[n], after[n]) for n in STATES if before[n] != after[n] and n not in excused]


def _told(name: str, was: Any, now: Any) -> str:
    if isinstance(was, Arrivals) and isinstance(now, Arrivals):
        words = sorted(now - was)
    elif isinstance(was, dict) and isinstance(now, dict):
        words = [os.fsdecode(key) for key in {**was, **now} if was.get(key) != now.get(key)]
    else:
        words = [f"is {now}, was {was}"]
    text = f"{name} {', '.join(words)}"
    return text if len(text) <= _SHOWN else name
