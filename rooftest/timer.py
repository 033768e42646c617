"""Device time of calls, interleaved, in the kernel's own process.

Why interleaved: clocks are not ours to lock, and the same product reads up to 15 % apart with what ran just before; the
calls of one round run within a millisecond of each other, in an order that alternates (A B, B A), so that their ratio
is steadier than either. Why a reading flush: a zeroing one leaves dirty lines that are written back inside the next
kernel, up to 25 % of it.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rooftest.contents import Contents, Same
from rooftest.cuda import MARK, Device, TraceUnavailableError
from rooftest.plan import SHORT_S, Plan
from rooftest.stats import MedianInterval, median_interval, settled
from rooftest.windows import busy_s, counts, windows

QUEUE = 800
"""Enqueued operations a burst; the driver's queue holds 1024, and a full one stops the host."""
EACH = 10
"""Operations that a call brings: two copies each into two inputs, a flush, two stamps, an end, and two of its own."""
CLOCK_ROUNDS = 10
"""Readings of the clock within calls, at least: it repeats within 1 %."""
GAP_S = 50e-3
"""The longest gap after a burst: a call of 25 ms and more meets the power limit within itself, if it does at all."""
HALF = 4
"""Bursts of the warm-up whose medians are set against as many later ones."""
GRAPH_CALLS = 10
"""Calls in a graph: enough that a replay's own launch is a small share, few enough that clocks hold."""
EVENTS_U_S = 0.5e-6
"""Uncertainty of a time from events: their resolution by CUDA's documentation, and their offset's spread."""
OFFSET_S = 3e-6
"""Events' offset, roughly, for the rough times of the warm-up; a measurement by events calibrates its own."""

Calls = Mapping[str, Callable[[], object]]


@dataclass
class Samples:
    """The times of one call; all in seconds."""

    timer: str
    """cupti (sum of the durations of the call's activities), graph (difference of two graphs), or events."""
    samples_s: list[float] = field(default_factory=list)
    span_s: list[float] = field(default_factory=list)
    """From the first activity's start to the last one's end; with cupti only."""
    interval: MedianInterval | None = None
    confidence: float = 0.95
    converged: bool = False
    u_timer_s: float = 0.0
    offset_s: float = 0.0
    """What was subtracted from each pair of events."""
    clocks_hz: list[float] = field(default_factory=list)
    """The mean SM clock within each burst, flushes included."""
    call_hz: list[float] = field(default_factory=list)
    """The mean SM clock within single calls, in executions right after those sampled. The two readings take in about
    3 us of launches, a good part of a call below some 30 us. From 70 us up, time x clock is within 2 % of the cycles
    that Nsight Compute counts (results/timers/h200-ncu.json)."""
    kernels: dict[str, int] = field(default_factory=dict)
    """Activities of one call by name; with cupti only."""
    crosscheck: dict[str, float] = field(default_factory=dict)
    """The same executions timed by both events and cupti, medians."""
    warmup_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def median_s(self) -> float | None:
        """The median, or None without samples."""
        return statistics.median(self.samples_s) if self.samples_s else None


class NoDeviceWorkError(RuntimeError):
    """A call enqueued nothing on the device: there is no time to measure."""


@dataclass
class _Pace:
    """How a burst is built: rounds in it, the time it keeps the queue closed, and the gap after it."""

    rounds: int
    block_s: float
    gap_s: float


def time_calls(calls: Calls, device: Device, plan: Plan, contents: Contents | None = None) -> dict[str, Samples]:
    """Time the calls in one interleaved run.

    Each call enqueues its work on the current stream and returns; what it needs (inputs of non-zero random data,
    outputs, compilation) is there before. `contents` renews the inputs before each call, and before the flush; with a
    warm L2 it does not, as that would leave them in it. All calls of a run are timed in one way, the one that suits the
    shortest. Raises NoDeviceWorkError and StrayWorkError.
    """
    if contents is None or plan.l2 == "warm":
        contents = Same()
    for call in calls.values():
        call()  # compiles, tunes
    device.flush()
    device.mark()
    device.clock()
    device.synchronize()
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        times, host_s, warmup_s = _warm_up(calls, device, plan, contents)
        pace = _pace(times, host_s, len(calls), plan)
        timer = plan.timer
        if timer == "auto":
            timer = "cupti" if min(times.values()) < SHORT_S else "events"
        notes: list[str] = []
        if timer == "cupti":
            try:
                out = _sample(_Cupti(calls, device, plan, contents), device, plan, pace)
            except TraceUnavailableError as error:
                if plan.timer == "cupti":
                    raise
                notes, timer = [f"{error}; events instead"], "events"
        if timer == "graph":
            out = _sample(_Graph(calls, device, plan, contents), device, plan, pace)
        if timer == "events":
            offset = event_offset_s(device)
            out = _sample(_Events(calls, device, plan, contents, offset), device, plan, pace)
            if plan.timer == "auto":
                _crosscheck(out, _Events(calls, device, plan, contents, offset), device)
        _clocks(out, calls, device, plan, pace, contents)
    finally:
        if gc_was_on:
            gc.enable()
    for samples in out.values():
        samples.warmup_s = warmup_s
        samples.notes = [*notes, *samples.notes]
    return out


def event_offset_s(device: Device, n: int = 30) -> float:
    """Return what a pair of events reads more than the kernel between them takes, in seconds.

    A kernel that does nothing between two events, in the timed sequence (a flush, stamp, kernel, stamp) with the queue
    full, less its own duration by CUPTI; where CUPTI cannot be had, less 1 us.
    """
    host_s = 0.0
    for _ in range(2):  # the first pass warms everything up, and says how long the queue must be kept closed
        stamps = []
        device.block(1e-4 + 2 * host_s)
        begun = device.now()
        for _ in range(n):
            device.flush()
            first = device.stamp()
            device.mark()
            stamps.append((first, device.stamp()))
        host_s = device.now() - begun
        device.synchronize()
    read = statistics.median(device.elapsed_s(a, b) for a, b in stamps)

    def marks() -> None:
        device.block(1e-4 + 2 * host_s)
        for _ in range(n):
            device.flush()
            device.mark()

    try:
        durations = [a.end_s - a.start_s for a in device.trace(marks) if a.name == MARK]
    except TraceUnavailableError:
        durations = []
    return read - statistics.median(durations or [1e-6])


def _prepare(name: str, device: Device, plan: Plan, contents: Contents) -> None:
    contents.renew(name)  # before the flush, which takes its lines out of the L2 and has them written back
    if plan.l2 == "cold":
        device.flush()
    else:
        device.mark()


def _order(calls: Calls, index: int) -> list[str]:
    names = list(calls)
    return names if index % 2 == 0 else names[::-1]


def _warm_up(calls: Calls, device: Device, plan: Plan, contents: Contents) -> tuple[dict[str, float], float, float]:
    """Run until the time is up and the medians hold still; return rough times, host time a round, time spent."""
    start = device.now()
    seen: dict[str, list[float]] = {name: [] for name in calls}
    rounds, host_s = 4, 0.0
    limit = max(2.0, plan.warmup_s) if plan.regime == "burst" else plan.window_s
    while True:
        stamps: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
        if plan.regime == "burst":  # else a launch that takes the host 0.1 ms is what a call of 20 us seems to last
            device.block(_closed_s(rounds, host_s))
        begun = device.now()
        for index in range(rounds):
            for name in _order(calls, index):
                _prepare(name, device, plan, contents)
                first = device.stamp()
                calls[name]()
                stamps[name].append((first, device.stamp()))
                device.done()
        host_s = (device.now() - begun) / rounds
        device.synchronize()
        after = {
            name: max(1e-7, statistics.median(device.elapsed_s(a, b) for a, b in pairs) - OFFSET_S)
            for name, pairs in stamps.items()
        }
        for name, median in after.items():
            seen[name].append(median)
        steady = all(_steady(medians, plan.target) for medians in seen.values())
        spent = device.now() - start
        if plan.regime == "burst":
            device.rest(min(0.02, 2 * sum(after.values()) * rounds))
        if spent >= limit or (spent >= plan.warmup_s and steady and plan.regime == "burst"):
            return after, host_s, spent
        rounds = max(2, min(50, int(plan.burst_s / max(1e-6, sum(after.values())))))


def _steady(medians: list[float], target: float) -> bool:
    """Whether a call's bursts hold still: the last two agree, or the last eight differ by no more than they scatter.

    A call that scatters by more than the target from burst to burst never agrees with itself, and has warmed up all the
    same; a drift shows in the halves of eight.
    """
    if len(medians) > 1 and abs(medians[-1] - medians[-2]) <= max(target * medians[-2], EVENTS_U_S):
        return True
    if len(medians) < 2 * HALF:
        return False
    early, late = medians[-2 * HALF : -HALF], medians[-HALF:]
    scatter = ((statistics.variance(early) + statistics.variance(late)) / HALF) ** 0.5
    return abs(statistics.fmean(late) - statistics.fmean(early)) <= 2 * scatter


def _closed_s(rounds: int, host_s: float) -> float:
    """How long to keep the queue closed: twice the host's time for so many rounds, so that it can't fall behind."""
    return min(0.05, 1e-4 + 2 * rounds * min(host_s, 1e-3))


def _pace(times: Mapping[str, float], host_s: float, count: int, plan: Plan) -> _Pace:
    flush_s = 60e-6 if plan.l2 == "cold" else 2e-6  # 2 x 60 MB at 4 TB/s is 30 us; only the burst's length hangs on it
    device_s = sum(times.values()) + count * flush_s
    rounds = max(1, min(int(plan.burst_s / device_s), QUEUE // (EACH * count)))
    block_s = _closed_s(rounds, host_s)
    # While the queue is kept closed one multiprocessor spins: for the power limit that is a part of the gap. On an H200
    # medians, clocks and ratios to the peer are the same either way within 0.3 %, and 24 us settle in half the time.
    gap_s = max(1e-5, min(GAP_S, rounds * device_s * (1 / plan.duty - 1)) - block_s)
    return _Pace(rounds, block_s, gap_s if plan.regime == "burst" else 0.0)


class _Method:
    """One way of timing: enqueue a burst of rounds, then hand out what each call took."""

    timer = ""
    u_timer_s = 0.0
    resolution_s = 0.0

    def __init__(self, calls: Calls, device: Device, plan: Plan, contents: Contents) -> None:
        self.calls, self.device, self.plan, self.contents = calls, device, plan, contents
        self.out = {name: Samples(self.timer) for name in calls}
        self.index = 0

    def run(self, rounds: int, pace: _Pace) -> None:
        """Take `rounds` samples of each call, in bursts."""
        first = True
        while rounds > 0:
            count = min(rounds, pace.rounds)
            if first or pace.gap_s:  # without gaps the queue is already running, and a spin would be one
                self.device.block(pace.block_s)
            first = False
            self.device.clock()
            for _ in range(count):
                for name in _order(self.calls, self.index):
                    self.one(name)
                self.index += 1
            self.device.clock()
            rounds -= count
            if pace.gap_s:
                self.device.rest(pace.gap_s)

    def one(self, name: str) -> None:
        """Enqueue one call."""
        _prepare(name, self.device, self.plan, self.contents)
        self.calls[name]()
        self.device.done()
        self.contents.look(name)

    def take(self, rounds: int, pace: _Pace) -> None:
        """Take samples and store them in `out`."""
        raise NotImplementedError


class _Events(_Method):
    timer = "events"
    u_timer_s = EVENTS_U_S

    def __init__(self, calls: Calls, device: Device, plan: Plan, contents: Contents, offset: float) -> None:
        super().__init__(calls, device, plan, contents)
        self.offset = offset
        self.stamps: list[tuple[str, Any, Any]] = []
        for samples in self.out.values():
            samples.offset_s = offset

    def one(self, name: str) -> None:
        _prepare(name, self.device, self.plan, self.contents)
        first = self.device.stamp()
        self.calls[name]()
        self.stamps.append((name, first, self.device.stamp()))
        self.device.done()
        self.contents.look(name)

    def take(self, rounds: int, pace: _Pace) -> None:
        self.stamps.clear()
        self.run(rounds, pace)
        self.device.synchronize()
        for name, first, second in self.stamps:
            self.out[name].samples_s.append(self.device.elapsed_s(first, second) - self.offset)


class _Cupti(_Method):
    timer = "cupti"

    def __init__(self, calls: Calls, device: Device, plan: Plan, contents: Contents) -> None:
        super().__init__(calls, device, plan, contents)
        self.resolution_s = device.tick_s
        self.u_timer_s = device.tick_s / 12**0.5 * 2**0.5  # both ends are rounded to the tick, uniformly

    def take(self, rounds: int, pace: _Pace) -> None:
        first = self.index
        found = self.device.trace(lambda: self.run(rounds, pace))
        names = [name for index in range(first, self.index) for name in _order(self.calls, index)]
        split = windows(found, len(names))
        for name in self.calls:
            empty = [not window for n, window in zip(names, split, strict=True) if n == name]
            if all(empty):
                raise NoDeviceWorkError(f"the call {name!r} enqueued no device work")
            if any(empty):
                raise TraceUnavailableError(f"CUPTI dropped records ({sum(empty)} of {len(empty)} calls had none)")
        for name, window in zip(names, split, strict=True):
            samples = self.out[name]
            samples.samples_s.append(busy_s(window))
            samples.span_s.append(max(a.end_s for a in window) - window[0].start_s)
            kernels = counts(window)
            if samples.kernels and kernels != samples.kernels and not samples.notes:
                samples.notes.append(f"the activities of a call changed from {samples.kernels} to {kernels}")
            samples.kernels = kernels


class _Graph(_Method):
    timer = "graph"
    u_timer_s = EVENTS_U_S / GRAPH_CALLS

    def __init__(self, calls: Calls, device: Device, plan: Plan, contents: Contents) -> None:
        super().__init__(calls, device, plan, contents)

        def body(name: str, call: Callable[[], object] | None) -> Callable[[], None]:
            def enqueue() -> None:
                for _ in range(GRAPH_CALLS):  # each with contents of its own, the same in every replay
                    _prepare(name, device, plan, contents)
                    if call is not None:
                        call()

            return device.graph(enqueue)

        self.without = body("", None)
        self.replays = {name: body(name, call) for name, call in calls.items()}
        for replay in (self.without, *self.replays.values()):
            replay()  # the first replay uploads the graph
        device.synchronize()
        self.stamps = [("", (0, 0), (0, 0))][:0]

    def one(self, name: str) -> None:
        pairs = []
        for replay in (self.replays[name], self.without):
            first = self.device.stamp()
            replay()
            pairs.append((first, self.device.stamp()))
            if replay is not self.without:
                self.contents.look(name)  # before the other graph renews what was read
        self.stamps.append((name, pairs[0], pairs[1]))

    def take(self, rounds: int, pace: _Pace) -> None:
        self.stamps.clear()
        self.run(rounds, _Pace(1, pace.block_s, pace.gap_s / max(1, pace.rounds) * GRAPH_CALLS))
        self.device.synchronize()
        for name, both, alone in self.stamps:
            difference = self.device.elapsed_s(*both) - self.device.elapsed_s(*alone)
            self.out[name].samples_s.append(max(0.0, difference) / GRAPH_CALLS)


def _sample(method: _Method, device: Device, plan: Plan, pace: _Pace) -> dict[str, Samples]:
    """Sample until every call's median is settled at a look, or the time is up."""
    start, taken = device.now(), 0
    alpha = plan.alpha / len(plan.looks)  # Bonferroni: the interval holds whichever look ended the sampling
    device.clocks_hz()  # forget older readings
    clocks: list[float] = []
    for look in plan.looks:
        while taken < look:
            left = plan.cap_s - (device.now() - start)
            spent_each = (device.now() - start) / taken if taken else 0.0
            count = min(look - taken, max(1, int(left / spent_each)) if spent_each else 10)
            method.take(count, pace)
            taken += count
            clocks += device.clocks_hz()
            if device.now() - start >= plan.cap_s:
                break
        done = all(settled(s.samples_s, plan.target, method.resolution_s, alpha) for s in method.out.values())
        if done or device.now() - start >= plan.cap_s:
            break
    for samples in method.out.values():
        samples.interval = median_interval(samples.samples_s, alpha)
        samples.confidence = 1 - plan.alpha
        samples.converged = settled(samples.samples_s, plan.target, method.resolution_s, alpha)
        samples.u_timer_s = method.u_timer_s
        samples.clocks_hz = clocks
    return method.out


def _clocks(out: dict[str, Samples], calls: Calls, device: Device, plan: Plan, pace: _Pace, contents: Contents) -> None:
    """Read the clock within single calls, in whole bursts like those sampled.

    The clock depends on what ran in the milliseconds before: read in bursts of one round, it was up to 4 % below the
    one that a product of 3072^3 was timed at.
    """
    device.clocks_hz()
    names: list[str] = []
    while len(names) < CLOCK_ROUNDS * len(calls):
        if pace.gap_s or not names:
            device.block(pace.block_s)
        for index in range(pace.rounds):
            for name in _order(calls, index):
                _prepare(name, device, plan, contents)
                device.clock()
                calls[name]()
                device.clock()
                names.append(name)
        if pace.gap_s:
            device.rest(pace.gap_s)
    device.synchronize()
    readings = device.clocks_hz()
    if len(readings) == len(names):  # a pair that met on no multiprocessor is left out, and then nobody knows which
        for name, hz in zip(names, readings, strict=True):
            out[name].call_hz.append(hz)


def _crosscheck(out: dict[str, Samples], method: _Events, device: Device) -> None:
    """Time a few executions with events and CUPTI at once: only the ways of timing can differ then.

    It also tells which kernels a call launches, and whether on the caller's stream. The times are left out for calls so
    short that events do not suit them: tracing holds up the launches between two events.
    """
    # Tracing makes launches several times as long, the first ones more than that. Where the queue opens before the host
    # is done, its gap stands between two events: so a rehearsal says how long it must stay closed.
    rounds, host_s = 6, 0.0

    def rehearse() -> None:
        nonlocal host_s
        begun = device.now()
        method.run(2, _Pace(2, 0.0, 0.0))
        host_s = (device.now() - begun) / 2

    try:
        device.trace(rehearse)
        closed_s = min(0.2, 10e-3 + 2 * rounds * host_s)
        found = device.trace(lambda: method.take(rounds, _Pace(rounds, closed_s, 0.0)))
        split = windows(found, rounds * len(method.calls))
    except TraceUnavailableError as error:
        for samples in out.values():
            samples.notes.append(f"no cross-check: {error}")
        return
    names = [name for index in range(rounds) for name in _order(method.calls, index)]
    for name, samples in out.items():
        traced = [w for n, w in zip(names, split, strict=True) if n == name and w]
        if not traced:
            raise NoDeviceWorkError(f"the call {name!r} enqueued no device work")
        samples.kernels = counts(traced[-1])
        if (samples.median_s or 0.0) < SHORT_S:
            continue
        spans = [max(a.end_s for a in w) - w[0].start_s for w in traced]
        samples.crosscheck = {
            "events_s": statistics.median(method.out[name].samples_s), "cupti_s": statistics.median(spans)
        }  # fmt: skip
