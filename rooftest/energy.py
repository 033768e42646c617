"""Joules a call and mean watts, from NVML's energy counter, with an uncertainty; withheld below quality."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from rooftest.cuda import Device
from rooftest.nvml import Monitor
from rooftest.plan import Plan

CHUNK_S = 10e-3
"""Device time enqueued at once: short beside the counter's step, long beside a launch."""
MAX_CV = 0.02
MAX_DISAGREEMENT = 0.05
"""Between the counter and the mean of the instant power. Sensors that sample a part of the time (arXiv 2312.02741)
fail this; the counter's own step over the window, 2 %, sets the other limit."""


@dataclass
class Window:
    """One stretch between two ticks of the counter."""

    window_s: float
    mean_w: float
    instant_w: float | None
    period_s: float | None
    """Device time from one call to the next."""
    steps_s: list[float] = field(default_factory=list)


@dataclass
class Energy:
    """Energy of one call, in joules; None and a reason when withheld."""

    gross_j: float | None = None
    net_j: float | None = None
    """Idle power subtracted."""
    mean_w: float | None = None
    idle_w: float | None = None
    instant_w: float | None = None
    window_s: float | None = None
    trials: int = 0
    step_s: float | None = None
    u_max: float | None = None
    """Relative: the counter's step / the window."""
    u_rms: float | None = None
    cv: float | None = None
    period_s: float | None = None
    scope: str = "GPU board, by NVML's counter; not a wall meter"
    valid: bool = False
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return asdict(self)


def window(
    device: Device, monitor: Monitor, seconds: float, call: Callable[[], object] | None, call_s: float
) -> Window | None:
    """Keep the device busy with `call` (idle when None) from one tick of the counter to one at least `seconds` later.

    Returns None when the counter stands still for five seconds.
    """
    chunk = max(1, int(CHUNK_S / call_s)) if call else 0
    queue: list[Any] = []
    stamps: list[Any] = []
    ticks: list[tuple[float, float]] = []
    instant: list[float] = []
    last, power_at = monitor.energy_j(), 0.0
    begun = device.now()
    if last is None:
        return None
    while True:
        while call and len(queue) < 3:
            for _ in range(chunk):
                call()
            queue.append(device.stamp())
        while queue and device.passed(queue[0]):
            stamp = queue.pop(0)
            if ticks:
                stamps.append(stamp)
        now, energy = device.now(), monitor.energy_j()
        if energy is None or (not ticks and now - begun > 5):
            return None
        if energy != last:
            ticks.append((now, energy))
            last = energy
            if now - ticks[0][0] >= seconds:
                break
        if ticks and now - power_at >= 0.02:  # NVML renews the instant power about every 20 ms
            power, power_at = monitor.power_now_w(), now
            if power is not None:
                instant.append(power)
        device.wait(5e-4)
    device.synchronize()
    (start, first), (stop, second) = ticks[0], ticks[-1]
    period = device.elapsed_s(stamps[0], stamps[-1]) / (chunk * (len(stamps) - 1)) if len(stamps) > 1 else None
    steps = [b[0] - a[0] for a, b in pairwise(ticks)]
    mean = statistics.fmean(instant) if instant else None
    return Window(stop - start, (second - first) / (stop - start), mean, period, steps)


def measure_energy(call: Callable[[], object], call_s: float, device: Device, monitor: Monitor, plan: Plan) -> Energy:
    """Measure the energy of one call of about `call_s` seconds, back to back, over the plan's trials."""
    if monitor.energy_j() is None:
        return Energy(reason="this GPU or driver has no energy counter")
    device.rest(0.5)
    idle = window(device, monitor, 1.0, None, call_s)
    if idle is None:
        return Energy(reason="the energy counter stands still")
    step = statistics.median(idle.steps_s)
    jitter = random.Random(0)  # noqa: S311  it shifts the phase between trials, nothing more
    trials: list[Window] = []
    for _ in range(plan.energy_trials):
        device.rest(0.5 + jitter.uniform(0, step))
        got = window(device, monitor, max(plan.energy_window_s, 50 * step), call, call_s)
        if got is None or got.period_s is None:
            return Energy(reason="the energy counter stopped")
        trials.append(got)
    watts = [t.mean_w for t in trials]
    joules = [t.mean_w * t.period_s for t in trials if t.period_s]
    period = statistics.median(t.period_s for t in trials if t.period_s)
    length = statistics.median(t.window_s for t in trials)
    instants = [t.instant_w for t in trials if t.instant_w is not None]
    mean_w = statistics.fmean(watts)
    out = Energy(
        gross_j=statistics.median(joules), net_j=statistics.median(joules) - idle.mean_w * period, mean_w=mean_w,
        idle_w=idle.mean_w, instant_w=statistics.fmean(instants) if instants else None, window_s=length,
        trials=len(trials), step_s=step, u_max=step / length, u_rms=step / length / math.sqrt(6),
        cv=statistics.stdev(joules) / statistics.fmean(joules) if len(joules) > 1 else None, period_s=period,
    )  # fmt: skip
    if out.cv is None or out.cv > MAX_CV:
        out.reason = f"the trials scatter by {out.cv:.1%}, more than {MAX_CV:.0%}" if out.cv else "one trial only"
    elif out.instant_w is not None and abs(out.instant_w - mean_w) > MAX_DISAGREEMENT * mean_w:
        out.reason = f"counter {mean_w:.0f} W and instant power {out.instant_w:.0f} W disagree by more than 5 %"
    else:
        out.valid = True
        return out
    out.gross_j = out.net_j = None
    return out
