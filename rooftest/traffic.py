"""Bytes that device memory really moved, from the GPU's own counters over a window of repeated calls."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from rooftest.cuda import Device
from rooftest.nvml import Monitor

CHUNK_S = 20e-3


def moved_bytes(
    call: Callable[[], object], call_s: float, device: Device, monitor: Monitor, window_s: float
) -> dict[str, Any]:
    """Return {bytes, calls, window_s, power_w, clock_hz} or {bytes: None, reason}; bytes are a call's.

    The calls run back to back (L2 as the call before left it), for `window_s` or longer: 2 s hold many of the counter's
    own periods. The window opens and closes between calls, with the device idle for less than a millisecond.
    """
    if monitor.traffic_reason:
        return {"bytes": None, "reason": monitor.traffic_reason}
    chunk = max(1, int(CHUNK_S / call_s))
    for _ in range(chunk):
        call()
    device.synchronize()
    device.clocks_hz()
    first, begun, calls = monitor.traffic_sample(), device.now(), 0
    power: list[float] = []
    behind: list[Any] = []
    while device.now() - begun < window_s:
        for _ in range(chunk):
            call()
        calls += chunk
        behind.append(device.stamp())
        while len(behind) > 2 and not device.passed(behind[-3]):
            device.wait(5e-4)
        watts = monitor.power_now_w()
        if watts is not None:
            power.append(watts)
    device.clock()
    device.synchronize()
    second, length = monitor.traffic_sample(), device.now() - begun
    total = monitor.traffic_bytes(first, second)
    if total is None:
        return {"bytes": None, "reason": monitor.traffic_reason or "the counters could not be read"}
    half = power[len(power) // 2 :]
    return {
        "bytes": total / calls,
        "calls": calls,
        "window_s": length,
        "call_s": length / calls,
        "power_w": statistics.fmean(half) if half else None,
        "clock_hz": next(iter(device.clocks_hz()), None),
        "reason": "",
    }
