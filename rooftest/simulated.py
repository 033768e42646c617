"""A simulated GPU in virtual time, behind the interfaces of the real one: so that the measurement is tested on a CPU.

It has what makes timing hard: launches that cost the host time, gaps, an L2 with dirty lines, noise, drift, a power
limit that throttles, an energy counter in steps, events with an offset, a tracer that can be missing or drop records.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rooftest.cuda import CLOCK, DONE, FLUSH, MARK, Activity, TraceUnavailableError
from rooftest.nvml import Identity, State


@dataclass
class Knobs:
    """What the simulated GPU is like; SI units."""

    l2_bytes: int = 60_000_000
    bytes_per_s: float = 4.2e12
    noise: float = 0.002
    """Relative standard deviation of a kernel's time."""
    process_noise: float = 0.0
    """Relative standard deviation of a factor on a kernel's time, drawn once for each process (a `Simulated` is one)
    and kernel: addresses, layout, luck. No number of samples of one process lessens it."""
    clock_noise: float = 0.0
    """Likewise of the clock, for all kernels of a process: it shows in seconds, and not in cycles."""
    drift_per_s: float = 0.0
    """Relative slow-down a busy second, those of earlier processes (`aged_s`) included."""
    launch_s: float = 5e-6
    """Host time of a launch."""
    traced: float = 1.0
    """How many times as long a launch takes while it is traced."""
    gap_s: float = 0.8e-6
    """Idle device time between two kernels."""
    event_offset_s: float = 3.3e-6
    """What a pair of events reads too much."""
    sm_hz: float = 1.98e9
    throttle_after_s: float = 50e-3
    """Unbroken busy time after which the power limit acts."""
    throttle_factor: float = 1.0
    """Slow-down when it does; the clock falls as much."""
    hw_thermal_per_s: float = 0.0
    """Seconds the hardware's thermal counter gains a busy second."""
    power_idle_w: float = 76.0
    power_busy_w: float = 600.0
    energy_step_s: float = 0.1
    energy_late: float = 0.0
    """Share of a step by which the counter's steps come late, at random: on an H200 they are 33 to 123 ms apart."""
    power_swing_w: float = 0.0
    """The board draws so much more in the first half of each sensor period, and so much less in the second."""
    sample_s: float = 0.02
    """Spacing of the power samples; the driver keeps SAMPLES of them."""
    sample_noise: float = 0.0
    """Relative standard deviation of a power sample."""
    sensor_period_s: float = 0.1
    sensor_share: float = 1.0
    """Share of its period that the power sensor looks at, from the start: 0.25 on some A100 and H100 boards."""
    nvml_lost_after_s: float | None = None
    """Virtual time from which on NVML says that the GPU is lost."""
    nvml_denied: tuple[str, ...] = ()
    """Fields of State that the user may not read."""
    tracer: str = "works"
    """works, missing, or drops (every nineteenth record: a prime, so that it meets each of a call's in turn)."""
    flush_writes: bool = False
    """The flush that we do not want: it leaves L2 full of dirty lines."""
    tick_s: float = 32e-9
    product_s: float = 1e-3
    """What a matrix product of torch takes where `Simulated.runs` watches it."""
    other_s: float = 2e-6
    """What an operation on each element takes there."""


SAMPLES = 119
"""Power samples that the driver's buffer holds."""
LOST, DENIED = "GPU is lost", "Insufficient Permissions"

# Functions of torch that take time where `runs` watches them; the others (views, attributes) launch nothing.
PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm"}
OTHERS = {"copy_", "clone", "fill_", "zero_", "to", "add", "add_", "mul", "mul_", "sum", "where", "clamp", "bfloat16"}


@dataclass
class Simulated:
    """The device and its monitor in one."""

    knobs: Knobs = field(default_factory=Knobs)
    seed: int = 0
    foreign: list[int] = field(default_factory=list)
    ecc_ue: int = 0
    mig: bool = False
    aged_s: float = 0.0
    """Busy seconds that earlier processes left on the card; `busy_s` says how many there are after this one."""

    def __post_init__(self) -> None:
        """Start idle at time zero."""
        self.random = random.Random(self.seed)  # noqa: S311  a simulation
        self.l2_bytes, self.tick_s = self.knobs.l2_bytes, self.knobs.tick_s
        self.host_s = self.free_s = self.streak_s = 0.0
        self.busy_s = self.aged_s
        self.sm_hz = self.knobs.sm_hz / self._luck("clock", self.knobs.clock_noise)
        self.power_cap_s = self.hw_thermal_s = 0.0
        self.cached, self.dirty_bytes = "", 0.0
        self.trace_of: list[Activity] | None = None
        self.capture: list[Callable[[], None]] | None = None
        self.readings: list[tuple[float, float]] = []
        self.cycles = self.cycles_at_s = 0.0
        self.starts, self.ends, self.sums, self.moved = [0.0], [0.0], [0.0], [0.0]
        self.replaying = False

    def _luck(self, name: str, sd: float) -> float:
        """Return this process's factor for a name: from a stream of its own, so that no other draw depends on it."""
        return math.exp(random.Random(f"{self.seed} {name}").gauss(0, sd)) if sd else 1.0  # noqa: S311  a simulation

    def kernel(
        self, name: str, cold_s: float, warm_s: float | None = None, write_bytes: float = 0.0, moved_bytes: float = 0.0
    ) -> Callable[[], None]:
        """Return a call that runs one kernel; `warm_s` is its time when its data is still in L2."""
        luck = self._luck(f"kernel {name}", self.knobs.process_noise) * self.knobs.sm_hz / self.sm_hz

        def run() -> None:
            time_s = luck * (warm_s if warm_s is not None and self.cached == name else cold_s)
            time_s += self.dirty_bytes / self.knobs.bytes_per_s
            self._occupy(name, time_s * max(0.1, 1 + self.random.gauss(0, self.knobs.noise)), moved_bytes)
            self.cached, self.dirty_bytes = name, min(write_bytes, self.l2_bytes)

        return lambda: self._enqueue(run)

    def runs(self, call: Callable[[], object]) -> Callable[[], None]:
        """Return the call, made for torch's operations in it to take time here, as kernels of their names.

        What another thread does is not seen, as if it ran on a stream that nobody waits for.
        """
        from torch.overrides import TorchFunctionMode

        device = self
        seconds = dict.fromkeys(OTHERS, self.knobs.other_s) | dict.fromkeys(PRODUCTS, self.knobs.product_s)

        class Watch(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                name = getattr(func, "__name__", "")
                if name in seconds:
                    device.kernel(name, seconds[name])()
                return func(*args, **(kwargs or {}))

        def watched() -> None:
            with Watch():
                call()

        return watched

    def _enqueue(self, run: Callable[[], None]) -> None:
        if self.capture is not None:
            self.capture.append(run)
            return
        if not self.replaying:
            self.host_s += self.knobs.launch_s * (1.0 if self.trace_of is None else self.knobs.traced)
        run()

    def _occupy(self, name: str, seconds: float, moved_bytes: float = 0.0, steady: bool = False) -> None:
        start = max(self.free_s + self.knobs.gap_s, self.host_s)
        if start - self.free_s > 1e-3:
            self.streak_s = 0.0
        if not steady:
            seconds *= 1 + self.knobs.drift_per_s * self.busy_s
            if self.streak_s > self.knobs.throttle_after_s and self.knobs.throttle_factor > 1:
                seconds *= self.knobs.throttle_factor
                self.power_cap_s += seconds
                self.cycles -= seconds * self.sm_hz * (1 - 1 / self.knobs.throttle_factor)
            self.hw_thermal_s += self.knobs.hw_thermal_per_s * seconds
            self.busy_s += seconds
            self.streak_s += seconds
        end = start + seconds
        self.free_s = end
        if not steady:
            self.starts.append(start)
            self.ends.append(end)
            self.sums.append(self.sums[-1] + seconds)
            self.moved.append(self.moved[-1] + moved_bytes)
        if self.trace_of is not None:
            tick = self.knobs.tick_s
            self.trace_of.append(Activity(name, round(start / tick) * tick, round(end / tick) * tick))

    # The device.

    def now(self) -> float:
        """Return virtual host time; asking takes a microsecond of it."""
        self.host_s += 1e-6
        return self.host_s

    def synchronize(self) -> None:
        """Move the host to the queue's end."""
        self.host_s = max(self.host_s, self.free_s)

    def rest(self, seconds: float) -> None:
        """Idle."""
        self.synchronize()
        self.host_s += seconds

    def wait(self, seconds: float) -> None:
        """Only the host waits."""
        self.host_s += seconds

    def block(self, seconds: float) -> None:
        """Occupy the queue without power."""
        self._enqueue(lambda: self._occupy("spin_kernel", seconds, steady=True))

    def flush(self) -> None:
        """Evict."""

        def run() -> None:
            self._occupy(FLUSH, (2 * self.l2_bytes + self.dirty_bytes) / self.knobs.bytes_per_s, 2.0 * self.l2_bytes)
            self.cached, self.dirty_bytes = "", float(self.l2_bytes) if self.knobs.flush_writes else 0.0

        self._enqueue(run)

    def mark(self) -> None:
        """Run an empty kernel."""
        self._enqueue(lambda: self._occupy(MARK, 1e-6, steady=True))

    def done(self) -> None:
        """Run an empty kernel."""
        self._enqueue(lambda: self._occupy(DONE, 1e-6, steady=True))

    def aside(self, name: str, seconds: float) -> Callable[[], None]:
        """Return a call that runs a kernel on a stream of its own, which no wait or stamp of ours sees."""

        def run() -> None:
            if self.trace_of is not None:
                self.trace_of.append(Activity(name, self.host_s, self.host_s + seconds, stream=1))

        return lambda: self._enqueue(run)

    def clock(self) -> None:
        """Read the cycle counter."""

        def run() -> None:
            self._occupy(CLOCK, 1e-6, steady=True)
            self.readings.append((self.free_s, self.cycles + (self.free_s - self.cycles_at_s) * self.sm_hz))

        self._enqueue(run)

    def clocks_hz(self) -> list[float]:
        """Return the readings."""
        taken, self.readings = self.readings, []
        pairs = zip(taken[::2], taken[1::2], strict=False)
        return [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairs]

    def stamp(self) -> Any:
        """Stamp the queue; half the offset lies before the stamp and half after."""
        self.free_s = max(self.free_s, self.host_s if not self.replaying else 0.0)
        self.free_s += (self.knobs.event_offset_s - self.knobs.gap_s) / 2
        at = self.free_s
        self.free_s += (self.knobs.event_offset_s - self.knobs.gap_s) / 2
        return at

    def passed(self, stamp: Any) -> bool:
        """Compare with the host's time."""
        return bool(stamp <= self.host_s)

    def elapsed_s(self, first: Any, second: Any) -> float:
        """Return the difference."""
        return float(second - first)

    def trace(self, enqueue: Callable[[], None]) -> list[Activity]:
        """Record."""
        if self.knobs.tracer == "missing":
            raise TraceUnavailableError("CUPTI gave no activities (simulated)")
        self.trace_of = []
        enqueue()
        self.synchronize()
        found, self.trace_of = sorted(self.trace_of, key=lambda a: a.start_s), None
        if self.knobs.tracer == "drops":
            found = [a for i, a in enumerate(found) if i % 19 != 18]
        return found

    def graph(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Capture."""
        self.capture = []
        enqueue()
        nodes, self.capture = self.capture, None

        def replay() -> None:
            self.host_s += self.knobs.launch_s
            self.replaying = True
            for node in nodes:
                node()
            self.replaying = False

        return replay

    # The monitor.

    def _busy_until(self, when: float) -> tuple[float, float]:
        index = bisect_right(self.starts, when) - 1
        inside = min(when, self.ends[index]) - self.starts[index]
        length = self.ends[index] - self.starts[index]
        share = inside / length if length > 0 else 1.0
        before = max(0, index - 1)
        moved = self.moved[before] + share * (self.moved[index] - self.moved[before])
        return self.sums[before] + share * (self.sums[index] - self.sums[before]), moved

    def _lost(self) -> bool:
        after = self.knobs.nvml_lost_after_s
        return after is not None and self.host_s >= after

    def identity(self) -> Identity:
        """Return an H200's."""
        return Identity(
            uuid="GPU-simulated", name="NVIDIA H200", driver="0", cc="9.0", sm_count=132, l2_bytes=self.l2_bytes,
            mem_bus_bits=6144, sm_max_hz=1.98e9, mem_max_hz=3.201e9, mig=self.mig, ecc=True, power_limit_w=700.0,
        )  # fmt: skip

    def state(self) -> State:
        """Return clocks and counters; what can't be read is None, with the reason."""
        out = State(
            sm_hz=self.knobs.sm_hz, mem_hz=3.201e9, temp_c=40.0, power_w=self.knobs.power_idle_w, reasons=[],
            power_cap_s=self.power_cap_s, sw_thermal_s=0.0, hw_thermal_s=self.hw_thermal_s, power_brake_s=0.0,
            ecc_ue=self.ecc_ue, ecc_ce=0, remap_pending=False, pids=list(self.foreign),
        )  # fmt: skip
        names = [n for n in vars(out) if n != "unread"]
        for name in names if self._lost() else self.knobs.nvml_denied:
            setattr(out, name, None)
            out.unread[name] = LOST if self._lost() else DENIED
        return out

    def _drawn_j(self, when: float) -> float:
        """Joules drawn until then, exactly."""
        knobs, (busy, _) = self.knobs, self._busy_until(when)
        into = when % knobs.sensor_period_s
        swing = knobs.power_swing_w * min(into, knobs.sensor_period_s - into)
        return knobs.power_idle_w * when + (knobs.power_busy_w - knobs.power_idle_w) * busy + swing

    def energy_j(self) -> float | None:
        """Return the counter, which moves once a step."""
        if self._lost():
            return None
        step = self.knobs.energy_step_s
        number = int(self.host_s // step)
        late = random.Random(number).random() * self.knobs.energy_late * step  # noqa: S311  a simulation
        return self._drawn_j((number - (self.host_s - number * step < late)) * step)

    @property
    def energy_reason(self) -> str:
        """Return why the counter is gone."""
        return LOST if self._lost() else ""

    def power_now_w(self) -> float | None:
        """Return busy or idle power."""
        if self._lost():
            return None
        return self.knobs.power_busy_w if self.host_s < self.free_s else self.knobs.power_idle_w

    def power_samples(self, since_s: float) -> list[tuple[float, float]] | None:
        """Return what the sensor saw of the period before each sample, as far as the buffer goes back."""
        if self._lost():
            return None
        knobs, out = self.knobs, []
        last = int(self.host_s // knobs.sample_s)
        for number in range(max(1, last - SAMPLES + 1, int(since_s / knobs.sample_s) + 1), last + 1):
            at = number * knobs.sample_s
            start = max(0.0, (at // knobs.sensor_period_s - 1) * knobs.sensor_period_s)
            looked = knobs.sensor_share * knobs.sensor_period_s
            watts = (self._drawn_j(start + looked) - self._drawn_j(start)) / looked
            out.append((at, watts * (1 + random.Random(number).gauss(0, knobs.sample_noise))))  # noqa: S311
        return out

    @property
    def traffic_reason(self) -> str:
        """Return no reason while NVML answers."""
        return f"GPM: {LOST}" if self._lost() else ""

    def traffic_sample(self) -> Any:
        """Return the time and the bytes so far."""
        if self._lost():
            return None
        return self.host_s, self._busy_until(self.host_s)[1]

    def traffic_rate(self, first: Any, second: Any) -> float | None:
        """Return bytes over time."""
        if first is None or second is None:
            return None
        return float((second[1] - first[1]) / (second[0] - first[0]))
