"""The judge: a kernel's output against a reference that carries its own error bar. No tolerance is set by hand.

The last rounding is no noise. An output element y names the interval of reals that round to it in its format; d, the
distance of the reference value v from that interval, is the least error that the kernel can have made. With the bound
b, the deviation s and the spacing q of the format, t is d / s, or, where s is not small against q, (y - v) / sqrt(s^2 +
q^2 / 12).

    miss        elements that must be bit-exact (b = 0, NaN and infinities among them) and are not; limit 0
    hard        max d / b; limit 1
    z           max d / s over the n elements with b > 0; limit sqrt(2 ln(2 n / alpha))
    rms         sum t^2; its expectation and what its spread allows
    bias        |sum sign(v) t| beyond what expected flips of the last rounding explain
    probe:name  the same along d(output) / d(constant)

The last four are statistical: they hold where the data has random signs. `conform` lets the reference stand trial
before it believes one of their alarms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rooftest.errorbar import Fresh, Value, noise
from rooftest.formats import F64, Format, cell, rne, ulp

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
        """The alarms and the worst element, for people; empty where nothing alarms."""
        said = [f"{n} reads {self.readings[n].value:.6g}, limit {self.readings[n].limit:.6g}" for n in self.alarms]
        if self.worst:
            w = self.worst
            said.append(f"worst element {w.index}: got {w.got!r}, expected {w.expected!r}, allowed +-{w.allowed:.6g}")
        return "; ".join(said)


def tail(n: float, alpha: float) -> float:
    """Limit that the largest of n sub-Gaussian |z| exceeds with probability alpha at most (union bound)."""
    return math.sqrt(2 * math.log(2 * n / alpha))


def _moments(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For a standard normal e and d = max(e - t, 0): the means of d, d^2 and d^4."""
    t = t.clamp(-9, 9)
    beyond = torch.special.erfc(t / math.sqrt(2)) / 2
    density = torch.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    first = density - t * beyond
    second = (1 + t * t) * beyond - t * density
    fourth = (3 + 6 * t * t + t**4) * beyond - (5 * t + t**3) * density
    return first.clamp(min=0), second.clamp(min=0), fourth.clamp(min=0)


def _fold(x: Tensor, fresh: Fresh) -> Tensor:
    """Sum over the dimensions along which an error is the same."""
    return x if all(fresh) else x.sum([i for i, anew in enumerate(fresh) if not anew])


def judge(y: Tensor, pre: Value, f: Format, alpha: float = ALPHA, *, statistical: bool = True) -> Judgement:
    """Judge the output y, any shape and dtype, against `pre`, the reference before its last rounding to format f.

    One wait for the device.
    """
    if y.numel() == 0:
        return Judgement({"miss": Reading(0, 0), "hard": Reading(0, 1)})
    y, v, b = y.to(F64), pre.v, pre.b
    nan = v.isnan()
    free = b.isinf() & ~pre.s2.isfinite()
    ok = ~(y.isnan() | nan)
    nearest = rne(v, f)
    wrong = ~free & ((y.isnan() != nan) | (ok & (b == 0) & (y != nearest)))
    low, high = cell(y, f)
    live = ok & (b > 0) & v.isfinite() & ~free
    d = torch.where(live, torch.clamp(low - v, min=0) + torch.clamp(v - high, min=0), 0.0)
    hard = torch.where(d > 0, d / b, 0.0)
    q = ulp(v, f)
    scores = {"miss": (wrong.to(F64), torch.zeros_like(v), nearest), "hard": (hard, b + q / 2, v)}
    numbers = [wrong.sum(), hard.max()]
    if statistical:
        statistics, more = _statistics(y, pre, f, live, d, nearest)
        numbers += more
        scores |= {k: (score, q / 2, v) for k, score in statistics.items()}
    values = torch.stack([x.to(F64) for x in numbers]).tolist()
    readings = {"miss": Reading(values[0], 0.0), "hard": Reading(values[1], 1.0)}
    if statistical:
        readings |= _limits(values[2:], list(pre.probes), alpha)
    judgement = Judgement(readings)
    return (
        replace(judgement, worst=_worst(judgement.alarms[0], scores, y, pre, readings))
        if judgement.alarms
        else judgement
    )


def _worst(
    name: str,
    scores: Mapping[str, tuple[Tensor, Tensor, Tensor]],
    y: Tensor,
    pre: Value,
    readings: Mapping[str, Reading],
) -> Worst:
    """The element with the largest score under the alarm `name`; scores hold (score, allowed, expected) by reading.

    What a statistical reading allows one element: half a spacing for the last rounding, and the limit of z in
    deviations.
    """
    score, allowed, expected = scores[name] if name in scores else scores["rms"]
    flat = int(score.nan_to_num(nan=math.inf).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), y.shape))
    room = float(allowed[index])
    if name not in NEVER_WITHDRAWN:
        room += readings["z"].limit * math.sqrt(float(pre.var[index]))
    return Worst(index, float(y[index]), float(expected[index]), room)


def _statistics(
    y: Tensor, pre: Value, f: Format, live: Tensor, d: Tensor, nearest: Tensor
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Scores by element for z and for the aggregates, and the device scalars that `_limits` reads, in its order."""
    v, s2 = pre.v, pre.var
    lost = (live & (s2.isnan() | ((s2 == 0) & (pre.b > 1e-100)))).sum()
    s = s2.clamp(min=1e-300).sqrt()
    z = torch.where(live, d / s, 0.0)
    low, high = cell(nearest, f)
    up, down = _moments((high - v) / s), _moments((v - low) / s)
    q = ulp(v.abs() + s, f)
    # From a deviation of q / 4 up, several outputs are likely, and the distance from one cell says less than y - v.
    coarse, wide = (s >= q / 4) & y.isfinite(), (s2 + q * q / 12).sqrt()

    def pick(fine: Tensor, rough: Tensor | float) -> Tensor:
        return torch.where(live, torch.where(coarse, rough, fine), 0.0)

    # d has no sign; the kernel erred upwards where v lies below the cell of y.
    signed = torch.where(y > v, d, -d)
    t, scale = pick(signed / s, (y - v) / wide), torch.where(coarse, wide, s)
    m1, m2, m4 = pick(up[0] - down[0], 0.0), pick(up[1] + down[1], 1.0), pick(up[2] + down[2], 3.0)
    shared = [(torch.where(live, c / scale, 0.0), fresh) for c, fresh in pre.errors.values()]
    spread, largest = m4.sum(), v.new_zeros(())
    for ratio, fresh in shared:
        group = _fold(ratio * ratio * (m4 / 3).sqrt(), fresh)
        spread, largest = spread + 3 * (group * group).sum(), torch.maximum(largest, group.max())
    numbers = [lost, live.sum(), z.max(), (t * t).sum(), m2.sum(), spread, largest]
    weights = [torch.where(live, torch.sign(v), 0.0)]
    for c in pre.probes.values():
        w = torch.where(live, c / scale, 0.0)
        weights.append(w / w.abs().max().clamp(min=1e-300))
    for w in weights:
        var = (w * w * m2).sum()
        for ratio, fresh in shared:
            var = var + (_fold(w * ratio * m2.sqrt(), fresh) ** 2).sum()
        numbers += [(w * t).sum(), (w * m1).sum(), var, w.abs().max()]
    return {"z": z, "rms": t.abs(), "bias": t.abs()}, numbers


def _limits(values: list[float], probes: list[str], alpha: float) -> dict[str, Reading]:
    """Statistical readings from the scalars of `_statistics`."""
    lost, n, z, squares, expected, spread, largest = values[:7]
    assert not lost, "the reference lost its variance: a primitive returned none for an inexact value"
    x = math.log(1 / alpha)
    # A quadratic form of sub-Gaussian errors exceeds its mean by this much with probability alpha at most.
    room = math.sqrt(2 * x * spread) + 2 * x * (1 + largest)
    out = {"z": Reading(z, tail(max(n, 1), alpha)), "rms": Reading(squares, expected + room)}
    for i, name in enumerate(["bias", *("probe:" + p for p in probes)]):
        total, flips, var, peak = values[7 + 4 * i : 11 + 4 * i]
        beyond = max(total - max(flips, 0.0), min(flips, 0.0) - total, 0.0)
        beyond = beyond if math.isfinite(total) else math.nan  # max drops NaN
        out[name] = Reading(beyond, tail(1, alpha) * (math.sqrt(var) + peak))
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

    Where a statistical reading alarms, the reference stands trial: its own random correct kernels are judged by it, and
    a reading that one of them fails does not hold on this data (correlated roundings) and is withdrawn by name.
    """
    pres = reference()
    by_name = {k: formats if isinstance(formats, Format) else formats[k] for k in pres}
    out = {k: judge(outputs[k], pre, by_name[k], alpha, statistical=statistical) for k, pre in pres.items()}
    doubtful = {k: {a for a in j.alarms if a not in NEVER_WITHDRAWN} for k, j in out.items()}
    for seed in range(TWINS):
        if not any(doubtful.values()):
            break
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
