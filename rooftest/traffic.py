"""Bytes that device memory really moved, from the GPU's own counters over a window of repeated calls."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

from rooftest.cuda import Device
from rooftest.nvml import Monitor

CHUNK_S = 20e-3
LEAD_S = 0.3
"""Busy time before the first sample: the counters may lag by their own period and must not see the idle time before."""
PART_S, PARTS = 0.25, 3
"""The window is read in parts, three at least: their scatter says how far off their mean is."""
ERROR = 0.01
"""Standard error of the mean at which the window ends. On the H200 parts of a product scatter by 2 %, of a copy by less
than 0.1 %."""


def moved_bytes(
    call: Callable[[], object],
    call_s: float,
    device: Device,
    monitor: Monitor,
    window_s: float,
    least_bytes: float = 0.0,
) -> dict[str, Any]:
    """Return {bytes, u_bytes, calls, window_s, call_s, power_w, clock_hz} of a call, or {bytes: None, reason}.

    `window_s`: the longest; it ends as soon as the mean of its parts has a standard error (u_bytes) within ERROR, or
    within that share of `least_bytes`, the fewest bytes of a call: what stays in the L2 moves next to nothing.

    The calls run back to back (L2 as the call before left it) from before the first sample until after the second, so
    that the rate between the samples is that of the steady state: bytes of a call = rate x time from call to call.
    """
    if monitor.traffic_reason:
        return {"bytes": None, "reason": monitor.traffic_reason}
    chunk = max(1, int(CHUNK_S / call_s))
    stamps: list[Any] = []
    power: list[float] = []

    def keep_busy(seconds: float) -> None:
        begun = device.now()
        while device.now() - begun < seconds:
            for _ in range(chunk):
                call()
            stamps.append(device.stamp())
            while len(stamps) > 3 and not device.passed(stamps[-4]):
                device.wait(5e-4)
            watts = monitor.power_now_w()
            if watts is not None:
                power.append(watts)

    keep_busy(LEAD_S)
    stamps.clear()
    power.clear()
    device.clocks_hz()
    device.clock()
    part_s = min(window_s, max(PART_S, 4 * chunk * call_s))
    rates: list[float] = []
    begun, error = device.now(), None
    while device.now() - begun < window_s:
        first = monitor.traffic_sample()
        keep_busy(part_s)
        rate = monitor.traffic_rate(first, monitor.traffic_sample())
        if rate is None:
            device.synchronize()
            return {"bytes": None, "reason": monitor.traffic_reason or "the counters gave no rate"}
        rates.append(rate)
        if len(rates) >= PARTS:
            error = statistics.stdev(rates) / math.sqrt(len(rates))
            if error <= ERROR * max(statistics.fmean(rates), least_bytes / call_s):
                break
    device.clock()
    device.synchronize()
    if len(stamps) < 2:
        return {"bytes": None, "reason": "too few calls fit into the window"}
    calls = chunk * (len(stamps) - 1)
    period, rate = device.elapsed_s(stamps[0], stamps[-1]) / calls, statistics.fmean(rates)
    return {
        "bytes": rate * period,
        "bytes_per_s": rate,
        "u_bytes": None if error is None else error * period,
        "calls": calls,
        "window_s": calls * period,
        "call_s": period,
        "power_w": statistics.fmean(power) if power else None,
        "clock_hz": next(iter(device.clocks_hz()), None),
        "reason": "",
    }
