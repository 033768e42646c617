"""What NVML says of one GPU, found by its UUID. What cannot be read is None, with the reason in `unread`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Protocol


@dataclass
class Identity:
    """What a GPU is, and how it is set up. SI units; None where it could not be read."""

    uuid: str | None = None
    name: str | None = None
    vbios: str | None = None
    driver: str | None = None
    cuda_driver: str | None = None
    cc: str | None = None
    sm_count: int | None = None
    l2_bytes: int | None = None
    mem_bytes: int | None = None
    mem_bus_bits: int | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    sm_max_hz: float | None = None
    mem_max_hz: float | None = None
    unread: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return asdict(self)


@dataclass
class State:
    """What a GPU does at one moment, and its accumulating counters (seconds are since the driver was loaded)."""

    sm_hz: float | None = None
    mem_hz: float | None = None
    temp_c: float | None = None
    power_w: float | None = None
    reasons: list[str] | None = None
    power_cap_s: float | None = None
    sw_thermal_s: float | None = None
    hw_thermal_s: float | None = None
    power_brake_s: float | None = None
    ecc_ue: int | None = None
    ecc_ce: int | None = None
    remap_pending: bool | None = None
    pids: list[int] | None = None
    """Compute and graphics processes on the GPU, this one left out."""
    unread: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return asdict(self)


class Monitor(Protocol):
    """What the rest of the harness asks of a GPU's monitor; `Gpu` and the simulated device both answer it."""

    def identity(self) -> Identity:
        """Return what the GPU is."""
        ...

    def state(self) -> State:
        """Return what it does now."""
        ...

    def energy_j(self) -> float | None:
        """Return the total energy counter in joules, or None with `energy_reason` set."""
        ...

    @property
    def energy_reason(self) -> str:
        """Why the energy counter could not be read the last time; empty when it could."""
        ...

    def power_now_w(self) -> float | None:
        """Return the instant power in watts, or None."""
        ...

    def power_samples(self, since_s: float) -> list[tuple[float, float]] | None:
        """Return the driver's buffered (time in s, power in W) from after `since_s`; None if they can't be had.

        The times are on the driver's own clock. The buffer is short (119 samples about 20 ms apart on an H200): whoever
        wants all of them asks again within two seconds.
        """
        ...

    def traffic_sample(self) -> Any:
        """Return an opaque sample of the memory counters, or None with `traffic_reason` set."""
        ...

    def traffic_rate(self, first: Any, second: Any) -> float | None:
        """Return the bytes per second that device memory moved between two samples, or None."""
        ...

    @property
    def traffic_reason(self) -> str:
        """Why there are no memory counters; empty when there are."""
        ...


class NvmlMissingError(RuntimeError):
    """NVML cannot be used here; the message is one line that says why."""


# Bits of nvmlDeviceGetCurrentClocksEventReasons; the values are NVML's ABI.
REASONS = {
    0x1: "idle", 0x2: "application_clocks", 0x4: "power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "power_brake", 0x100: "display_clocks",
}  # fmt: skip

# Accumulating counters, in nanoseconds: field ids of nvmlDeviceGetFieldValues.
COUNTERS = {"power_cap_s": 74, "sw_thermal_s": 269, "hw_thermal_s": 270, "power_brake_s": 271}
POWER_INSTANT, REMAP_PENDING = 186, 144
MEMBERS = {
    0: "dVal",
    1: "uiVal",
    2: "ulVal",
    3: "ullVal",
    4: "sllVal",
    5: "siVal",
}  # of nvmlValue_t, by type
NOT_FOUND = 6  # NVML_ERROR_NOT_FOUND: no sample is newer than those already read
DRAM_UTILISATION = 10  # NVML_GPM_METRIC_DRAM_BW_UTIL, percent of the theoretical bandwidth


def _load() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise NvmlMissingError(f"NVML is not readable: nvidia-ml-py is not installed ({error}).") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlMissingError(f"NVML is not readable: {error}. Clocks, power and validity are unknown.") from None
    return pynvml


def gpus() -> list[str]:
    """Return the UUIDs of all GPUs that NVML lists; raises NvmlMissingError."""
    nvml = _load()
    handles = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount()))
    return [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class Gpu:
    """One GPU's monitor. Raises NvmlMissingError when NVML or the GPU is not there, and nothing after that."""

    def __init__(self, uuid: str, sm_count: int | None = None, l2_bytes: int | None = None) -> None:
        self._nvml = _load()
        uuid = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        try:
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError:
            try:  # older bindings take bytes only
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            except (self._nvml.NVMLError, TypeError) as error:
                raise NvmlMissingError(f"NVML does not know the GPU {uuid}: {error}.") from None
        self._uuid, self._sm_count, self._l2_bytes = uuid, sm_count, l2_bytes
        self._peak: float | None = None
        self._reason: str | None = None
        self.energy_reason = ""

    def _read(self, unread: dict[str, str], name: str, get: Callable[[], Any]) -> Any:
        try:
            return get()
        except (self._nvml.NVMLError, AttributeError, OSError, ValueError) as error:
            unread[name] = str(error) or type(error).__name__
            return None

    def identity(self) -> Identity:
        """Return what the GPU is; SM count and L2 bytes are those given (CUDA knows them, NVML does not)."""
        n, h = self._nvml, self._handle
        out = Identity(uuid=self._uuid, sm_count=self._sm_count, l2_bytes=self._l2_bytes)

        def cuda() -> str:
            version = n.nvmlSystemGetCudaDriverVersion_v2()
            return f"{version // 1000}.{version % 1000 // 10}"

        getters: dict[str, Callable[[], Any]] = {
            "name": lambda: _text(n.nvmlDeviceGetName(h)),
            "vbios": lambda: _text(n.nvmlDeviceGetVbiosVersion(h)),
            "driver": lambda: _text(n.nvmlSystemGetDriverVersion()),
            "cuda_driver": cuda,
            "cc": lambda: ".".join(map(str, n.nvmlDeviceGetCudaComputeCapability(h))),
            "mem_bytes": lambda: int(n.nvmlDeviceGetMemoryInfo(h).total),
            "mem_bus_bits": lambda: int(n.nvmlDeviceGetMemoryBusWidth(h)),
            "power_limit_w": lambda: n.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3,
            "ecc": lambda: bool(n.nvmlDeviceGetEccMode(h)[0]),
            # A slice has no mode of its own to be asked for.
            "mig": lambda: self._uuid.startswith("MIG-") or bool(n.nvmlDeviceGetMigMode(h)[0]),
            "persistence": lambda: bool(n.nvmlDeviceGetPersistenceMode(h)),
            "sm_max_hz": lambda: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM) * 1e6,
            "mem_max_hz": lambda: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_MEM) * 1e6,
        }
        for name, get in getters.items():
            setattr(out, name, self._read(out.unread, name, get))
        return out

    def state(self) -> State:
        """Return clocks, temperature, power, throttle counters, ECC counts and the other processes' ids."""
        n, h = self._nvml, self._handle
        out = State()

        def ecc(kind: int) -> int:
            return int(n.nvmlDeviceGetTotalEccErrors(h, kind, n.NVML_VOLATILE_ECC))

        def pids() -> list[int]:
            both = [*n.nvmlDeviceGetComputeRunningProcesses(h), *n.nvmlDeviceGetGraphicsRunningProcesses(h)]
            return sorted({int(p.pid) for p in both} - {os.getpid()})

        def reasons() -> list[str]:
            mask = int(n.nvmlDeviceGetCurrentClocksEventReasons(h))
            return [word for bit, word in REASONS.items() if mask & bit]

        getters: dict[str, Callable[[], Any]] = {
            "sm_hz": lambda: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM) * 1e6,
            "mem_hz": lambda: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM) * 1e6,
            "temp_c": lambda: float(n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
            "power_w": lambda: n.nvmlDeviceGetPowerUsage(h) / 1e3,
            "reasons": reasons,
            "ecc_ue": lambda: ecc(n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            "ecc_ce": lambda: ecc(n.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "pids": pids,
        }
        for name, get in getters.items():
            setattr(out, name, self._read(out.unread, name, get))
        fields = self._fields(out.unread, [*COUNTERS.values(), REMAP_PENDING])
        for name, number in COUNTERS.items():
            value = fields.get(number)
            setattr(out, name, None if value is None else value / 1e9)
            if value is None:
                out.unread.setdefault(name, out.unread.get("fields", "not supported by this GPU or driver"))
        pending = fields.get(REMAP_PENDING)
        out.remap_pending = None if pending is None else bool(pending)
        return out

    def _fields(self, unread: dict[str, str], numbers: list[int]) -> dict[int, int]:
        values = self._read(unread, "fields", lambda: self._nvml.nvmlDeviceGetFieldValues(self._handle, numbers))
        out: dict[int, int] = {}
        for value in values or ():
            if value.nvmlReturn == 0:
                member = MEMBERS.get(value.valueType)
                if member and hasattr(value.value, member):
                    out[value.fieldId] = getattr(value.value, member)
        return out

    def energy_j(self) -> float | None:
        """Return joules since the driver was loaded."""
        unread: dict[str, str] = {}
        value = self._read(unread, "energy", lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        self.energy_reason = unread.get("energy", "")
        return None if value is None else value / 1e3

    def power_now_w(self) -> float | None:
        """Return the instant power (field 186); nvmlDeviceGetPowerUsage is a one-second mean on recent GPUs."""
        value = self._fields({}, [POWER_INSTANT]).get(POWER_INSTANT)
        return None if value is None else value / 1e3

    def power_samples(self, since_s: float) -> list[tuple[float, float]] | None:
        """Return the buffered samples of the board's power; NVML counts microseconds and milliwatts."""
        n = self._nvml

        def take() -> list[tuple[float, float]]:
            try:
                kind, found = n.nvmlDeviceGetSamples(self._handle, n.NVML_TOTAL_POWER_SAMPLES, int(since_s * 1e6))
            except n.NVMLError as error:
                if getattr(error, "value", None) == NOT_FOUND:
                    return []
                raise
            return [(s.timeStamp / 1e6, getattr(s.sampleValue, MEMBERS[kind]) / 1e3) for s in found if s.timeStamp]

        taken: list[tuple[float, float]] | None = self._read({}, "samples", take)
        return taken

    @property
    def traffic_reason(self) -> str:
        """Why bytes moved cannot be read; empty when they can."""
        if self._reason is None:
            unread: dict[str, str] = {}
            support = self._read(unread, "gpm", lambda: self._nvml.nvmlGpmQueryDeviceSupport(self._handle))
            identity = self.identity()
            if support is None:
                self._reason = f"GPM: {unread['gpm']}"
            elif not support.isSupportedDevice:
                self._reason = "this GPU has no GPM counters (Hopper and newer have)"
            elif identity.mem_max_hz is None or identity.mem_bus_bits is None:
                self._reason = "the theoretical bandwidth cannot be read"
            else:
                self._peak = memory_peak(identity.mem_max_hz, identity.mem_bus_bits)
                self._reason = ""
        return self._reason

    def traffic_sample(self) -> Any:
        """Return a GPM sample, or None when `traffic_reason` says why."""
        if self.traffic_reason:
            return None

        def take() -> Any:
            sample = self._nvml.nvmlGpmSampleAlloc()
            self._nvml.nvmlGpmSampleGet(self._handle, sample)
            return sample

        unread: dict[str, str] = {}
        taken = self._read(unread, "gpm", take)
        if taken is None:
            self._reason = f"GPM: {unread['gpm']}"
        return taken

    def traffic_rate(self, first: Any, second: Any) -> float | None:
        """Return utilisation x theoretical bandwidth, in bytes per second; frees both samples."""
        if first is None or second is None or self._peak is None:
            return None
        n = self._nvml

        def get() -> float:
            query = n.c_nvmlGpmMetricsGet_t()
            query.version, query.numMetrics = n.NVML_GPM_METRICS_GET_VERSION, 1
            query.sample1, query.sample2 = first, second
            query.metrics[0].metricId = DRAM_UTILISATION
            n.nvmlGpmMetricsGet(query)
            if query.metrics[0].nvmlReturn != 0:
                raise n.NVMLError(query.metrics[0].nvmlReturn)
            return float(query.metrics[0].value) / 100

        unread: dict[str, str] = {}
        share = self._read(unread, "gpm", get)
        for sample in (first, second):
            self._read({}, "free", partial(n.nvmlGpmSampleFree, sample))
        if share is None:
            self._reason = f"GPM: {unread['gpm']}"
            return None
        return share * self._peak


def memory_peak(mem_hz: float, bus_bits: int) -> float:
    """Return bytes per second at a memory clock: two transfers a clock over the bus's width."""
    return 2 * mem_hz * bus_bits / 8
