"""An axis: where a value lies on it, in percent of its length, and which values are marked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

STEPS = (1, 2, 5, 10)
MARKS = 6  # about as many as a chart 300 pixels wide has room for
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u"))


@dataclass(frozen=True)
class Scale:
    """From `low` to `high`, both above zero where it is logarithmic."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """Percent of the length; outside of 0 to 100 for a value outside of the scale."""
        low, high, here = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return round(100 * (here - low) / (high - low), 3)

    def ticks(self) -> list[float]:
        """The values that are marked: decades, or multiples of 1, 2 or 5 times a power of ten."""
        if not self.log:
            rough = (self.high - self.low) / MARKS
            power = 10 ** math.floor(math.log10(rough))
            step = next(s * power for s in STEPS if s * power >= rough * (1 - 1e-9))
            first = math.ceil(self.low / step - 1e-9)
            return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        within = [10.0**d for d in decades if self.low <= 10.0**d <= self.high]
        if len(within) > 2:
            return within[:: -(-len(within) // (2 * MARKS))]
        return [v for d in decades for s in (1, 2, 5) if self.low <= (v := s * 10.0**d) <= self.high]


def around(values: Iterable[float], *, log: bool = False, margin: float = 0.06) -> Scale:
    """A scale that holds all values, with a margin of its length on either side."""
    found = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0]
    low, high = min(found), max(found)
    if log:
        low, high = math.log(low), math.log(high)
    spare = (high - low) * margin or (abs(low) * margin if not log else 1) or 1.0
    low, high = low - spare, high + spare
    return Scale(math.exp(low), math.exp(high), log=True) if log else Scale(low, high)


def si(value: float, unit: str = "", digits: int = 3) -> str:
    """A number with an SI prefix: `819 TFLOP/s`."""
    scale, prefix = next((p for p in PREFIXES if abs(value) >= p[0] * (1 - 1e-9)), (1.0, ""))
    shown = value / scale
    text = f"{shown:.0f}" if abs(shown) >= 10 ** (digits - 1) else f"{shown:.{digits}g}"
    return f"{text} {prefix}{unit}".rstrip()
