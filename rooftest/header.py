"""The header: what judged, and on what."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rooftest import host
from rooftest.session import Session

JUDGES = ("rooftest", "torch", "triton", "hypothesis", "pytest", "pytest-benchmark", "numpy")


def software() -> dict[str, str | None]:
    """The versions of what takes part in a verdict."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in JUDGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def lines(session: Session) -> list[str]:
    """Versions, profile, device, ceilings with their provenance."""
    told = software()
    versions = ", ".join(f"{name} {told[name]}" for name in ("rooftest", "torch", "triton", "hypothesis", "python"))
    if session.gpu is None:
        asked = session.options.device
        device = [host.NO_GPU if asked is None else f"--roof-device {asked}: timing is left out"]
    else:
        device = session.roof.lines()
    return [f"{versions}, profile roof-{session.options.profile}", *device, *_compared(session)]


def _compared(session: Session) -> list[str]:
    """What --roof-against compares with."""
    if session.against is None:
        return []
    asked = session.options
    build = f", each built by {asked.build!r}" if asked.build else ""
    return [
        f"against: base {trees.revision}, head {trees.head_words} of {trees.head}; budget {asked.budget:.3g}"
        f"{build}{'; the same code on both sides: the spread is measured' if trees.same else ''}"
        for trees in session.against.all
    ]


def machine(session: Session) -> dict[str, Any]:
    """What the results file says of the machine."""
    gpu = None if session.gpu is None else session.roof.identity.as_dict()
    return {
        "gpu": gpu,
        "software": software(),
        "host": {"system": platform.platform(), "machine": platform.machine()},
        "profile": session.options.profile,
        "device": session.options.device,
    }
