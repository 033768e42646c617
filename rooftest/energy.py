"""Joules of a call and mean watts, with their uncertainty: NVML's energy counter, held against its power samples.

Withheld, with the reason, where the two ways disagree, the trials scatter, or the device was not kept busy.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from rooftest.cuda import Device, TraceUnavailableError
from rooftest.nvml import Monitor
from rooftest.plan import Plan

CHUNK_S = 10e-3
"""Device time enqueued at once: short beside the counter's step, long beside a launch."""
DEPTH = 10
"""Chunks in the queue, 100 ms: with 3 of them an H200 was idle for 7 % of a window of copies."""
LEAD_S = 0.3
"""Busy time before a window: power rises over some 100 ms, and the samples lag by their own period."""
DRAIN_S = 0.5
"""How often the driver's buffer of power samples is read: it holds 119 of them 20 ms apart, 2.4 s."""
GAP = 5
"""Times the usual spacing of power samples, from which on samples were lost between two."""
GRAPH_CALLS = 100
"""Calls in a graph, at most: its replay costs the host as much as one launch."""
MAX_CV = 0.02
MAX_DISAGREEMENT = 0.05
"""Between the two ways of integrating. Sensors that sample a part of the time (arXiv 2312.02741) fail this; the
counter's own step over the window, 2 %, sets the other limit."""
MIN_BUSY = 0.95
"""Share of the window in which the device worked: below, a call's joules hold what the device draws while it waits."""


@dataclass
class Window:
    """One stretch between two ticks of the counter."""

    window_s: float
    mean_w: float
    samples_w: float | None = None
    """Mean of the driver's power samples, each weighted by the time since the one before."""
    period_s: float | None = None
    """Device time from one call to the next."""
    steps_s: list[float] = field(default_factory=list)


@dataclass
class Energy:
    """Energy of one call, in joules; None and a reason when withheld. u_*: standard uncertainties, in the same unit."""

    gross_j: float | None = None
    u_gross_j: float | None = None
    net_j: float | None = None
    """Idle power subtracted."""
    u_net_j: float | None = None
    mean_w: float | None = None
    u_mean_w: float | None = None
    idle_w: float | None = None
    samples_w: float | None = None
    disagreement: float | None = None
    """Relative, of the power samples from the counter."""
    busy: float | None = None
    """Device time of a call over the time from one call to the next."""
    window_s: float | None = None
    trials: int = 0
    step_s: float | None = None
    u_max: float | None = None
    """Relative: the counter's step / the window."""
    u_rms: float | None = None
    cv: float | None = None
    period_s: float | None = None
    clock_hz: float | None = None
    scope: str = (
        "GPU board, by NVML's counter, calls back to back on a hot card; not a wall meter, and what the board's sensor "
        "itself is off by is not in the uncertainty"
    )
    valid: bool = False
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return asdict(self)


@dataclass
class _Samples:
    """The driver's power samples within a window, drained before its buffer runs over."""

    monitor: Monitor
    seen_s: float = 0.0
    kept: list[tuple[float, float]] = field(default_factory=list)

    def drain(self, *, keep: bool) -> None:
        found = self.monitor.power_samples(self.seen_s) or []
        found = [(at, watts) for at, watts in found if at > self.seen_s]
        if found:
            self.seen_s = max(at for at, _ in found)
            # The last one before the window begins the time that the next one stands for.
            self.kept = [*self.kept, *found] if keep else found[-1:]

    def mean_w(self) -> float | None:
        """None with fewer than ten samples, or where some were lost."""
        gaps = [b[0] - a[0] for a, b in pairwise(self.kept)]
        if len(gaps) < 10 or max(gaps) > GAP * statistics.median(gaps):
            return None
        return sum(b[1] * gap for b, gap in zip(self.kept[1:], gaps, strict=True)) / sum(gaps)


def window(
    device: Device,
    monitor: Monitor,
    seconds: float,
    run: Callable[[], object] | None = None,
    calls: int = 1,
    lead_s: float = 0.0,
) -> Window | None:
    """Keep the device busy with `run`, `calls` calls each (idle when None), between two ticks of the counter.

    The window begins with the first tick after `lead_s` and lasts at least `seconds`. Returns None when the counter
    stands still for five seconds, or is gone.
    """
    queue: list[Any] = []
    stamps: list[Any] = []
    ticks: list[tuple[float, float]] = []
    samples = _Samples(monitor)
    last, drained_at = monitor.energy_j(), 0.0
    begun = device.now()
    if last is None:
        return None
    while True:
        while run and len(queue) < DEPTH:
            run()
            queue.append(device.stamp())
        while queue and device.passed(queue[0]):
            stamp = queue.pop(0)
            if ticks:
                stamps.append(stamp)
        now, energy = device.now(), monitor.energy_j()
        if energy is None or now - (ticks[-1][0] if ticks else begun + lead_s) > 5:
            return None
        if energy != last:
            last = energy
            if ticks or now - begun >= lead_s:
                if not ticks:
                    samples.drain(keep=False)
                    drained_at = now
                ticks.append((now, energy))
                if now - ticks[0][0] >= seconds:
                    break
        if ticks and now - drained_at >= DRAIN_S:
            samples.drain(keep=True)
            drained_at = now
        device.wait(5e-4)
    samples.drain(keep=True)
    device.synchronize()
    (start, first), (stop, second) = ticks[0], ticks[-1]
    return Window(
        window_s=stop - start,
        mean_w=(second - first) / (stop - start),
        samples_w=samples.mean_w(),
        period_s=device.elapsed_s(stamps[0], stamps[-1]) / (calls * (len(stamps) - 1)) if len(stamps) > 1 else None,
        steps_s=[b[0] - a[0] for a, b in pairwise(ticks)],
    )


def _chunk(call: Callable[[], object], call_s: float, device: Device) -> tuple[Callable[[], None], int]:
    """What is enqueued at once, and how many calls that is.

    Where launches take the host more than half of a call's time, a graph of calls stands for them, if they can be
    captured: else the device would wait for the host.
    """
    count = max(1, int(CHUNK_S / call_s))
    device.synchronize()
    begun = device.now()
    for _ in range(min(10, count)):
        call()
    host_s = (device.now() - begun) / min(10, count)

    def repeat() -> None:
        for _ in range(count):
            call()

    if host_s <= call_s / 2 or count == 1:
        return repeat, count
    inner = min(count, GRAPH_CALLS)

    def captured() -> None:
        for _ in range(inner):
            call()

    try:
        replay = device.graph(captured)
    except RuntimeError:  # what waits for the device, for one, can't be captured
        return repeat, count

    def replays() -> None:
        for _ in range(count // inner):
            replay()

    return replays, count // inner * inner


def _work_s(run: Callable[[], None], calls: int, device: Device) -> float | None:
    """Device time of a call as it runs here (its data perhaps in L2), None where nobody can trace it."""
    try:
        found = device.trace(run)
    except TraceUnavailableError:
        return None
    return sum(activity.end_s - activity.start_s for activity in found) / calls


def measure_energy(call: Callable[[], object], call_s: float, device: Device, monitor: Monitor, plan: Plan) -> Energy:
    """Measure the energy of one call of about `call_s` seconds, back to back, over the plan's trials."""
    if monitor.energy_j() is None:
        return Energy(reason=f"no energy counter can be read: {monitor.energy_reason}")
    device.rest(0.5)
    idle = window(device, monitor, 1.0)
    if idle is None or not idle.steps_s:
        return Energy(reason=_gone(monitor, "the energy counter stands still"))
    step = statistics.median(idle.steps_s)
    run, calls = _chunk(call, call_s, device)
    jitter = random.Random(0)  # noqa: S311  it shifts the phase between trials, nothing more
    trials: list[Window] = []
    clocks: list[float] = []
    device.clocks_hz()
    for _ in range(plan.energy_trials):
        device.rest(0.5 + jitter.uniform(0, step))
        device.clock()
        got = window(device, monitor, max(plan.energy_window_s, 50 * step), run, calls, LEAD_S)
        device.clock()
        device.synchronize()
        clocks += device.clocks_hz()
        if got is None or got.period_s is None:
            return Energy(reason=_gone(monitor, "the energy counter stopped"))
        trials.append(got)
    work_s = _work_s(run, calls, device) or call_s
    return _judge(idle, step, trials, work_s, statistics.fmean(clocks) if clocks else None)


def _gone(monitor: Monitor, what: str) -> str:
    return f"{what}: {monitor.energy_reason}" if monitor.energy_reason else what


def _judge(idle: Window, step: float, trials: list[Window], work_s: float, clock_hz: float | None) -> Energy:
    """Put the trials together; withhold the joules where they do not count."""
    n = len(trials)
    joules = [t.mean_w * t.period_s for t in trials if t.period_s]
    period = statistics.median(t.period_s for t in trials if t.period_s)
    length = statistics.median(t.window_s for t in trials)
    mean_w = statistics.fmean(t.mean_w for t in trials)
    sampled = [t.samples_w for t in trials if t.samples_w is not None]
    out = Energy(
        gross_j=statistics.median(joules), net_j=statistics.median(joules) - idle.mean_w * period, mean_w=mean_w,
        idle_w=idle.mean_w, samples_w=statistics.fmean(sampled) if len(sampled) == n else None,
        busy=min(1.0, work_s / period), window_s=length, trials=n, step_s=step,
        u_max=step / length, u_rms=step / length / math.sqrt(6),
        cv=statistics.stdev(joules) / statistics.fmean(joules) if n > 1 else None, period_s=period, clock_hz=clock_hz,
    )  # fmt: skip
    out.disagreement = None if out.samples_w is None else abs(out.samples_w - mean_w) / mean_w
    out.reason = _doubt(out)
    out.valid = not out.reason
    if not out.valid:
        out.gross_j = out.net_j = None
        return out
    assert out.gross_j is not None
    assert out.cv is not None
    assert out.disagreement is not None
    assert out.u_rms is not None
    # The step and the scatter are new in each trial; the two ways differ by the same in all: uniform within +-d.
    relative = math.sqrt((out.u_rms**2 + out.cv**2) / n + out.disagreement**2 / 3)
    u_idle_w = idle.mean_w * step / idle.window_s / math.sqrt(6)
    out.u_gross_j, out.u_mean_w = relative * out.gross_j, relative * mean_w
    out.u_net_j = math.hypot(out.u_gross_j, u_idle_w * period)
    return out


def _doubt(got: Energy) -> str:
    """Why the joules do not count, or nothing."""
    assert got.busy is not None
    assert got.mean_w is not None
    if got.cv is None:
        return "one trial only"
    if got.cv > MAX_CV:
        return f"the trials scatter by {got.cv:.1%}, more than {MAX_CV:.0%}"
    if got.busy < MIN_BUSY:
        return (
            f"the device worked in {got.busy:.0%} of the time only, less than {MIN_BUSY:.0%}: too short a call to be "
            "launched without gaps"
        )
    if got.disagreement is None:
        return "nothing to hold the energy counter against: power samples were lost or can't be read"
    if got.disagreement > MAX_DISAGREEMENT:
        return (
            f"counter {got.mean_w:.0f} W and power samples {got.samples_w:.0f} W disagree by {got.disagreement:.1%}, "
            f"more than {MAX_DISAGREEMENT:.0%}"
        )
    return ""
