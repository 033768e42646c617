"""The header: what judged, and on what."""

from __future__ import annotations

from importlib.metadata import version
from platform import python_version

from rooftest import host
from rooftest.session import Session


def lines(session: Session) -> list[str]:
    """Versions, device, ceilings with their provenance, profile."""
    names = ("rooftest", "torch", "triton", "hypothesis")
    found = ", ".join(f"{name} {version(name)}" for name in names)
    return [f"{found}, python {python_version()}, profile roof-{session.options.profile}", host.NO_GPU]
