"""The judge: a kernel's output against a reference that carries its own error bar. No tolerance is set by hand.

The last rounding is no noise. An output element y names the interval of reals that round to it in its format; d, the
distance of the reference value v from that interval, is the least error that the kernel can have made. With the bound
b, the deviation s and the spacing q of the format, t is d / s, or, where s is not small against q, (y - v) / sqrt(s^2 +
q^2 / 12).

    miss        elements that must be bit-exact (b = 0, NaN and infinities among them) and are not; limit 0
    hard        max d / b; limit 1
    z           max d / s over the n elements with b > 0; limit sqrt(2 ln(2 n / alpha))
    rms         sum t^2; its expectation and what its spread allows
    bias        |sum sign(v) t| beyond what expected flips of the last rounding explain, and truncating accumulators
    probe:name  the same along d(output) / d(constant)

The last four are statistical: they hold where the data has random signs. `conform` lets the reference stand trial
before it believes one of their alarms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rooftest.errorbar import Fresh, Value, bounds_only, noise
from rooftest.formats import F64, Format, cell, finite, pick, rne, ulp

ALPHA = 1e-9  # chance of a false alarm for one reading
TWINS, TWIN_ALPHA = 8, 1e-3
NEVER_WITHDRAWN = ("miss", "hard")


@dataclass(frozen=True)
class Reading:
    """One reading and the limit that it must not exceed."""

    value: float
    limit: float

    @property
    def ratio(self) -> float:
        """Value over limit; infinite where nothing is allowed and something is there, or the value is NaN."""
        if self.limit > 0 and not math.isnan(self.value):
            return self.value / self.limit
        return 0.0 if self.value == 0 else math.inf

    @property
    def alarms(self) -> bool:
        """Whether the limit is exceeded; NaN exceeds every limit."""
        return not self.value <= self.limit


@dataclass(frozen=True)
class Worst:
    """The element that speaks loudest in an alarm; |got - expected| should have been at most `allowed`."""

    index: tuple[int, ...]
    got: float
    expected: float
    allowed: float


@dataclass(frozen=True)
class Judgement:
    """All readings of one output by name, the names of those withdrawn, and the worst element of the first alarm."""

    readings: Mapping[str, Reading]
    withdrawn: tuple[str, ...] = ()
    worst: Worst | None = None

    @property
    def alarms(self) -> list[str]:
        """Names of the readings over their limits, miss and hard first."""
        return [name for name, reading in self.readings.items() if reading.alarms]

    @property
    def reading(self) -> str:
        """Name of the reading with the largest ratio; "bit-exact" where nothing is off at all."""
        name = max(self.readings, key=lambda k: self.readings[k].ratio)
        return name if self.readings[name].ratio > 0 else "bit-exact"

    @property
    def ratio(self) -> float:
        """The largest value over limit of all readings; above 1 the output is wrong."""
        return max(reading.ratio for reading in self.readings.values())

    def explain(self) -> str:
        """The worst element and the alarms, for people; empty where nothing alarms."""
        said = []
        if self.worst:
            w = self.worst
            said.append(f"worst element {w.index}: got {w.got!r}, expected {w.expected!r}, allowed +-{w.allowed:.6g}")
        said += [f"{n} reads {self.readings[n].value:.6g}, limit {self.readings[n].limit:.6g}" for n in self.alarms]
        return "; ".join(said)


def tail(n: float, alpha: float) -> float:
    """Limit that the largest of n sub-Gaussian |z| exceeds with probability alpha at most (union bound)."""
    return math.sqrt(2 * math.log(2 * n / alpha))


def _moments(t: Tensor) -> tuple[Tensor, Tensor]:
    """For a standard normal e and d = max(e - t, 0), t >= 0: E d and E d^2. E d^4 is at most 3 E d^2."""
    t = t.clamp(max=9)  # beyond, both are under 1e-18
    beyond = torch.special.erfc(t / math.sqrt(2)) / 2
    density = torch.exp(t * t / -2) / math.sqrt(2 * math.pi)
    return (density - t * beyond).clamp(min=0), ((1 + t * t) * beyond - t * density).clamp(min=0)


def _fold(x: Tensor, fresh: Fresh) -> Tensor:
    """Sum over the dimensions along which an error is the same."""
    return x if all(fresh) else x.sum([i for i, anew in enumerate(fresh) if not anew])


def judge(y: Tensor, pre: Value, f: Format, alpha: float = ALPHA, *, statistical: bool = True) -> Judgement:
    """Judge the output y, any shape and dtype, against `pre`, the reference before its last rounding to format f.

    One wait for the device, two where a statistical reading alarms: it is then taken again without repeated values.
    """
    if y.numel() == 0:
        return Judgement({"miss": Reading(0, 0), "hard": Reading(0, 1)})
    y, v, b = y.to(F64), pre.v, pre.b.nan_to_num(nan=math.inf, posinf=math.inf)
    nan, strange = v.isnan(), y.isnan()
    free = (b == math.inf) & ~finite(pre.s2)
    nearest = rne(v, f)
    wrong = ((strange != nan) | ((b == 0) & (y != nearest) & ~nan)) & ~free
    live = (b > 0) & ~(strange | free)
    low, high = cell(y, f)
    along = torch.where(y < 0, -v, v)
    d = pick(live, torch.maximum(low - along, along - high).clamp(min=0), 0.0)
    hard = pick(d > 0, d / b, 0.0)
    scores = {"miss": wrong.to(F64), "hard": hard}
    numbers = [wrong.sum(), hard.max()]
    if statistical:
        statistics, more = _statistics(y, pre, f, live, d, nearest)
        scores |= statistics
        numbers += more
    values = torch.stack([x.to(F64) for x in numbers]).tolist()
    readings = {"miss": Reading(values[0], 0.0), "hard": Reading(values[1], 1.0)}
    if statistical:
        readings |= _limits(values[2:], list(pre.probes), alpha)
    alarms = Judgement(readings).alarms
    if alarms and not set(alarms) & set(NEVER_WITHDRAWN):
        statistics, more = _statistics(y, pre, f, live & _distinct(v), d, nearest)
        scores |= statistics
        readings |= _limits(torch.stack([x.to(F64) for x in more]).tolist(), list(pre.probes), alpha)
        alarms = Judgement(readings).alarms
    if not alarms:
        return Judgement(readings)
    lost = statistical and bool((live & (b > 1e-100) & ~(pre.var > 0)).any())
    assert not lost, "the reference lost its variance: a primitive returned none for an inexact value"
    return Judgement(readings, worst=_worst(alarms[0], scores, y, pre, f, readings))


def _distinct(v: Tensor) -> Tensor:
    """The first element of each reference value, up to its sign and a power of two.

    An error is a function of what an element is made of, and scales with it. Where that is one or two numbers of few
    bits (beta C0 with alpha = 0; K = 1 with one row), 200,000 elements have some hundred to thousand mantissas, and
    those of one mantissa err as one.
    """
    size, order = v.frexp().mantissa.abs().flatten().sort(stable=True)
    first = torch.ones_like(size, dtype=torch.bool)
    first[1:] = size[1:] != size[:-1]
    return torch.empty_like(first).scatter_(0, order, first).view(v.shape)


def _worst(
    name: str,
    scores: Mapping[str, Tensor],
    y: Tensor,
    pre: Value,
    f: Format,
    readings: Mapping[str, Reading],
) -> Worst:
    """The element with the largest score under the alarm `name`.

    What one element is allowed: nothing where it must be bit-exact; else half a spacing for the last rounding, and
    beyond it the bound, or the limit of z in deviations.
    """
    score = scores.get(name, scores.get("rms", scores["hard"]))
    index = tuple(int(i) for i in torch.unravel_index(score.nan_to_num(nan=math.inf).argmax().cpu(), y.shape))
    v = pre.v[index]
    if name == "miss":
        return Worst(index, float(y[index]), float(rne(v, f)), 0.0)
    error = float(pre.b[index]) if name == "hard" else readings["z"].limit * math.sqrt(float(pre.var[index]))
    return Worst(index, float(y[index]), float(v), error + float(ulp(v, f)) / 2)


def _statistics(
    y: Tensor, pre: Value, f: Format, live: Tensor, d: Tensor, nearest: Tensor
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Scores by element for z and rms, and the device scalars that `_limits` reads, in its order.

    Errors are signed along v: positive means away from zero.
    """
    v, s2, size, negative = pre.v, pre.var, pre.v.abs(), pre.v < 0
    live = live & finite(s2)  # where only the bound is known, there is nothing to count
    s = s2.clamp(min=1e-300).sqrt()
    z = pick(d > 0, d / s, 0.0)
    away = torch.where(negative, -y, y) - size
    low, high = cell(nearest, f)
    first, second = _moments(torch.stack((high - size, size - low)) / s)
    # From a deviation of q / 4 up, several outputs are likely, and the distance from one cell says less than y - v.
    q = ulp(size + s, f)
    coarse = (s >= q / 4) & finite(y)
    scale = pick(coarse, (s2 + q * q / 12).sqrt(), s)
    t = pick(live, pick(coarse, away, torch.copysign(d, away)) / scale, 0.0)
    flips = torch.where(live & ~coarse, first[0] - first[1], 0.0)
    m2 = pick(live, pick(coarse, 1.0, second[0] + second[1]), 0.0)
    # A coefficient along v becomes one of t, as far as t sees it.
    seen = pick(live, m2.sqrt() / scale, 0.0)
    shared = [(torch.where(negative, -c, c) * seen, fresh) for c, fresh in pre.errors.values()]
    shared = [(pick(live, c, 0.0), fresh) for c, fresh in shared]
    truncation = pick(live, pre.drift.abs() * seen, 0.0) if pre.drift is not None else v.new_zeros(())
    # With E d^4 <= 3 E d^2: the variance of a sum of squares, and the largest group that shares an error.
    total = m2.sum()
    spread, largest, together = 3 * total, v.new_zeros(()), total
    for c, fresh in shared:
        group = _fold(c * c, fresh)
        spread, largest = spread + 3 * (group * group).sum(), torch.maximum(largest, group.max())
        together = together + (_fold(c, fresh) ** 2).sum()
    n = live.sum()
    numbers = [n, z.max(), (t * t).sum(), total, spread, largest]
    numbers += [t.sum(), flips.sum(), together, (n > 0), truncation.sum()]
    for c in pre.probes.values():
        w = pick(live, torch.where(negative, -c, c) / scale, 0.0)
        w = w / w.abs().max().clamp(min=1e-300)
        together = (w * w * m2).sum()
        for r, fresh in shared:
            together = together + (_fold(w * r, fresh) ** 2).sum()
        numbers += [(w * t).sum(), (w * flips).sum(), together, w.abs().max(), (w.abs() * truncation).sum()]
    return {"z": z, "rms": t.abs()}, numbers


def _limits(values: list[float], probes: list[str], alpha: float) -> dict[str, Reading]:
    """Statistical readings from the scalars of `_statistics`."""
    n, z, squares, expected, spread, largest = values[:6]
    x = math.log(1 / alpha)
    # A quadratic form of sub-Gaussian errors exceeds its mean by this much with probability alpha at most.
    room = math.sqrt(2 * x * spread) + 2 * x * (1 + largest)
    out = {"z": Reading(z, tail(max(n, 1), alpha)), "rms": Reading(squares, expected + room)}
    for i, name in enumerate(["bias", *("probe:" + p for p in probes)]):
        total, flips, var, peak, truncation = values[6 + 5 * i : 11 + 5 * i]
        beyond = max(total - max(flips, 0.0), min(flips, 0.0) - total, 0.0)
        beyond = beyond if math.isfinite(total) else math.nan  # max drops NaN
        out[name] = Reading(beyond, tail(1, alpha) * (math.sqrt(var) + peak) + truncation)
    return out


def conform(
    outputs: Mapping[str, Tensor],
    reference: Callable[[], Mapping[str, Value]],
    formats: Format | Mapping[str, Format],
    alpha: float = ALPHA,
    *,
    statistical: bool = True,
) -> dict[str, Judgement]:
    """Judge the outputs by name against reference(), whose values are taken before their last rounding to `formats`.

    Where a statistical reading alarms, the reference stands trial: its own correct kernels, the exact one and random
    ones, are judged by it, and a reading that one of them fails does not hold on this data (correlated roundings) and
    is withdrawn by name.
    """
    with bounds_only(not statistical):
        pres = {name: pre for name, pre in reference().items() if name in outputs}  # of optional ones, those asked for
    by_name = {k: formats if isinstance(formats, Format) else formats[k] for k in pres}
    out = {k: judge(outputs[k], pre, by_name[k], alpha, statistical=statistical) for k, pre in pres.items()}
    doubtful = {k: {a for a in j.alarms if a not in NEVER_WITHDRAWN} for k, j in out.items()}
    for seed in (None, *range(TWINS)):
        if not any(doubtful.values()):
            break
        if seed is None:  # the kernel that rounds nothing but its outputs
            twins: Mapping[str, Value] = pres
        else:
            with noise(seed):
                twins = reference()
        for k in [k for k, names in doubtful.items() if names]:
            fails = doubtful[k].intersection(judge(rne(twins[k].v, by_name[k]), pres[k], by_name[k], TWIN_ALPHA).alarms)
            out[k] = _withdraw(out[k], fails)
            doubtful[k] -= fails
    return out


def _withdraw(judgement: Judgement, names: set[str]) -> Judgement:
    kept = {n: r for n, r in judgement.readings.items() if n not in names}
    worst = judgement.worst if any(r.alarms for r in kept.values()) else None
    return Judgement(kept, (*judgement.withdrawn, *sorted(names)), worst)
