"""Does a number count? From the GPU's states before and after, and the clocks between."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rooftest.nvml import Identity, State

POWER_LIMITED = 0.01
"""Share of the window in which the power limit acted, from which on the number is tagged."""


@dataclass
class Validity:
    """`reasons` make a number INVALID; `tags` say under which circumstances it counts; `unknown` what nobody saw."""

    reasons: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    retry: bool = False

    @property
    def valid(self) -> bool:
        """Whether nothing speaks against the number."""
        return not self.reasons

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return {**asdict(self), "valid": self.valid}


GRADER = "ROOFTEST_GRADER_PID"  # set in a kernel's process, whose grader holds memory on the same GPU


def _family(pid: int) -> bool | None:
    """Return whether a process is the grader's or one that it started; None if it cannot be seen."""
    grader = int(os.environ.get(GRADER, os.getpid()))
    for _ in range(64):
        if pid == grader:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            return None
        if pid <= 1:
            return False
    return False


def validate(
    identity: Identity, before: State, after: State, window_s: float, clocks_hz: Sequence[float] = ()
) -> Validity:
    """Return what speaks against a number that was taken between two states, `window_s` seconds apart."""
    out = Validity()
    gone: list[str] = []
    """What could be read before, and not after."""

    def grown(name: str) -> float | None:
        first, second = getattr(before, name), getattr(after, name)
        if first is not None and second is None:
            gone.append(f"{name}: {after.unread.get(name, 'not read')}")
        elif first is None or second is None:
            out.unknown.append(f"{name}: {after.unread.get(name) or before.unread.get(name) or 'not read'}")
        return None if first is None or second is None else float(second - first)

    for name, what in (("hw_thermal_s", "the hardware slowed down for heat"), ("power_brake_s", "a power brake acted")):
        gain = grown(name)
        if gain:
            out.reasons.append(f"{what} for {gain:.3g} s of {window_s:.3g} s")
            out.retry = True
    for name, tag in (("power_cap_s", "power_limited"), ("sw_thermal_s", "thermally_limited")):
        gain = grown(name)
        if gain is not None and gain > POWER_LIMITED * window_s:
            out.tags.append(tag)
    errors = grown("ecc_ue")
    if errors:
        out.reasons.append(f"{errors:.0f} new uncorrected ECC errors")
    if after.remap_pending:
        out.reasons.append("a memory row waits to be remapped: reset the GPU")
    if identity.mig:
        out.reasons.append("MIG is on: the slice's bandwidth, L2 and power are not the GPU's")
    pids = sorted({*(before.pids or ()), *(after.pids or ())})
    if before.pids is not None and after.pids is None:
        gone.append(f"pids: {after.unread.get('pids', 'not read')}")
    elif before.pids is None or after.pids is None:
        out.unknown.append(f"pids: {after.unread.get('pids') or before.unread.get('pids') or 'not read'}")
    if gone:
        out.reasons.append(f"NVML lost the GPU during the measurement ({gone[0]})")
    foreign = [pid for pid in pids if _family(pid) is False]
    unseen = [pid for pid in pids if _family(pid) is None]
    if foreign:
        out.reasons.append(f"other processes use the GPU: {', '.join(map(str, foreign))}")
    if unseen:
        out.unknown.append(f"pids: {len(unseen)} processes of another PID namespace are listed, perhaps our own")
    if "application_clocks" not in {*(before.reasons or ()), *(after.reasons or ())}:
        out.tags.append("unlocked")
    if clocks_hz and min(clocks_hz) < 0.9 * max(clocks_hz):
        # 10 %: the widest swing of medians seen between two runs of one product on one GPU is 5 %.
        out.tags.append("clock_swing")
    return out
