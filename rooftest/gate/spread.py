"""How far two measurements of the same code lie apart: A/A pairs by series, GPU and covariates, and sigma from them.

Each run writes one file of its own, `results/spread/<GPU>/<time>-<random>.json` (rooftest/schema/spread.v1.json), anew
and atomically after every series. So runs at the same time cannot lose each other's pairs, on any file system and
without a lock, a run that is killed keeps what it had, and two branches that both calibrated merge without conflict. To
forget pairs, delete files.
"""

from __future__ import annotations

import ast
import hashlib
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from scipy.stats import chi2
from scipy.stats import t as student

from rooftest import store
from rooftest.errors import UsageError
from rooftest.gate.rule import NU, factor, log_ratios

VERSION = 1
ARM = ("time_s", "cycles", "clock_hz", "peer_s", "timer", "u_timer_s")
"""What is kept of an arm; all of it stands in the run's results file."""
BIASED = 1e-4
"""Probability of calling A/A pairs biased that are not, each time a series is asked for."""
MEASURES = (
    "cuda.py", "fresh.py", "measure.py", "plan.py", "stats.py", "timer.py", "validity.py", "windows.py", "gate/arms.py",
)  # fmt: skip
"""The files that decide what a pair reads: pairs taken by others of them are no evidence about it."""


@lru_cache(maxsize=1)
def harness() -> str:
    """Return a short digest of the code that measures, without its comments, docstrings and layout."""
    found = hashlib.sha256()
    for name in MEASURES:
        tree = ast.parse((Path(__file__).parents[1] / name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):  # a string that stands alone does nothing
                node.body = [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]  # type: ignore[attr-defined]
        found.update(ast.unparse(tree).encode())
    return found.hexdigest()[:12]


def covariates(driver: str | None, timer: str | None, regime: str) -> dict[str, str | None]:
    """Return what cuts a series: only pairs that agree in all of these are pooled."""
    return {"driver": driver, "timer": timer, "regime": regime, "harness": harness()}


@dataclass(frozen=True)
class Spread:
    """What the A/A pairs of one segment say; sigma and its bound are of a pair's log ratio."""

    sigma: float | None
    nu: int
    """Degrees of freedom: known pairs less one."""
    upper: float | None
    """95 % upper confidence bound of sigma, if pairs are normal: sigma sqrt(nu / chi2(0.05, nu))."""
    wild: int
    """Pairs further than 5 robust standard deviations from the median: they widen sigma, and are counted to be seen."""
    reason: str
    """Why it cannot arm a gate; empty if it can."""

    @property
    def detectable(self) -> float | None:
        """The smallest relative slow-down that a gate with delta = 0 sees with 90 % power: exp(c sigma) - 1."""
        return None if self.sigma is None else math.expm1(factor(self.nu) * self.sigma)


def spread(ratios: Sequence[float], needed: int = NU) -> Spread:
    """Return sigma from the log ratios of A/A pairs: their rms about zero. `needed`: degrees of freedom that arm.

    About zero and not about their mean, because the mean is known: both arms are the same code. What pushes it away
    from zero (an arm that always runs second, on a warmer card) is an error that every comparison will make too, so it
    has to widen sigma; about the mean it would vanish. One degree of freedom is given up all the same, on the safe
    side. A mean too far from zero for chance says that the two arms are not alike, and such pairs arm nothing.

    The rms and not a robust estimate, because a stage is a mean of 3 or 5 pairs, which one wild pair moves: a
    sigma that does not see the wild ones makes the gate alarm by as many as there are. So a wild pair widens, until a
    gate may be UNARMED, and the wild are counted for a reader to ask why.
    """
    n = len(ratios)
    if n < 2:
        return Spread(None, 0, None, 0, f"{n or 'no'} A/A pair{'s' * (n != 1)} of this series on this GPU")
    nu, mean, sd = n - 1, fmean(ratios), stdev(ratios)
    sigma = math.sqrt(fmean(x * x for x in ratios))
    upper = sigma * math.sqrt(nu / float(chi2.ppf(0.05, nu)))
    centre = median(ratios)
    robust = 1.4826 * median(abs(x - centre) for x in ratios)  # 1 / z(0.75): a normal's sd from its median deviation
    wild = len([x for x in ratios if abs(x - centre) > 5 * robust]) if robust else 0
    reason = ""
    if nu < needed:
        reason = f"{n} A/A pairs of this series on this GPU, {needed + 1} are needed"
    elif abs(mean) * math.sqrt(n) > float(student.ppf(1 - BIASED / 2, nu)) * sd:
        reason = f"the A/A pairs are biased: their mean is {mean:+.2%}, too far from zero for chance"
    return Spread(sigma, nu, upper, wild, reason)


class Store:
    """The pairs known of one GPU, and a file of its own for what this run adds.

    `root` is results/spread; `gpu` is device key and UUID, "h200-GPU-...". Raises UsageError for a file that cannot be
    read, is of another version or of another GPU: pairs are never silently left out.
    """

    def __init__(self, root: Path, gpu: str) -> None:
        self.folder, self.gpu = root / gpu, gpu
        self.entries: list[dict[str, Any]] = [
            e for path in sorted(self.folder.glob("*.json")) for e in _read(path, gpu)
        ]
        now = datetime.now(UTC)
        self.path = self.folder / f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}.json"
        self._mine: dict[str, Any] = {
            "spread_version": VERSION, "created": now.isoformat(timespec="seconds"), "gpu": gpu, "entries": [],
        }  # fmt: skip

    def add(self, series: str, covariates: Mapping[str, str | None], pairs: Iterable[Mapping[str, Any]]) -> None:
        """Keep A/A pairs of a series; a comparison is judged before its own pairs are added.

        Raises UsageError where they can't be written.
        """
        entry = store.finite(
            {
                "series": series,
                "covariates": dict(covariates),
                "pairs": [
                    {
                        **{key: pair[key] for key in ("stage", "order", "valid", "reasons")},
                        "log_ratio": pair.get("log_ratio"),
                        **{side: {key: pair[side].get(key) for key in ARM} for side in ("base", "head")},
                    }
                    for pair in pairs
                ],
            }
        )
        self.entries.append(entry)
        self._mine["entries"].append(entry)
        store.write(self.path, self._mine)

    def pairs(self, series: str, covariates: Mapping[str, str | None]) -> list[dict[str, Any]]:
        """Return the pairs of a series that were taken under exactly these covariates."""
        same = [e for e in self.entries if e["series"] == series and e["covariates"] == dict(covariates)]
        return [pair for entry in same for pair in entry["pairs"]]

    def sigma(self, series: str, covariates: Mapping[str, str | None], estimator: str = "time") -> Spread:
        """Return what is known of a series' spread, and why that is not enough where it is not."""
        unknown = sorted(key for key, value in covariates.items() if value is None)
        if unknown:
            return Spread(
                None, 0, None, 0, f"{', '.join(unknown)} not known, so no A/A pair is known to be of the same"
            )
        found = spread(log_ratios(self.pairs(series, covariates), estimator))
        others = [e for e in self.entries if e["series"] == series and e["covariates"] != dict(covariates)]
        if found.reason and others:
            last = others[-1]["covariates"]
            differ = [k for k in sorted({*last, *covariates}) if last.get(k) != covariates.get(k)]
            told = ", ".join(f"{k} {last.get(k)}, now {covariates.get(k)}" for k in differ)
            many = sum(len(e["pairs"]) for e in others)
            found = Spread(found.sigma, found.nu, found.upper, found.wild, f"{found.reason}; {many} more with {told}")
        return found

    def lines(self, estimator: str = "time") -> list[str]:
        """Return a table of every series under its latest covariates: pairs, sigma, the smallest change detected."""
        latest = {entry["series"]: entry["covariates"] for entry in self.entries}
        if not latest:
            return [f"{self.gpu}: no A/A pairs"]
        width = max(map(len, latest))
        out = [f"{'series':{width}}  pairs  sigma  95% below  detects  wild"]
        for series, known in sorted(latest.items()):
            got = self.sigma(series, known, estimator)
            if got.sigma is None or got.upper is None or got.detectable is None:
                out.append(f"{series:{width}}  {got.reason}")
                continue
            numbers = f"{got.nu + 1:5}  {got.sigma:5.2%}  {got.upper:9.2%}  {got.detectable:7.2%}  {got.wild:4}"
            out.append(f"{series:{width}}  {numbers}{'  ' * bool(got.reason)}{got.reason}")
        return out


def _read(path: Path, gpu: str) -> list[dict[str, Any]]:
    data = store.load(path)
    version = data.get("spread_version") if isinstance(data, dict) else None
    if version != VERSION:
        raise UsageError(f"{path} holds no A/A pairs of version {VERSION} (its version is {version!r}); move it away.")
    declared = store.schema(VERSION, "spread")
    bad = store.misfit(data, declared, declared["$defs"])  # not jsonschema: years of files are read before each gate
    if bad is not None:
        raise UsageError(f"{path} does not fit the schema at {bad}")
    if data["gpu"] != gpu:
        raise UsageError(f"{path} holds A/A pairs of {data['gpu']}, not of {gpu}: each GPU has a spread of its own.")
    return list(data["entries"])
