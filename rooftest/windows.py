"""What a trace of the device says of each call: the activities between the kernels that begin and end it.

It also shows what a caller who waits for his own stream would not see, and what ran while nobody measured.
"""

from __future__ import annotations

from collections import Counter

from rooftest.cuda import CLOCK, DONE, SPACERS, Activity, TraceUnavailableError

BETWEEN = (CLOCK, "spin_kernel", "Memcpy", "direct_copy_kernel")
"""What the harness runs between two calls: readings of the clock, torch's spin, and torch's copies."""


class StrayWorkError(RuntimeError):
    """Work of a call ran where a caller that waits for his own stream does not see it: its time would be too short."""


def windows(found: list[Activity], expected: int) -> list[list[Activity]]:
    """Return the activities of each call: what starts after one of our spacers and before the kernel that ends a call.

    Raises TraceUnavailableError when the trace does not hold exactly `expected` windows (records were dropped, or a
    kernel bears the name of one of ours), StrayWorkError when something ran beyond the end of its window, or outside of
    all of them, on another stream than ours or under a name that nothing of ours has.
    """
    out: list[list[Activity]] = []
    inside, ended, ours = False, 0, None
    strays: list[Activity] = []
    for activity in found:
        if activity.name in SPACERS:
            out.append([])
            inside, ours = True, activity.stream
        elif activity.name == DONE:
            inside, ended = False, ended + 1
            strays += [a for a in out[-1] if a.end_s > activity.start_s and a.stream != activity.stream] if out else []
        elif inside:
            out[-1].append(activity)
        else:
            strays.append(activity)
    if len(out) != expected or ended != expected:
        raise TraceUnavailableError(f"CUPTI dropped records ({len(out)} of {expected} calls were seen)")
    for stray in strays:
        what = stray.name.replace("(anonymous namespace)", "").split("(")[0][:60]
        if stray.stream != ours:
            raise StrayWorkError(f"{what} ran on a stream of its own, which the caller's does not wait for")
        if not any(word in stray.name for word in BETWEEN):
            raise StrayWorkError(f"{what} ran between two calls")
    return out


def counts(window: list[Activity]) -> dict[str, int]:
    """Return how often each name is among the activities."""
    return dict(Counter(activity.name for activity in window))


def busy_s(window: list[Activity]) -> float:
    """Return the time in which at least one of the activities ran (kernels that overlap count once)."""
    total, end = 0.0, float("-inf")
    for activity in sorted(window, key=lambda a: a.start_s):
        total += max(0.0, activity.end_s - max(end, activity.start_s))
        end = max(end, activity.end_s)
    return total
