"""What each common mistake in timing costs, measured beside our protocol. Needs a GPU.

    python tests/device/mistakes.py results/timers/h200-mistakes.json

Our protocol: a flush that only reads, the queue kept full, seeded normal data, bursts of at most 5 ms and a gap; below
100 us CUPTI's durations, from there on events less their offset. Each way makes one thing wrong and leaves the rest.
All ways of a kernel take turns, forwards and backwards, in one run; the hot card comes last in each turn, and rests
after it. The protocol stands among the ways a second time: what that one costs is this run's own noise.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import timed
import torch

from rooftest import store
from rooftest.cuda import DONE, SPACERS, Activity, Cuda, Device
from rooftest.measure import open_monitor
from rooftest.plan import SHORT_S
from rooftest.timer import event_offset_s
from rooftest.windows import busy_s

TURNS = 3
BURST_S, DUTY, CLOSED_S = 5e-3, 1 / 3, 5e-3
"""As in rooftest.plan; tracing makes launches slow, so that the queue is kept closed longer."""
FLUSH_S = 60e-6
SAMPLES = 20
"""Samples that one way takes in a turn, at least."""
HOT_S, LEAD_S, COOL_S = 0.5, 0.05, 0.4
"""LEAD_S is thrown away of what is read after HOT_S: to begin a trace leaves the device idle for a while."""
ZEROED_BYTES = 256 * 2**20
"""What Triton's do_bench fills before each call."""


@dataclass(frozen=True)
class Way:
    """One way of timing: the protocol, but for the fields that say otherwise."""

    said: str
    flush: str = "read"
    """read, zero (fill a buffer), or none."""
    timer: str = "protocol"
    """protocol; events (less their offset); raw (with it)."""
    queue: bool = True
    """The queue is kept full; else each call waits for the one before."""
    zeros: bool = False
    hot: bool = False
    """Without gaps, after HOT_S of the same."""


WAYS = {
    "protocol": Way("our protocol"),
    "again": Way("nothing: our protocol a second time"),
    "zeroing": Way("a flush that fills 256 MiB with zeros", flush="zero"),
    "raw": Way("events, their offset not subtracted", timer="raw"),
    "empty": Way("an empty queue: wait, then time one call", timer="events", queue=False),
    "warm": Way("no flush: the L2 holds what the call before left", flush="none"),
    "zeros": Way("zeros as data", zeros=True),
    "hot": Way(f"no gaps, after {HOT_S} s without (a hot card)", hot=True),
}
MISTAKES = ("zeroing", "raw", "empty", "warm", "zeros", "hot")


@dataclass(frozen=True)
class Subject:
    """A kernel: its call on normal data, and the same on zeros."""

    call: Callable[[], object]
    zeros: Callable[[], object]


def subjects(device: str) -> dict[str, Subject]:
    """A short product, a sum that memory binds, and two products that the matrix units do."""
    makers = {
        "gemm 1024": lambda scale: timed.gemm(1024, 1024, 1024, scale),
        "row sum 16384x8192": lambda scale: timed.row_sum(16384, 8192, scale),
        "gemm 4096": lambda scale: timed.gemm(4096, 4096, 4096, scale),
        "gemm 8192": lambda scale: timed.gemm(8192, 8192, 8192, scale),
    }
    return {name: Subject(make(1.0)(device), make(0.0)(device)) for name, make in makers.items()}


def durations(found: list[Activity]) -> list[float]:
    """What ran between a spacer of ours and the kernel that ends a call, each call's busy seconds."""
    out: list[list[Activity]] = []
    inside = False
    for activity in found:
        if activity.name in SPACERS:
            out.append([])
        elif inside and activity.name != DONE:
            out[-1].append(activity)
        inside = activity.name in SPACERS or (inside and activity.name != DONE)
    return [busy_s(window) for window in out]


@dataclass
class Bench:
    """Takes samples of one subject in one way."""

    device: Device
    zeroing: Callable[[], object]
    offset_s: float
    rough_s: float
    """About what the subject's call takes: it decides the timer and the length of a burst."""

    def samples(self, subject: Subject, way: Way) -> list[float]:
        """At least SAMPLES times in seconds, in bursts."""
        call = subject.zeros if way.zeros else subject.call
        if way.hot:
            return self._hot(call, way)
        rounds = max(1, int(BURST_S / (self.rough_s + FLUSH_S)))
        out: list[float] = []
        while len(out) < SAMPLES:
            out += self._burst(call, way, rounds)
            self.device.rest(rounds * (self.rough_s + FLUSH_S) * (1 / DUTY - 1))
        return out

    def _hot(self, call: Callable[[], object], way: Way) -> list[float]:
        begun = self.device.now()
        while self.device.now() - begun < HOT_S:
            last = None
            for _ in range(max(2, int(20e-3 / (self.rough_s + FLUSH_S)))):
                self._prepare(way)
                call()
                last = self.device.stamp()
            while not self.device.passed(last):  # the next ones follow within microseconds
                self.device.wait(2e-4)
        lead = int(LEAD_S / (self.rough_s + FLUSH_S))
        out = self._burst(call, way, lead + SAMPLES, closed=False)[lead:]
        self.device.rest(COOL_S)
        return out

    def _prepare(self, way: Way) -> None:
        if way.flush == "read":
            self.device.flush()
            return
        if way.flush == "zero":
            self.zeroing()
        self.device.mark()

    def _burst(self, call: Callable[[], object], way: Way, rounds: int, *, closed: bool = True) -> list[float]:
        device, stamps = self.device, []
        by_trace = way.timer == "protocol" and self.rough_s < SHORT_S

        def enqueue() -> None:
            if closed and way.queue:
                device.block(CLOSED_S)
            for _ in range(rounds):
                self._prepare(way)
                if not way.queue:
                    device.synchronize()
                first = None if by_trace else device.stamp()
                call()
                stamps.append((first, None if by_trace else device.stamp()))
                device.done()

        if by_trace:
            return durations(device.trace(enqueue))
        enqueue()
        device.synchronize()
        offset_s = 0.0 if way.timer == "raw" else self.offset_s
        return [device.elapsed_s(first, second) - offset_s for first, second in stamps]


def measured(device: Device, kernels: Mapping[str, Subject], zeroing: Callable[[], object]) -> dict[str, Any]:
    """Per kernel and way: the median of all turns, each turn's, and its share of the protocol's."""
    offset_s = event_offset_s(device)
    out: dict[str, Any] = {"offset_s": offset_s, "kernels": {}}
    for name, subject in kernels.items():
        for call in (subject.call, subject.zeros):
            call()
        rough = Bench(device, zeroing, offset_s, 1.0)
        rough_s = max(1e-6, statistics.median(rough._burst(subject.call, Way("", timer="events"), 5)))
        bench = Bench(device, zeroing, offset_s, rough_s)
        turns: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for turn in range(TURNS):
            order = [way for way in WAYS if not WAYS[way].hot][:: 1 if turn % 2 == 0 else -1]
            for way in (*order, *(way for way in WAYS if WAYS[way].hot)):
                turns[way].append(bench.samples(subject, WAYS[way]))
        medians = {way: statistics.median(chain.from_iterable(taken)) for way, taken in turns.items()}
        out["kernels"][name] = {
            way: {
                "said": WAYS[way].said,
                "time_s": medians[way],
                "turns_s": [statistics.median(samples) for samples in taken],
                "n": sum(len(samples) for samples in taken),
                "change": medians[way] / medians["protocol"] - 1,
            }
            for way, taken in turns.items()
        }
    return out


def main(path: Path) -> None:
    """Measure, print and write the JSON."""
    device = Cuda()
    monitor = open_monitor(device)
    buffer = torch.empty(ZEROED_BYTES, dtype=torch.int8, device="cuda")
    before = monitor.state().as_dict()
    found = measured(device, subjects("cuda"), buffer.zero_)
    data = {
        "what": "what common mistakes in timing cost",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "identity": monitor.identity().as_dict(),
        "software": {"torch": torch.__version__},
        "health": {"before": before, "after": monitor.state().as_dict()},
        **found,
    }
    store.write(path, data)
    for name, ways in found["kernels"].items():
        for way, got in ways.items():
            turns = " ".join(f"{time_s * 1e6:.2f}" for time_s in got["turns_s"])
            print(f"{name:20s} {way:9s} {got['time_s'] * 1e6:9.2f} us {got['change']:+7.1%} n {got['n']} turns {turns}")
    print(f"events' offset {found['offset_s'] * 1e6:.2f} us")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "mistakes.json"))
