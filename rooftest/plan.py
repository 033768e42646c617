"""How to measure: every knob of one measurement, with the reason for its value."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rooftest.errors import UsageError

L2 = ("cold", "warm")
REGIMES = ("burst", "sustained")
SHORT_S = 100e-6
"""Below this, events are used where CUPTI can't be had only: less their offset of 3 us they still read up to 0.8 us too
long on the H200, the difference of two graphs up to 3 us (results/timers/h200-ncu.json)."""


@dataclass(frozen=True)
class Plan:
    """One measurement's plan; times in seconds."""

    l2: str = "cold"
    """cold: L2 holds none of the caller's data when the call begins; warm: what the call before left there."""
    regime: str = "burst"
    """burst: at most `burst_s` busy, then a gap, so that the power limit does not act; sustained: no gaps."""
    energy: bool = False
    """Measure joules a call (about half a minute each)."""
    bytes_moved: bool = False
    """Measure the bytes that device memory moved (`window_s` each at most, about 1 s as a rule)."""
    looks: tuple[int, ...] = (30, 100, 200, 400, 800)
    """Numbers of samples at which the stop rule is asked; each at alpha / len(looks), so that all together hold."""
    target: float = 0.005
    """The median's interval is to lie within this share of the median."""
    alpha: float = 0.05
    cap_s: float = 15.0
    """Host time after which sampling ends whatever the interval; `converged` is then false."""
    warmup_s: float = 0.2
    burst_s: float = 5e-3
    duty: float = 1 / 3
    """Busy share of a burst and its gap."""
    window_s: float = 2.0
    """Longest window of the counter of bytes moved, and of the sustained regime's warm-up."""
    energy_window_s: float = 5.0
    energy_trials: int = 4
    timer: str = "auto"
    """auto, or one of cupti, graph, events (to compare them)."""

    def __post_init__(self) -> None:
        """Refuse words that mean nothing."""
        for name, words in (("l2", L2), ("regime", REGIMES), ("timer", ("auto", "cupti", "graph", "events"))):
            if getattr(self, name) not in words:
                raise UsageError(f"Plan.{name} is {getattr(self, name)!r}; it is one of {', '.join(words)}.")

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-able data."""
        return {**asdict(self), "looks": list(self.looks)}
