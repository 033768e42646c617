"""Is a kernel slower than another revision of itself: what @rooftest.measures becomes under --roof-against."""

from __future__ import annotations

import re
from dataclasses import asdict
from itertools import count
from shlex import quote
from typing import TYPE_CHECKING, Any

import pytest

from rooftest import devices
from rooftest import record as records
from rooftest.errors import UsageError
from rooftest.finding import Finding
from rooftest.speed import Measurement, reference

if TYPE_CHECKING:
    from rooftest.gate.arms import Arms
    from rooftest.gate.trees import Trees
    from rooftest.rows import Row

ESTIMATOR = "time"
"""What the arms are compared by, one of rule.ESTIMATORS."""
SPARE = 2
"""Pairs of a stage that may be taken again because something disturbed them."""


class Gate(Measurement):
    """One workload of one kernel, in two trees."""

    kind = "gate"
    compares = True
    # The recorder is for samples of one kernel; a comparison has none to give, and pytest-benchmark would say so.
    marks = (pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"),)

    def __call__(self) -> None:
        """Compare the workload's two sides.

        Raises Finding if head is wrong, can't be run, is slower than base by more than the budget allows, or takes more
        memory.
        """
        self._admit()
        if self.row.peer:
            self.leave_out("an op's peer is the same on both sides")
        found = self._compare()
        if found:
            self.record |= {"verdict": "FAIL", "reason": found.partition("\n")[0]}
            words = f"{self.row.op}: {self.row.name}, {self._place()}, against {self.record['base']['revision']}"
            raise Finding(f"{words}: {found}\n  reproduce: {self._command()}")
        if self.record["verdict"] == "INVALID":
            self.undecided(self.record["reason"])

    def _compare(self) -> str | None:
        """Fill the record; what is wrong with head, or None."""
        from rooftest.gate.arms import ArmError, Arms

        trees = self.session.trees(self.row)
        self.record |= {
            "base": {"revision": trees.revision, "row": None, "name": None},
            "head": {"revision": trees.head_words, "dirty": None if trees.changed is None else trees.changed > 0},
            "budget": self.session.options.budget, "estimator": ESTIMATOR, "pairs": [], "stages": [], "changed": [],
            "memory": None,
        }  # fmt: skip
        trees.ready()
        if "head" in trees.wrong:
            return trees.wrong["head"]
        if "base" in trees.wrong:
            return self._invalid(trees.wrong["base"])
        try:
            base = self._base(trees)
        except UsageError as error:
            return self._invalid(f"no baseline: {error}")
        assert self.session.against is not None
        extensions = self.session.against.scratch() / "torch_extensions"
        arms = Arms(base, self.row, trees, self.record["device"], extensions)
        try:
            return self._judge(arms)
        except ArmError as error:
            self.note(error.cause, f"{self._place()}, in {error.side}")
            # A side that can't be run says nothing of the other: head's is head's fault, base's leaves us without one.
            if error.side == "head":
                return f"could not be run: {error.cause}"
            return self._invalid(f"base could not be run: {error.cause}")

    def _invalid(self, reason: str) -> str | None:
        self.record |= {"verdict": "INVALID", "reason": reason}
        return None

    def _base(self, trees: Trees) -> Row:
        """The row in base's tree, read by this harness.

        Raises UsageError if there is none, it can't be read, or it does not take the workload.
        """
        from rooftest.gate import base

        found, self.record["base"]["row"] = base.row(self.session, self.row, trees)
        self.record["base"]["name"] = found.name
        if not found.admits(self.dtype, self.layout, self.workload.sizes):
            raise UsageError(f"the row in {trees.revision} does not take {self.what} in {self.dtype}-{self.layout}")
        return found

    def _judge(self, arms: Arms) -> str | None:
        from rooftest.gate.arms import fingerprints
        from rooftest.gate.same import differences
        from rooftest.rungs import Failure

        request = self._asked()
        seen = fingerprints(arms, request)
        self.record["changed"] = differences(seen["base"], seen["head"], (arms.base, arms.head))
        if not self.record["changed"] and not arms.trees.same:
            self.record |= {"verdict": "UNCHANGED", "reason": "both sides run the same"}
            return None
        try:
            self._recheck(self.bench())
        except Failure as failure:
            return f"wrong on workload {self.what}\n{failure}"
        if arms.trees.same:
            self._calibrate(arms, request)
            return None
        return self._slower(arms, request) or self._larger()

    def _asked(self) -> dict[str, Any]:
        """How both sides are asked to measure: neither bytes moved nor energy, which take seconds a call."""
        from rooftest import recheck
        from rooftest.gate.arms import SAMPLES

        plan = {"regime": self.session.options.regime, "looks": [SAMPLES]}
        request = {
            "plan": plan, "workload": dict(self.workload.sizes), "params": dict(self.workload.params),
            "dtype": self.dtype, "layout": self.layout, "seed": recheck.seed(),
        }  # fmt: skip
        if self.session.simulated is not None:
            request["simulated"] = self.session.simulated
        if ESTIMATOR == "peer":
            request |= reference(self.session.peer(self.row, self.workload, self.dtype))
        return request

    def _slower(self, arms: Arms, request: dict[str, Any]) -> str | None:
        """Screen and, where that alarms, confirm with fresh pairs; what is to be said of head, or None."""
        from rooftest.gate import rule

        self._take(arms, request, "screen", rule.STAGES["screen"])
        known = self._known()
        if known is None:
            return None
        if rule.stage("screen", self.record["pairs"], known, ESTIMATOR).alarm:
            self._take(arms, request, "confirm", rule.STAGES["confirm"])
        judged = rule.judge(self.record["pairs"], known, ESTIMATOR)
        self._told(known, judged)
        self.record |= {"verdict": judged.verdict, "reason": judged.reason or None}
        return self._slow(judged) if judged.verdict == "FAIL" else None

    def _slow(self, judged: Any) -> str:
        low, high = judged.ci95
        return (
            f"{judged.reason} (95 % interval {low:+.2%} to {high:+.2%}, budget {self.record['budget']:.3g})"
            f"\n  changed: {', '.join(self.record['changed'])}"
        )

    def _larger(self) -> str | None:
        """Memory is free of noise, so any growth beyond the budget is one."""
        took = self.record["memory"]
        if took is None or took["head_bytes"] <= took["base_bytes"] * (1 + self.record["budget"]):
            return None
        return f"takes {took['head_bytes']} bytes of memory beside its inputs and outputs, base {took['base_bytes']}"

    def _calibrate(self, arms: Arms, request: dict[str, Any]) -> None:
        """The same code on both sides: pairs for the spread, and whether they would have alarmed."""
        from rooftest.gate import rule

        self._take(arms, request, "calibrate", max(self.session.options.pairs, rule.STAGES["screen"]))
        known = self._known()
        if known is None:
            return
        screened = [{**pair, "stage": "screen"} for pair in self.record["pairs"]]
        stage = rule.stage("screen", screened, known, ESTIMATOR)
        judged = rule.judge(screened, known, ESTIMATOR)
        self._told(known, judged)
        self.record["alarm"] = stage.alarm if known.armed else None
        if not stage.complete:
            self.record |= {"verdict": "INVALID", "reason": judged.reason}
            return
        try:
            kept = self._keep()
        except UsageError as error:
            self.record |= {"verdict": "INVALID", "reason": str(error)}
            return
        word = "AMBIGUOUS" if stage.alarm else "PASS" if known.armed else "UNARMED"
        self.record |= {"verdict": word, "reason": f"the same code on both sides: {kept}"}

    def _take(self, arms: Arms, request: dict[str, Any], stage: str, wanted: int) -> None:
        """Measure so many valid pairs, some again where something disturbed them."""
        from rooftest import recheck
        from rooftest.gate.arms import pair

        valid = 0
        for n in count():
            if valid >= wanted or n >= wanted + SPARE:
                break
            asked = {**request, "seed": recheck.seed()}
            taken = pair(arms, asked, stage, "BA" if n % 2 else "AB", ESTIMATOR)
            self.identity, self.plan, took = (taken.pop(key) for key in ("identity", "plan", "memory"))
            self.record["memory"] = None if None in took.values() else took
            self.record["pairs"].append(taken)
            valid += taken["valid"]

    def _told(self, known: Any, judged: Any) -> None:
        self.record |= {
            "sigma": known.sigma, "pairs_known": known.nu + 1 if known.sigma is not None else 0, "delta": known.delta,
            "mde": known.mde, "change": judged.change, "ci95": list(judged.ci95) if judged.ci95 else None,
            "stages": [asdict(stage) for stage in judged.stages],
        }  # fmt: skip

    @property
    def series(self) -> str:
        """The history that the times belong to."""
        row = self.row
        return records.series(row.op, row.name, self.what, self.dtype, self.layout, self.plan, row.spec.version)

    def _known(self) -> Any:
        """What a comparison of this series on this GPU can decide.

        None, and INVALID, if what is stored of it can't be read: the gate would be unarmed without anybody's notice.
        """
        from rooftest.gate import rule

        self.record["series"] = self.series
        try:
            spread = self.session.spread(self.gpu).sigma(self.series, self._covariates(), ESTIMATOR)
        except UsageError as error:
            self._invalid(str(error))
            return None
        resolved = rule.resolution(self.record["pairs"])
        return rule.limits(self.record["budget"], spread.sigma, spread.nu, resolved, spread.reason)

    def _keep(self) -> str:
        """Add the pairs to the spread; how many there are now, in words.

        Raises UsageError where they can't be written.
        """
        store, covariates = self.session.spread(self.gpu), self._covariates()
        store.add(self.series, covariates, self.record["pairs"])
        return f"{sum(pair['valid'] for pair in store.pairs(self.series, covariates))} pairs are known now"

    @property
    def gpu(self) -> str:
        """The GPU that was measured on, as its spread is filed."""
        found = devices.match(str(self.identity.get("name")), self.identity.get("cc"))
        key = found.key if found else re.sub(r"[^a-z0-9]+", "-", str(self.identity.get("name")).lower())
        return f"{key}-{self.identity.get('uuid')}"

    def _covariates(self) -> dict[str, str | None]:
        from rooftest.gate import spread

        timers = {pair[side]["timer"] for pair in self.record["pairs"] if pair["valid"] for side in ("base", "head")}
        timer = timers.pop() if len(timers) == 1 else None
        return spread.covariates(self.identity.get("driver"), timer, self.plan["regime"])

    def _command(self) -> str:
        asked = self.session.options
        words = [f"--roof-against={quote(str(asked.against))}"]
        words += [f"--roof-build={quote(asked.build)}"] if asked.build else []
        words += [f"--roof-budget={asked.budget:g}"] if asked.budget != type(asked).budget else []
        before, _, after = super()._command().partition(" --roof-workloads")
        return f"{before} {' '.join(words)} --roof-workloads{after}"
