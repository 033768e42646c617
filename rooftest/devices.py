"""The device files (specs/devices/*.toml): widths and datasheet figures of each GPU, each with its source."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from rooftest.errors import UsageError
from rooftest.nvml import Identity, memory_peak
from rooftest.roofline import Ceiling


@dataclass(frozen=True)
class Device:
    """One device file. SI units; peaks dense, with fp32 accumulation."""

    key: str
    """The file's name without .toml: the word in a kernel's row (`efficiency = {h200 = 0.80}`)."""
    name: str
    match: tuple[str, ...]
    """Parts of the name that NVML gives; any of them matches."""
    exclude: tuple[str, ...]
    cc: str
    sm_count: int
    boost_hz: float
    l2_bytes: int
    flop_per_sm_clock: Mapping[str, float]
    bytes_per_s: float
    nvlink_bytes_per_s: float
    flop_per_s: Mapping[str, float]
    source: str

    def fits(self, name: str, cc: str | None) -> bool:
        """Return whether a GPU of this name and compute capability is this device."""
        low = name.lower()
        return (
            any(part.lower() in low for part in self.match)
            and not any(part.lower() in low for part in self.exclude)
            and cc in {None, self.cc}
        )


def _parse(key: str, text: str) -> Device:
    try:
        data = tomllib.loads(text)
        chip, sheet = data["chip"], data["datasheet"]
        widths = {k: float(v) for k, v in data["flop_per_sm_clock"].items() if k != "source"}
        return Device(
            key, data["name"], tuple(data["match"]), tuple(data["exclude"]), data["cc"], int(chip["sm_count"]),
            float(chip["boost_hz"]), int(chip["l2_bytes"]), widths, float(sheet["bytes_per_s"]),
            float(sheet["nvlink_bytes_per_s"]), {k: float(v) for k, v in sheet["flop_per_s"].items()}, sheet["source"],
        )  # fmt: skip
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"specs/devices/{key}.toml cannot be read: {error!r}.") from None


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Device]:
    """Return all device files by key; raises UsageError for one that cannot be read."""
    found = {
        f.name.removesuffix(".toml"): f for f in files("rooftest.specs.devices").iterdir() if f.name.endswith(".toml")
    }
    return {key: _parse(key, found[key].read_text(encoding="utf-8")) for key in sorted(found)}


def device(key: str) -> Device:
    """Return the device file of that key; raises UsageError naming those that exist."""
    known = catalogue()
    if key not in known:
        raise UsageError(f"no device file specs/devices/{key}.toml; there are: {', '.join(known)}.")
    return known[key]


def match(name: str, cc: str | None = None) -> Device | None:
    """Return the device of a GPU by the name NVML or CUDA gives, or None when no file fits."""
    return next((d for d in catalogue().values() if d.fits(name, cc)), None)


def physical(found: Device, identity: Identity) -> Ceiling:
    """Return what the hardware's widths allow at the maximum clocks that NVML reports: it cannot be beaten.

    SMs x FLOP per SM and clock x maximum SM clock, and two transfers a maximum memory clock over the bus's width. What
    NVML cannot say is taken from the device file, and the provenance says so.
    """
    sms, hz = identity.sm_count or found.sm_count, identity.sm_max_hz or found.boost_hz
    if identity.mem_max_hz and identity.mem_bus_bits:
        bandwidth, memory = memory_peak(identity.mem_max_hz, identity.mem_bus_bits), "NVML"
    else:
        bandwidth, memory = found.bytes_per_s, f"the datasheet: {identity.unread.get('mem_max_hz', 'NVML not read')}"
    clock = "NVML" if identity.sm_max_hz else "the device file's boost clock"
    return Ceiling(
        "physical",
        {dtype: sms * width * hz for dtype, width in found.flop_per_sm_clock.items()},
        bandwidth,
        identity.l2_bytes or found.l2_bytes,
        f"{found.key}: {sms} SMs at {hz / 1e6:.0f} MHz ({clock}); memory {bandwidth / 1e9:.0f} GB/s ({memory})",
    )


def physical_at(found: Device, identity: Identity, sm_hz: float) -> Ceiling:
    """Return the physical ceiling at the SM clock that was held, for reading results: it is not a bound to gate on."""
    top = physical(found, identity)
    sms = identity.sm_count or found.sm_count
    rates = {dtype: sms * width * sm_hz for dtype, width in found.flop_per_sm_clock.items()}
    return Ceiling("physical", rates, top.bytes_per_s, top.l2_bytes, f"{found.key} at {sm_hz / 1e6:.0f} MHz held")


def datasheet(found: Device, identity: Identity) -> Ceiling:
    """Return the datasheet's dense peaks, with their source."""
    return Ceiling(
        "datasheet", dict(found.flop_per_s), found.bytes_per_s, identity.l2_bytes or found.l2_bytes, found.source
    )
