"""A device as the timer sees it: a queue, a flush, time stamps, a tracer, a clock; and the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

FLUSH, MARK, CLOCK, DONE = "rooftest_flush", "rooftest_mark", "rooftest_clock", "rooftest_done"
SPACERS = (FLUSH, MARK)
"""Kernels of ours that begin a call's window in a trace; DONE ends it."""

SLOTS, PROGRAMS = 4096, 4
"""Readings of the clock that are kept, and programs of one: two readings must meet on at least one multiprocessor."""

SPIN_HZ = 2.0e9
"""Cycles a second that a spin is sized by: no listed GPU's clock is far above, so a spin is rarely shorter."""


@dataclass(frozen=True)
class Activity:
    """One kernel, copy or fill that the device ran; seconds on the device's clock."""

    name: str
    start_s: float
    end_s: float
    stream: int = 0
    """The stream's number in the trace."""


class TraceUnavailableError(RuntimeError):
    """The device's activities cannot be traced here; the message is one line that says why."""


class Device(Protocol):
    """What the timer needs. `Cuda` is the real one, `rooftest.simulated.Simulated` the one for tests."""

    l2_bytes: int
    tick_s: float
    """The tracer's tick."""

    def now(self) -> float:
        """Return host seconds."""
        ...

    def synchronize(self) -> None:
        """Wait until the queue is empty."""
        ...

    def rest(self, seconds: float) -> None:
        """Leave the device idle."""
        ...

    def wait(self, seconds: float) -> None:
        """Let the host sleep while the device works on."""
        ...

    def block(self, seconds: float) -> None:
        """Keep the queue from starting for about that long, so that it is full when it starts."""
        ...

    def flush(self) -> None:
        """Enqueue a pass over at least twice the L2 that only reads."""
        ...

    def mark(self) -> None:
        """Enqueue a kernel that does nothing."""
        ...

    def done(self) -> None:
        """Enqueue the kernel that ends a call's window."""
        ...

    def clock(self) -> None:
        """Enqueue a reading of the SM's cycle counter; readings come in pairs, around what the clock is wanted of."""
        ...

    def clocks_hz(self) -> list[float]:
        """Return, after a synchronize, the mean clock within each pair of readings since the last call."""
        ...

    def stamp(self) -> Any:
        """Enqueue a time stamp and return it."""
        ...

    def passed(self, stamp: Any) -> bool:
        """Return whether the device has reached a stamp."""
        ...

    def elapsed_s(self, first: Any, second: Any) -> float:
        """Return the seconds between two stamps that have passed."""
        ...

    def trace(self, enqueue: Callable[[], None]) -> list[Activity]:
        """Run `enqueue`, wait, and return what the device did, by start; raises TraceUnavailableError."""
        ...

    def graph(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Capture what `enqueue` enqueues and return its replay."""
        ...


class Cuda:
    """The current CUDA device on its current stream."""

    def __init__(self, flush_l2s: float = 2.0) -> None:
        import torch

        from rooftest import genuine, probes

        self._torch, self._probes, self._genuine = torch, probes, genuine
        self._stream = torch.cuda.current_stream()
        self.index = torch.cuda.current_device()
        self.properties = torch.cuda.get_device_properties(self.index)
        self.l2_bytes = int(self.properties.L2_cache_size)
        self.tick_s = 32e-9  # CUPTI's durations on Hopper are multiples of 32 ns
        self._words = int(flush_l2s * self.l2_bytes) // 4
        self._flush_buffer = torch.zeros(self._words, dtype=torch.int32, device="cuda")
        self._sink = torch.zeros(1, dtype=torch.int32, device="cuda")
        self._clocks = torch.zeros((SLOTS, PROGRAMS, 3), dtype=torch.int64, device="cuda")
        self._slot = 0

    @property
    def uuid(self) -> str:
        """The device's UUID as NVML spells it."""
        uuid = str(self.properties.uuid)
        return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"

    def now(self) -> float:
        """Return host seconds."""
        return self._genuine.perf_counter()

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        self._genuine.synchronize()

    def rest(self, seconds: float) -> None:
        """Sleep with the device idle."""
        self._genuine.synchronize()
        self._genuine.sleep(seconds)

    def wait(self, seconds: float) -> None:
        """Sleep; the device works on."""
        self._genuine.sleep(seconds)

    def block(self, seconds: float) -> None:
        """Spin on one SM."""
        self._genuine.spin(max(1, int(seconds * SPIN_HZ)))

    def flush(self) -> None:
        """Read the flush buffer: 16 bytes a thread and step."""
        block, steps = 4096, 4
        grid = (-(-self._words // (block * steps)),)
        self._probes.rooftest_flush[grid](
            self._flush_buffer, self._sink, self._words, BLOCK=block, STEPS=steps, num_warps=8
        )

    def mark(self) -> None:
        """Launch one empty program."""
        self._probes.rooftest_mark[(1,)](self._sink, num_warps=1)

    def done(self) -> None:
        """Launch one empty program."""
        self._probes.rooftest_done[(1,)](self._sink, num_warps=1)

    def clock(self) -> None:
        """Read the counters of a few multiprocessors: the same ones each time, as a rule."""
        if self._slot < SLOTS:
            ptx = self._probes.CLOCK_PTX
            self._probes.rooftest_clock[(PROGRAMS,)](self._clocks, self._slot, PTX=ptx, num_warps=1)
            self._slot += 1

    def clocks_hz(self) -> list[float]:
        """Return cycles / time of each pair that met on a multiprocessor."""
        readings = self._clocks[: self._slot].tolist()
        self._slot = 0
        out = []
        for before, after in zip(readings[::2], readings[1::2], strict=False):
            began = {sm: (cycles, ns) for sm, cycles, ns in before}
            spans = [(c - began[sm][0], ns - began[sm][1]) for sm, c, ns in after if sm in began]
            spans = [(cycles, ns) for cycles, ns in spans if cycles > 0 and ns > 0]
            if spans:
                out.append(sum(c for c, _ in spans) / sum(ns for _, ns in spans) * 1e9)
        return out

    def stamp(self) -> Any:
        """Record an event on the current stream."""
        return self._genuine.stamp(self._stream)

    def passed(self, stamp: Any) -> bool:
        """Ask the event."""
        return self._genuine.passed(stamp)

    def elapsed_s(self, first: Any, second: Any) -> float:
        """Return the time between two events."""
        return self._genuine.elapsed_s(first, second)

    def trace(self, enqueue: Callable[[], None]) -> list[Activity]:
        """Trace with CUPTI through torch's profiler: kernels, copies and fills."""
        failure = "CUPTI gave no activities (another profiler may own it, or it may not be permitted)"
        try:
            events = self._genuine.events_of(enqueue)
        except RuntimeError as error:
            raise TraceUnavailableError(f"CUPTI cannot trace: {str(error).splitlines()[0]}") from None
        if not events:
            raise TraceUnavailableError(failure)
        found = [
            Activity(e.name, e.time_range.start * 1e-6, e.time_range.end * 1e-6, e.device_resource_id) for e in events
        ]
        return sorted(found, key=lambda activity: activity.start_s)

    def graph(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Capture on a side stream, as torch does."""
        self._genuine.synchronize()
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            enqueue()
        return graph.replay
