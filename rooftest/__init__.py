"""The harness: a pytest plugin and library that judges and measures GPU kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooftest.conformance import Check as Check
    from rooftest.conformance import checks as checks
    from rooftest.speed import Measurement as Measurement
    from rooftest.speed import measures as measures

_HOME = {"checks": "conformance", "Check": "conformance", "measures": "speed", "Measurement": "speed"}


def __getattr__(name: str) -> Any:
    """The decorators, imported when asked for: a kernel's process imports this package and needs no pytest."""
    if name not in _HOME:
        raise AttributeError(f"module 'rooftest' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"rooftest.{_HOME[name]}"), name)
