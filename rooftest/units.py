"""Errors of the transcendental units: what the vendor documents, or what was measured of every fp32 number on a device.

They are hard bounds of what a unit adds for an exact argument: relative ones of exp and rsqrt, and for log a share of
max(|log x|, 1), for near 1 the hardware's logarithm has an absolute error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Unit:
    """A unit's error, and who vouches for it."""

    error: float
    source: str


UNITS: dict[str, Unit] = {
    "exp": Unit(2.0**-22, "CUDA documents 2 ulp for ex2.approx"),
    "log": Unit(2.0**-22, "PTX documents 2**-22 for lg2.approx, absolute near 1"),
    "rsqrt": Unit(2.0**-22, "PTX documents 2**-22.9 for rsqrt.approx"),
    "tanh": Unit(2.0**-22, "CUDA documents 2 ulp for tanhf"),
}
"""The units by name, where nothing was measured."""

SPELLED: dict[str, tuple[str, ...]] = {
    "exp": ("exp", "exp2", "ex2.approx"),
    "log": ("log", "log2", "lg2.approx"),
    "rsqrt": ("rsqrt", "rsqrt.approx"),
    "tanh": ("tanh",),
}
"""How kernels spell each unit: the contract admits them all, so the worst of them counts."""


def measured(data: Mapping[str, Any]) -> dict[str, Unit]:
    """The units of a measurement (`rooftest.transcendentals`), those of UNITS for what it does not hold.

    A measured error counts whether it is smaller or larger than the documented one.
    """
    out = dict(UNITS)
    for unit, names in SPELLED.items():
        rows = [data["functions"].get(name, {}) for name in names]
        if all("charged_u" in row for row in rows):
            worst = max(row["charged_u"]["value"] for row in rows)
            source = (
                f"every fp32 number on {data['name']}, driver {data['driver']}, triton {data['software']['triton']}"
            )
            out[unit] = Unit(worst * 2.0**-24, source)
    return out
