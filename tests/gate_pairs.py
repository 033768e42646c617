"""Pairs of two simulated arms, for the tests of the gate: through `measure`, or drawn from a light model of it."""

import math
from itertools import count

import numpy as np

from rooftest.gate.rule import log_ratio
from rooftest.measure import Plan, measure
from rooftest.simulated import Knobs, Simulated

PLAN = Plan(warmup_s=0.01)
TIME_S, PEER_S = 5e-4, 4e-4


def measured_arm(knobs, seed, slow=0.0, aged_s=0.0):
    """One fresh process: the kernel, slower by a share, beside its peer. The arm, and the age it leaves the card at."""
    device = Simulated(knobs, seed, aged_s=aged_s)
    calls = {"kernel": device.kernel("kernel", TIME_S * (1 + slow)), "peer": device.kernel("peer", PEER_S)}
    got = measure(calls, PLAN, None, device, device)
    timing, clocks = got["calls"]["kernel"]["timing"], got["calls"]["kernel"]["clocks"]
    arm = {
        "time_s": timing["median_s"], "ci95_s": timing["ci95_s"], "cycles": clocks["cycles_median"],
        "clock_hz": clocks["sm_hz_mean"], "peer_s": got["calls"]["peer"]["timing"]["median_s"],
        "timer": timing["timer"], "u_timer_s": timing["u_timer_s"], "n": timing["n_accepted"],
        "status": got["status"], "reasons": got["reasons"], "tags": got["validity"]["tags"],
    }  # fmt: skip
    return arm, device.busy_s


def pair_of(base, head, stage="calibrate", order="AB"):
    reasons = [reason for arm in (base, head) if arm["status"] != "ok" for reason in arm["reasons"]]
    pair = {"stage": stage, "order": order, "base": base, "head": head, "valid": not reasons, "reasons": reasons}
    return {**pair, "log_ratio": log_ratio(pair)}


def measured(n, knobs=None, slow=0.0, seed=0, stage="calibrate"):
    """n pairs, A B B A, each arm a process of its own on a card that gets older."""
    knobs, seeds, aged_s, out = knobs or Knobs(), count(1000 * seed), 0.0, []
    for index in range(n):
        order, arms = ("AB", "BA")[index % 2], {}
        for name in order:
            arms[name], aged_s = measured_arm(knobs, next(seeds), slow * (name == "B"), aged_s)
        out.append(pair_of(arms["A"], arms["B"], stage, order))
    return out


def drawn(shape, knobs, slow=0.0, seed=0, arm_s=0.0, samples=30):
    """Log ratios of pairs (..., n) of the light model, in A B B A order along the last axis; `arm_s` busy an arm.

    A median of m normal samples has a variance of pi / 2 / m of one; processes differ by a log-normal factor, of the
    kernel and of the clock; the card gets slower with its age.
    """
    rng = np.random.default_rng(seed)
    sd = math.sqrt(knobs.process_noise**2 + knobs.clock_noise**2 + knobs.noise**2 * math.pi / 2 / samples)
    first = rng.normal(0, sd, shape)
    second = rng.normal(0, sd, shape)
    index = np.arange(np.shape(first)[-1])
    # Pair k is arms 2k and 2k + 1; the head comes second in even pairs and first in odd ones.
    age = lambda place: np.log1p(knobs.drift_per_s * arm_s * (2 * index + place + 0.5))  # noqa: E731
    later = index % 2 == 0
    drift = np.where(later, age(1) - age(0), age(0) - age(1))
    return second - first + drift + math.log1p(slow)


def plain(log_ratios, stage="screen", time_s=1e-3, u_timer_s=0.0):
    """Pairs with these log ratios and nothing else to them."""
    arm = {
        "time_s": time_s, "ci95_s": [time_s, time_s], "cycles": None, "clock_hz": None, "peer_s": None,
        "timer": "events", "u_timer_s": u_timer_s, "n": 30, "status": "ok", "reasons": [], "tags": [],
    }  # fmt: skip
    return [pair_of(arm, {**arm, "time_s": time_s * math.exp(x)}, stage) for x in log_ratios]
