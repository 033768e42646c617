"""When a series became slower: a CUSUM raises the alarm, change-point detection dates it.

Both work on nights, the median log time of each day, and on residuals in units of sigma_night, the standard deviation
of a baseline: the first BASELINE nights, frozen, so that a slow drift cannot creep into what it is judged by. After a
change the baseline is taken anew from the day of the change.

    S_t = max(0, S_{t-1} + z_t - k),  alarm where S_t > h      (Page 1954; one-sided: slower)

The mirrored sum finds what became faster; it raises nothing but moves the baseline, else half of an improvement could
be lost again unseen. tests/test_history_alarm.py holds rates and delays against simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

BASELINE = 30
"""Nights before a series is watched."""
K, H = 0.5, 8.0
"""With a known baseline: 18 800 nights to a false alarm, one in 63 nights over 300 series."""
UNSURE = 1.645
"""z(0.95). The mean of n baseline nights is off by up to UNSURE sigma / sqrt(n), which K has to allow for: without it
12.7 % of series, not 1.9 %, would have a false alarm in their first year (simulated, n = 30)."""
WILD = 4.0
"""A night counts as at most so many sigma: one wild night adds 3.5 of 8, so that an alarm takes three nights."""
LEAST = 2.0
"""Smallest change in sigma that is dated; smaller ones it dates too loosely to name a revision."""
FALSE_DATE = 1e-4
"""Probability of a change point in a window without one."""
WINDOW = 60
"""Nights before and after the alarm that `points` looks at: enough for 2 sigma, few enough for milliseconds."""


@dataclass(frozen=True)
class Change:
    """A series became slower or faster. Indices are of nights."""

    raised: int
    """The night that the sum passed H."""
    since: int
    """The first night of the sum that did: about where the change began."""
    dated: int | None
    """The first night after the change, by `points`; None if the change is smaller than LEAST sigma."""
    ratio: float
    """Time after over time before."""
    slower: bool
    """Whether this is an alarm."""

    @property
    def first(self) -> int:
        """The first night that is taken to be after the change."""
        return self.since if self.dated is None else self.dated


@dataclass(frozen=True)
class Watch:
    """What was found in the nights of one segment, and what its latest nights are watched by."""

    changes: tuple[Change, ...]
    start: int
    """The night that the present baseline starts with."""
    mean: float
    """The mean log time of the present baseline, over as many nights as there are of it."""
    sigma: float | None
    """sigma_night, relative; None while the baseline is not full: nothing is watched."""

    @property
    def alarms(self) -> tuple[Change, ...]:
        """The changes for the worse."""
        return tuple(change for change in self.changes if change.slower)


def watch(log_s: Floats, needed: int = BASELINE) -> Watch:
    """Return the changes in the log times of successive nights; `needed`: nights of a baseline."""
    changes: list[Change] = []
    start = 0
    while True:
        baseline = log_s[start : start + needed]
        mean = float(baseline.mean()) if len(baseline) else math.nan
        if len(baseline) < needed:
            return Watch(tuple(changes), start, mean, None)
        sigma = float(baseline.std(ddof=1)) or math.ulp(1.0)  # a clock that reads the same each night
        z = (log_s[start:] - mean) / sigma
        found = _first(z[needed:], K + UNSURE / math.sqrt(needed))
        if found is None:
            return Watch(tuple(changes), start, mean, sigma)
        since, raised, slower = found
        changes.append(_dated(log_s[start:], z, needed + since, needed + raised, slower=slower, at=start))
        start = changes[-1].first


def _first(z: Floats, k: float) -> tuple[int, int, bool] | None:
    """Where the first sum began and passed H, and whether it was the one of slower nights."""
    import numpy as np

    best = None
    for slower in (True, False):
        steps = np.minimum(z if slower else -z, WILD) - k
        total = np.concatenate(([0.0], np.cumsum(steps)))
        above = total - np.minimum.accumulate(total) > H  # equals S_t: a sum less its lowest value so far
        if above.any():
            raised = int(above.argmax())
            lowest = len(total[:raised]) - 1 - int(total[:raised][::-1].argmin())
            if best is None or raised - 1 < best[1]:
                best = (lowest, raised - 1, slower)
    return best


def _dated(log_s: Floats, z: Floats, since: int, raised: int, *, slower: bool, at: int) -> Change:
    """A change whose sum began at `since`, with its date and size; `at` is added to all nights."""
    import numpy as np

    low, high = max(0, since - WINDOW), min(len(z), raised + 1 + WINDOW)
    level = float(np.median(z[since : raised + 1]))  # wild nights are drawn in to WILD about either level, not below it
    seen = np.clip(z[low:high], min(0.0, level) - WILD, max(0.0, level) + WILD)
    sign = 1 if slower else -1
    edges = [0, *points(seen), len(seen)]
    dated, before, after = None, slice(0, since), slice(since, raised + 1)
    for left, here, right in zip(edges, edges[1:], edges[2:], strict=False):
        pieces = slice(low + left, low + here), slice(low + here, low + right)
        step = float(np.median(z[pieces[1]]) - np.median(z[pieces[0]]))
        if sign * step >= LEAST and low + here <= raised:  # the last one before the alarm
            dated, (before, after) = low + here, pieces
    ratio = math.exp(float(np.median(log_s[after]) - np.median(log_s[before])))
    return Change(at + raised, at + since, None if dated is None else at + dated, ratio, slower)


def points(z: Floats) -> list[int]:
    """Return the change points of residuals of unit variance: the split of least squared distance, a penalty a point.

    A split that isn't there gains chi-square with one degree of freedom at each of len(z) places, so a penalty of its
    quantile at FALSE_DATE / len(z) has FALSE_DATE false ones in all (Bonferroni). Pieces are of two nights or more.

    The exact optimum (optimal partitioning, Jackson 2005), as PELT finds it: best[end] is the least cost of the nights
    before `end`, less the sum of all squares. O(n^2) without PELT's pruning, which 180 nights do not need. ruptures
    has both, but importing any part of it brings scipy's statistics and signals: 0.7 s for dates that take 0.1 s.
    """
    import numpy as np

    if len(z) < 4:
        return []
    penalty = NormalDist().inv_cdf(FALSE_DATE / len(z) / 2) ** 2  # chi-square is a normal's square
    total, nights = np.append(0.0, np.cumsum(z)), np.arange(len(z) + 1.0)
    best, last = np.full(len(total), np.inf), [0] * len(total)
    best[0] = 0.0
    for end in range(2, len(total)):
        cost = best[: end - 1] - (total[end] - total[: end - 1]) ** 2 / (end - nights[: end - 1])
        last[end] = at = int(cost.argmin())
        best[end] = cost[at] + penalty
    found = []
    at = last[-1]
    while at:
        found.append(at)
        at = last[at]
    return found[::-1]
