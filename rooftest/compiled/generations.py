"""The generations that kernels are compiled for without a GPU, each with a device that a launcher can ask."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from rooftest import devices
from rooftest.compiled import occupancy
from rooftest.errors import UsageError


@dataclass(frozen=True)
class Generation:
    """A generation ("sm_90") by one of its devices: the name that CUDA gives it, and where its number of SMs stands."""

    name: str
    product: str
    device: str | None  # the device file
    sms: int = 0  # where there is none

    @property
    def arch(self) -> int:
        """The generation's number, as compilers want it."""
        return int(self.name.removeprefix("sm_"))

    @property
    def sm_count(self) -> int:
        """SMs of the device."""
        return devices.device(self.device).sm_count if self.device else self.sms

    @property
    def limits(self) -> occupancy.Generation:
        """What an SM and a CTA hold."""
        return occupancy.GENERATIONS[self.name]

    @property
    def cta_shared_bytes(self) -> int:
        """Shared memory that one CTA may have."""
        return self.limits.shared_bytes - occupancy.RESERVED_SHARED


GENERATIONS = {
    found.name: found
    for found in (
        Generation("sm_80", "NVIDIA A100-SXM4-80GB", "a100"),
        Generation("sm_90", "NVIDIA H200", "h200"),
        Generation("sm_100", "NVIDIA B200", "b200"),
        # No device file yet. 170 SMs: NVIDIA RTX Blackwell GPU Architecture whitepaper, GeForce RTX 5090.
        Generation("sm_120", "NVIDIA GeForce RTX 5090", None, 170),
    )
}


def generation(name: str) -> Generation:
    """The generation called `name`.

    Raises UsageError if there is none.
    """
    if name not in GENERATIONS:
        near = difflib.get_close_matches(name, GENERATIONS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"generation {name!r} is none of {', '.join(GENERATIONS)}{hint}")
    return GENERATIONS[name]
