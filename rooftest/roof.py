"""The roofs of the GPU at hand: what it is, its device file, and its ceilings, each with its provenance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rooftest import ceilings, devices
from rooftest.errors import UsageError
from rooftest.nvml import Identity
from rooftest.roofline import Ceiling


@dataclass(frozen=True)
class Roof:
    """A GPU and what it can do; a ceiling is None where there is none, and `notes` say why."""

    identity: Identity
    key: str | None
    """The word for this GPU in a kernel's row: `efficiency = {h200 = 0.80}`."""
    physical: Ceiling | None
    attainable: Ceiling | None
    measured: dict[str, Any] | None
    """The measurement behind the attainable ceiling."""
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The GPU and its ceilings, in words for the header."""
        ident = self.identity
        head = f"{ident.name or 'a CUDA device'} ({ident.uuid}), driver {ident.driver}, power limit {_watts(ident)}"
        return [f"device: {head}", *(_ceiling(c) for c in (self.physical, self.attainable) if c), *self.notes]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data for the results file."""
        told = {c.kind: c.as_dict() for c in (self.physical, self.attainable) if c}
        return {"device": self.key, **told, "measured": self.measured, "notes": list(self.notes)}


def _watts(identity: Identity) -> str:
    return "unknown" if identity.power_limit_w is None else f"{identity.power_limit_w:.0f} W"


def _ceiling(ceiling: Ceiling) -> str:
    rates = ", ".join(f"{name} {rate / 1e12:.0f}" for name, rate in ceiling.flop_per_s.items())
    return f"{ceiling.kind}: {ceiling.bytes_per_s / 1e9:.0f} GB/s; TFLOP/s {rates} ({ceiling.provenance})"


def look() -> Roof:
    """What is known of the current GPU without measuring: attainable ceilings only if an earlier run kept them."""
    from rooftest.cuda import Cuda
    from rooftest.measure import Blind, open_monitor

    device = Cuda()
    monitor = open_monitor(device)
    identity = monitor.identity()
    identity.name = identity.name or str(device.properties.name)
    identity.uuid = identity.uuid or device.uuid
    found = devices.match(identity.name, identity.cc)
    notes: tuple[str, ...] = (monitor.traffic_reason,) if isinstance(monitor, Blind) else ()
    if found is None:
        notes += (f"no device file for {identity.name!r} in specs/devices: no physical ceiling, so no verdict",)
    kept, path = None, ceilings.cache_path(identity)
    if path.exists():
        try:
            kept = ceilings.load(path)
        except UsageError as error:
            notes += (str(error),)
    if kept is None:
        notes += ("attainable ceilings: none kept for this GPU and driver; measured before the first timing (22 s)",)
    return Roof(
        identity,
        found.key if found else None,
        devices.physical(found, identity) if found else None,
        ceilings.attainable(kept) if kept else None,
        kept,
        notes,
    )


def measured(known: Roof, *, again: bool = False) -> Roof:
    """The same with attainable ceilings, measured now if they are not kept. Nothing else may use the GPU meanwhile."""
    if known.attainable is not None and not again:
        return known
    from rooftest.cuda import Cuda
    from rooftest.measure import open_monitor

    device = Cuda()
    rates = known.physical.flop_per_s if known.physical else {}
    data = ceilings.ceilings(device, open_monitor(device), rates, again=again)
    return replace(known, attainable=ceilings.attainable(data), measured=data)
