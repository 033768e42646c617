"""The median's interval by order statistics, the stop rule, and the correction for dependent samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

CORRELATED = 0.3
"""Lag-1 correlation from which on the number of independent samples is corrected (below it the correction is noise:
the estimate of rho from 30 independent samples has a standard deviation of 1/sqrt(30) = 0.18)."""


@dataclass(frozen=True)
class MedianInterval:
    """The median of samples with an interval that holds it at the stated confidence; all in the samples' unit."""

    median: float
    low: float
    high: float
    lag1: float
    n: int
    n_effective: float

    @property
    def half_width(self) -> float:
        """The larger distance from the median to an end of the interval."""
        return max(self.high - self.median, self.median - self.low)


@lru_cache(maxsize=256)
def ranks(n: int, alpha: float) -> tuple[int, int] | None:
    """Return the 1-based ranks (l, u), u = n + 1 - l, whose order statistics hold the median with 1 - alpha or more.

    The number of n independent samples below the median is Binomial(n, 1/2), so [x_(l), x_(n+1-l)] misses it with
    probability 2 P(B <= l - 1): l is the largest rank that keeps this at or below alpha. None where even [min, max]
    misses it too often (n < 6 for alpha = 0.05).
    """
    limit = (int(alpha * 2**60) << n) >> 61  # alpha / 2 of 2^n, in integers: 2.0**n overflows above n = 1023
    total = low = 0
    for below in range(n):
        total += math.comb(n, below)
        if total > limit:
            break
        low = below + 1
    return (low, n + 1 - low) if low >= 1 else None


def lag1(samples: Sequence[float]) -> float:
    """Return the lag-1 correlation of the samples' ranks (ranks, so that one outlier cannot hide or make it)."""
    n = len(samples)
    if n < 3:
        return 0.0
    order = sorted(range(n), key=samples.__getitem__)
    rank = [0.0] * n
    start = 0
    while start < n:  # ties share their mean rank: device timers tick, so ties are common
        stop = start
        while stop + 1 < n and samples[order[stop + 1]] == samples[order[start]]:
            stop += 1
        for place in range(start, stop + 1):
            rank[order[place]] = (start + stop) / 2
        start = stop + 1
    mean = (n - 1) / 2
    spread = sum((r - mean) ** 2 for r in rank)
    if spread == 0:
        return 0.0
    return sum((a - mean) * (b - mean) for a, b in pairwise(rank)) / spread


def median_interval(samples: Sequence[float], alpha: float = 0.05) -> MedianInterval | None:
    """Return the median of the samples with its 1 - alpha interval, or None where there are too few samples.

    With lag-1 correlation rho > 0.3, n samples count as n (1 - rho) / (1 + rho) (the variance of the mean of a
    first-order autoregressive series); the ranks are those of that many samples, as fractions of n.
    """
    n = len(samples)
    if n == 0:
        return None
    rho = lag1(samples)
    n_effective = n * (1 - rho) / (1 + rho) if rho > CORRELATED else float(n)
    few = math.floor(n_effective)
    pair = ranks(few, alpha) if few >= 1 else None
    if pair is None:
        return None
    low = max(1, math.floor(pair[0] * n / few))
    ordered = sorted(samples)
    return MedianInterval(statistics.median(ordered), ordered[low - 1], ordered[n - low], rho, n, n_effective)


def settled(samples: Sequence[float], target: float, resolution: float, alpha: float) -> bool:
    """Return whether the median's 1 - alpha interval lies within `target` (relative), or within the timer's tick.

    `resolution` is the timer's tick in the samples' unit: an interval cannot be asked to be narrower than it.
    """
    interval = median_interval(samples, alpha)
    return interval is not None and interval.half_width <= max(target * abs(interval.median), resolution)


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], alpha: float = 0.05
) -> MedianInterval | None:
    """Return the median and interval of paired ratios: sample i of both was taken in the same round."""
    return median_interval([a / b for a, b in zip(numerator, denominator, strict=True) if b > 0], alpha)
