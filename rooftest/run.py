"""The run of our tests: how they are made, ordered, called and reported. Registered with the first of them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, cast

import pytest

from rooftest import profiles, trial
from rooftest import session as sessions
from rooftest.compiled.trial import Compiled
from rooftest.conformance import Check
from rooftest.digest import OWN_CHOICE
from rooftest.errors import UsageError
from rooftest.finding import Finding, Message
from rooftest.gate.trial import Gate
from rooftest.large import Large
from rooftest.outputs import source
from rooftest.session import Session
from rooftest.speed import Measurement

COSTS = {
    "time_ci95_s": ("timing", "ci95_s"),
    "efficiency": ("bound", "efficiency"),
    "launch_s": ("timing", "host_s"),
    "first_call_s": ("first", "call_s"),
    "compile_s": ("first", "compile_s"),
    "peak_bytes": ("memory", "peak_bytes"),
    "workspace_bytes": ("memory", "workspace_bytes"),
    "energy_j": ("energy", "gross_j"),
    "u_energy_j": ("energy", "u_gross_j"),
    "token_j": ("energy", "token_j"),
}
"""What JUnit's properties say beside the time, and where a record's `extra_info` has it."""
TRIALS: dict[str, type[trial.Trial]] = {"checks": Check, "measures": Measurement}
_NAME = "rooftest-run"


def of(config: pytest.Config) -> Run:
    """The run of this pytest session, registered at first use."""
    found: Run | None = config.pluginmanager.get_plugin(_NAME)
    if found is None:
        found = Run(sessions.of(config))
        profiles.register()
        config.pluginmanager.register(found, _NAME)
    return found


class Run:
    """Hooks for the tests that carry our mark; every other test passes through untouched."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._mistakes: list[str] = []

    def parametrize(self, metafunc: pytest.Metafunc, mark: pytest.Mark) -> None:
        """Make the tests of one marked function.

        A mistake waits for the end of collection, where pytest takes it as wrong usage and ends the run. A worker of
        xdist can't end the run; there it is an error of collection.
        """
        kind, worker = TRIALS[mark.kwargs["kind"]], hasattr(metafunc.config, "workerinput")
        if kind is Measurement and self.session.options.against is not None:
            kind = Gate
        try:
            made = trial.trials(self.session, kind, metafunc, mark)
            for row in {p.row.name: p.row for p in made if p.compares and not p.row.peer}.values():
                self.session.trees(row)
            if worker:
                self.session.look()
        except UsageError as error:
            if worker:
                raise pytest.Collector.CollectError(str(error)) from None
            self._mistakes.append(str(error))
            made = []
        if kind.argument in metafunc.fixturenames:
            metafunc.parametrize(kind.argument, [pytest.param(p, id=p.id, marks=p.marks) for p in made])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what nobody asked for; group the rest by row, one kernel's process at a time."""
        if self._mistakes:
            raise pytest.UsageError(self._mistakes[0])
        if not _asks_for_large(config):
            config.hook.pytest_deselected(items=[item for item in items if isinstance(trial.of_item(item), Large)])
            items[:] = [item for item in items if not isinstance(trial.of_item(item), Large)]
        if self.session.options.narrowed:
            mine = [item for item in items if trial.of_item(item)]
            config.hook.pytest_deselected(items=[item for item in items if not trial.of_item(item)])
            items[:] = mine
        idle = [item for item in items if self._idle(item)]
        if idle:  # a suite's test of an op of which nobody has a kernel
            config.hook.pytest_deselected(items=idle)
            items[:] = [item for item in items if item not in idle]
        ours = [(n, item, p) for n, item in enumerate(items) if (p := trial.of_item(item))]
        order: dict[str, int] = {}
        for _, _, p in ours:
            order.setdefault(p.row.name, len(order))
        grouped = sorted(ours, key=lambda entry: order[entry[2].row.name])  # stable: checks stay before timing
        for (n, _, _), (_, item, _) in zip(ours, grouped, strict=True):
            items[n] = item
        self.session.to_compile = [r for _, _, p in ours if isinstance(p, Compiled) for r in p.requests()]
        if not config.option.collectonly and ours:
            try:
                self.session.look()
            except UsageError as error:
                raise pytest.UsageError(str(error)) from None

    def _idle(self, item: pytest.Item) -> bool:
        """Whether a test is of an op that has no rows here."""
        mark = item.get_closest_marker(trial.MARK)
        op = mark.kwargs["op"] if mark else None
        return op is not None and trial.of_item(item) is None and not self.session.of_op(op)

    def pytest_report_collectionfinish(self, config: pytest.Config) -> list[str]:
        """Versions, device, ceilings: known, and of interest, only once a test of ours is there."""
        from rooftest import header

        if config.option.collectonly or config.option.verbose < 0:
            return []
        try:
            return header.lines(self.session)
        except UsageError:  # the same that ended collection; older pytest asks for these lines all the same
            return []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Hand pytest-benchmark's fixture to the trial."""
        found = trial.of_item(item)
        if found is not None:
            found.benchmark = getattr(item, "funcargs", {}).get("benchmark")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Show a finding as its text, apply the known failures, attach the record."""
        report = yield
        found = trial.of_item(item)
        if found is not None and call.when == "call":
            self._settle(found, call, report)
            properties = [(k, v) for k, v in _properties(found.record) if v is not None]
            item.user_properties.extend(properties)
            report.user_properties.extend(properties)
            vars(report)["roof"] = found.record  # an attribute of plain data: xdist carries it to the controller
        return report

    def _settle(self, found: trial.Trial, call: pytest.CallInfo[Any], report: pytest.TestReport) -> None:
        record = found.record
        record["wall_s"] = report.duration
        finding = call.excinfo is not None and isinstance(call.excinfo.value, Finding)
        if finding and call.excinfo is not None:
            record["message"] = str(call.excinfo.value)
            report.longrepr = cast("Any", Message(record["message"]))
        known = self.session.silence.of(found.id)
        if known and finding:
            report.outcome, report.wasxfail = "skipped", f"reason: {known.reason} (until {known.until})"
            record["known"] = {"entry": known.id, "reason": known.reason, "until": str(known.until)}
        # One case that is right contradicts nothing, nor does being as fast as another revision.
        elif known and report.passed and not self.session.cases and not isinstance(found, Gate):
            report.outcome = "failed"
            record["message"] = f"{found.id}: passes, and {known} says that it fails: remove it or narrow its id"
            report.longrepr = cast("Any", Message(record["message"]))
        if hasattr(report, "wasxfail"):
            record["status"] = "xfailed"
        else:
            record["status"] = "invalid" if record["verdict"] == "INVALID" else report.outcome
        if record["verdict"] is None and record["status"] != "skipped":
            record["verdict"] = "PASS" if report.passed else "FAIL"
        if record["verdict"] == "FAIL":
            record["source"] = source.locate(found.row.call, found.row.root, str(self.session.root))

    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """End a kernel's process after the last of its tests that stand together."""
        now, after = trial.of_item(item), trial.of_item(nextitem) if nextitem is not None else None
        if now is not None and (after is None or after.row.name != now.row.name):
            self.session.close()

    def pytest_sessionfinish(self) -> None:
        """End every process that is still there, after Ctrl-C too."""
        self.session.close()


def _asks_for_large(config: pytest.Config) -> bool:
    """Whether the tests past 2^31 elements are meant: by mark, by -k, or by their own names."""
    names = [text.partition("::")[2] for text in config.args]
    return any("large" in text for text in (config.option.markexpr, config.option.keyword, *names))


def _properties(record: dict[str, Any]) -> list[tuple[str, Any]]:
    """What JUnit's file says of a test of ours."""
    words = (
        "id", "rung", "ratio", "reading", "worst", "examples", "domain", "device", "verdict", "reason", "time_s",
        "series", "change", "ci95", "sigma", "mde", "delta", "budget",  # the last six of a comparison with a base
    )  # fmt: skip
    named = {word: record.get(word) for word in words}
    if record.get("examples") and named["ratio"] is None:
        named["ratio"] = "inf"  # text here, where JSON has null
    wrong = [part["config"] or OWN_CHOICE for part in record.get("configs", ()) if part["wrong"]]
    known = record.get("known", {}).get("reason")
    told = record.get("extra_info") or {}
    costs = [(name, (told.get(part) or {}).get(key)) for name, (part, key) in COSTS.items()]
    return [*named.items(), *costs, ("wrong_configs", ", ".join(wrong) or None), ("known", known)]
