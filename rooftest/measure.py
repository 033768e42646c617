"""One measurement, in the kernel's own process: states before and after, times, bytes moved, energy; as plain data."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from rooftest.contents import Contents
from rooftest.costs import host_s
from rooftest.cuda import Cuda, Device
from rooftest.energy import measure_energy
from rooftest.nvml import Gpu, Identity, Monitor, NvmlMissingError, State
from rooftest.plan import Plan
from rooftest.roofline import Work
from rooftest.stats import ratio_interval
from rooftest.timer import NoDeviceWorkError, Samples, time_calls
from rooftest.traffic import moved_bytes
from rooftest.validity import Validity, validate
from rooftest.windows import StrayWorkError

__all__ = ["Plan", "measure"]

TRIES = 3
"""Measurements again after the hardware slowed down for heat or a power brake."""

DISAGREE_S, DISAGREE = 2e-6, 0.03
"""Events and CUPTI on the same executions: more than both of these apart, one of them is wrong."""


class Blind:
    """The monitor where NVML is missing: it knows nothing, and says why."""

    def __init__(self, reason: str) -> None:
        self.traffic_reason = self.energy_reason = reason

    def identity(self) -> Identity:
        """Return an identity without anything in it."""
        return Identity(unread={"nvml": self.traffic_reason})

    def state(self) -> State:
        """Return a state without anything in it."""
        return State(unread={"nvml": self.traffic_reason})

    def energy_j(self) -> float | None:
        """Return None."""

    def power_now_w(self) -> float | None:
        """Return None."""

    def power_samples(self, since_s: float) -> list[tuple[float, float]] | None:
        """Return None."""

    def traffic_sample(self) -> Any:
        """Return None."""

    def traffic_rate(self, first: Any, second: Any) -> float | None:
        """Return None."""


def open_monitor(device: Cuda) -> Monitor:
    """Return the NVML monitor of a CUDA device, or one that says why there is none."""
    try:
        return Gpu(device.uuid, int(device.properties.multi_processor_count), device.l2_bytes)
    except NvmlMissingError as error:
        return Blind(str(error))


def measure(
    calls: Mapping[str, Callable[[], object]],
    plan: Plan | None = None,
    work: Work | None = None,
    device: Device | None = None,
    monitor: Monitor | None = None,
    contents: Contents | None = None,
) -> dict[str, Any]:
    """Measure the calls side by side and return plain data (dict, list, str, float, int, bool, None), JSON-able.

    Each call enqueues its work on the current stream of the current device and returns. `work` says what one call must
    do; with it, rates are added. `contents` renews the inputs before each timed call. Bytes moved, power and energy are
    those of the first call. Keys of the result:

    status    ok, invalid, or error (then `reasons` says why and there are no times)
    reasons   why the numbers do not count
    identity, health (states before and after), validity (reasons, tags, unknown), plan, work
    calls     by name: samples_s, timing, clocks, rates, moved, power, energy
    wall      host seconds by part of the measurement
    ratios    by "a/b": median and interval of paired ratios of times, from the same rounds
    """
    plan = plan or Plan()
    if device is None:
        device = Cuda()
    if monitor is None:
        monitor = open_monitor(device) if isinstance(device, Cuda) else Blind("no monitor was given")
    identity = monitor.identity()
    out: dict[str, Any] = {
        "status": "ok", "reasons": [], "identity": identity.as_dict(), "plan": plan.as_dict(),
        "work": None if work is None else vars(work).copy(), "calls": {}, "ratios": {}, "wall": {},
    }  # fmt: skip
    wall = _Wall(device, out["wall"])
    times: dict[str, Samples] = {}
    validity = Validity()
    for attempt in range(1 + TRIES):
        before, begun = monitor.state(), device.now()
        try:
            times = time_calls(calls, device, plan, contents)
        except (NoDeviceWorkError, StrayWorkError) as error:
            return {**out, "status": "error", "reasons": [str(error)]}
        after, window_s = monitor.state(), device.now() - begun
        clocks = next(iter(times.values())).clocks_hz if times else []
        validity = validate(identity, before, after, window_s, clocks)
        out["health"] = {
            "before": before.as_dict(), "after": after.as_dict(), "window_s": window_s, "attempts": attempt + 1
        }  # fmt: skip
        wall.lap("sample_s", less=(warmup_s := next(iter(times.values())).warmup_s if times else 0.0))
        out["wall"]["warmup_s"] = out["wall"].get("warmup_s", 0.0) + warmup_s
        if not validity.retry:
            break
    for name, samples in times.items():
        validity.reasons += _doubts(name, samples)
        entry = _entry(samples, work)
        call_s = samples.median_s or 1e-6
        # The windows take seconds each: only of the kernel, not of what it is timed beside.
        judged = name == next(iter(calls))
        entry["moved"] = {"bytes": None, "reason": "not asked for"}
        entry["energy"] = {"valid": False, "reason": "not asked for"}
        if judged:
            entry["timing"]["host_s"] = host_s(calls[name], device)
            wall.lap("host_s")
        # Windows of an invalid measurement would be invalid for the same reason.
        late = [f"not measured, as the time is invalid: {reason}" for reason in validity.reasons[:1]]
        if plan.bytes_moved and judged:
            entry["moved"] = (
                {"bytes": None, "reason": late[0]}
                if late
                else moved_bytes(
                    calls[name], call_s, device, monitor, plan.window_s, work.min_bytes if work is not None else 0.0
                )
            )
            wall.lap("traffic_s")
            moved = entry["moved"]["bytes"]
            if work is not None and moved is not None and work.min_bytes:
                entry["moved"]["over_min"] = moved / work.min_bytes
        if plan.energy and judged:
            entry["energy"] = _energy(calls[name], call_s, device, monitor, plan, late)
            wall.lap("energy_s")
        entry["power_w"] = entry["energy"].get("mean_w") or entry["moved"].get("power_w")
        out["calls"][name] = entry
    out["ratios"] = _ratios(times)
    out["validity"] = validity.as_dict()
    if not validity.valid:
        out["status"], out["reasons"] = "invalid", validity.reasons
    return out


class _Wall:
    """Host seconds of each part, so that every record shows where a measurement's time went."""

    def __init__(self, device: Device, spent: dict[str, float]) -> None:
        self.device, self.spent, self.at = device, spent, device.now()

    def lap(self, name: str, less: float = 0.0) -> None:
        """Add the time since the last lap, but for what stands elsewhere."""
        now = self.device.now()
        self.spent[name] = self.spent.get(name, 0.0) + now - self.at - less
        self.at = now


def _energy(
    call: Callable[[], object], call_s: float, device: Device, monitor: Monitor, plan: Plan, late: list[str]
) -> dict[str, Any]:
    """Measure energy, unless there is a reason not to; withheld if the windows met what makes a time invalid."""
    if late:
        return {"valid": False, "reason": late[0]}
    before, begun = monitor.state(), device.now()
    got = measure_energy(call, call_s, device, monitor, plan)
    # The power limit may act in windows of seconds, and heat: joules are those of a hot card. Strangers draw their own.
    doubts = validate(monitor.identity(), before, monitor.state(), device.now() - begun).reasons
    if got.valid and doubts:
        got.valid, got.reason = False, doubts[0]
        got.gross_j = got.net_j = got.u_gross_j = got.u_net_j = got.u_mean_w = None
    return got.as_dict()


def _doubts(name: str, samples: Samples) -> list[str]:
    out = []
    if samples.interval is None:
        out.append(f"{name}: {len(samples.samples_s)} samples are too few for an interval")
    elif samples.interval.low <= 0:
        out.append(f"{name}: a time at or below zero: shorter than what its timer ({samples.timer}) resolves")
    both = samples.crosscheck
    if both:
        apart = abs(both["events_s"] - both["cupti_s"])
        if apart > max(DISAGREE_S, DISAGREE * both["cupti_s"]):
            out.append(
                f"{name}: events say {both['events_s'] * 1e6:.4g} us and CUPTI {both['cupti_s'] * 1e6:.4g} us"
                " of the same executions"
            )
    return out


def _entry(samples: Samples, work: Work | None) -> dict[str, Any]:
    interval, clocks = samples.interval, samples.clocks_hz
    median = samples.median_s
    held = statistics.median(samples.call_hz) if samples.call_hz else None
    entry: dict[str, Any] = {
        "samples_s": samples.samples_s,
        "timing": {
            "timer": samples.timer,
            "median_s": median,
            "ci95_s": [interval.low, interval.high] if interval else None,
            "confidence": samples.confidence,
            "converged": samples.converged,
            "lag1": interval.lag1 if interval else None,
            "n_effective": interval.n_effective if interval else None,
            "n_accepted": len(samples.samples_s),
            "n_discarded": 0,
            "span_s": statistics.median(samples.span_s) if samples.span_s else None,
            "busy_s": median if samples.timer == "cupti" else None,
            "offset_s": samples.offset_s,
            "u_timer_s": samples.u_timer_s,
            "warmup_s": samples.warmup_s,
            "crosscheck": samples.crosscheck,
            "kernels": samples.kernels,
            "notes": samples.notes,
        },
        "clocks": {
            "sm_hz_mean": held,
            "sm_hz_min": min(samples.call_hz, default=None),
            "sm_hz_max": max(samples.call_hz, default=None),
            "burst_hz_mean": statistics.fmean(clocks) if clocks else None,
            "burst_hz_min": min(clocks, default=None),
            "cycles_median": median * held if held and median else None,
        },
    }
    if work is not None and median:
        entry["rates"] = {"flop_per_s": work.flop / median, "bytes_per_s": work.min_bytes / median}
    return entry


def _ratios(times: Mapping[str, Samples]) -> dict[str, Any]:
    out = {}
    names = list(times)
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            got = ratio_interval(times[first].samples_s, times[second].samples_s)
            if got:
                out[f"{first}/{second}"] = {"median": got.median, "ci95": [got.low, got.high], "n": got.n}
    return out
