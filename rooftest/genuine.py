"""What measures, as it was before a kernel's module was imported: the process that forks imports this file first.

A kernel that afterwards replaces torch.cuda.Event, its methods, torch.cuda.synchronize, time.perf_counter, the profiler
or os.urandom replaces names that the timer never looks up again.
"""

from __future__ import annotations

from os import urandom as _urandom
from time import perf_counter, sleep
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile  # torch.profiler's own imports torch's compiler when it starts: 4 s

__all__ = ["below", "events_of", "perf_counter", "sleep", "spin", "stamp", "synchronize"]

_Event, _new = torch.cuda.Event, torch.cuda.Event.__new__
_record, _query, _elapsed = _Event.record, _Event.query, _Event.elapsed_time
# The functions of C exist in a CUDA build only; those of torch.cuda look their parts up when they are called.
_synchronize = getattr(torch._C, "_cuda_synchronize", torch.cuda.synchronize)  # noqa: SLF001 - no public name holds it
spin = torch.cuda._sleep  # noqa: SLF001 - no public function spins the device


def below(count: int) -> int:
    """A number from 0 to count - 1 by the operating system's randomness, which no seed foretells."""
    return int.from_bytes(_urandom(8), "little") % count  # uneven by count / 2^64


def synchronize() -> None:
    """Wait until the current device is idle, all streams of it."""
    _synchronize()


def stamp(stream: Any) -> Any:
    """Record a timing event on the stream."""
    event = _new(_Event, enable_timing=True)
    _record(event, stream)
    return event


def passed(event: Any) -> bool:
    """Whether the device has reached the event."""
    return bool(_query(event))


def elapsed_s(first: Any, second: Any) -> float:
    """Seconds between two events that have passed."""
    return _elapsed(first, second) / 1e3


def events_of(enqueue: Any) -> list[Any]:
    """The profiler's records of what the device did while `enqueue` ran and until it was idle."""
    with profile(use_cpu=False, use_device="cuda", use_kineto=True, acc_events=True) as profiler:
        enqueue()
        synchronize()
    return [e for e in profiler.function_events or [] if e.device_type == DeviceType.CUDA]
