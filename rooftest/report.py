"""The end of a run: what was found, and the exit code. Gathers the records of our tests, from xdist's workers too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rooftest import results, store
from rooftest.errors import UsageError

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from rooftest.session import Session

UNDECIDED = 10  # no FAIL, but something INVALID or incomplete; pytest owns 0 to 6
WIDTH = 100  # where the output is no terminal


class Report:
    """Waits for records; a run without our tests passes through untouched."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.records: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        """What is wrong with the run rather than with a kernel; each fails it."""
        self.incomplete: list[str] = []
        """What keeps the run from being a pass though nothing failed."""
        self.results: store.Run | None = None
        self.written: list[Path] = []
        self._lost = False
        self._broken: list[str] = []
        self._github: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the record of one of our tests."""
        record = getattr(report, "roof", None)
        if record is not None and report.when == "call":
            self.records.append(record)
            self._record(record)
            if record["kind"] == "gate":
                self._progress(record)
        elif report.failed and report.when != "teardown":
            self._broken.append(report.nodeid)  # before its call, or with xdist's worker: it left no record

    def _record(self, record: dict[str, Any]) -> None:
        """Write a record at once, so that nothing found is lost; a full disk is said, and the run goes on."""
        if hasattr(self.config, "workerinput") or self._lost:
            return
        from rooftest import session as sessions

        try:
            if self.results is None:
                self.results = results.begin(sessions.of(self.config), record)
                waiting = self.records
            else:
                waiting = [record]
            if self.results is not None:
                for each in waiting:
                    results.add(self.results, each, sessions.of(self.config))
        except UsageError as error:
            self._give_up(error)

    def _progress(self, record: dict[str, Any]) -> None:
        """One line a comparison: each takes seconds, and a run has many."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or record["verdict"] is None or self.config.option.verbose < 0:
            return
        from rooftest import tables

        reporter.ensure_newline()
        change, verdict = tables.compared(record)[0], record["verdict"]
        word = f": {record['reason']}" if record["reason"] else ""
        shown = verdict if change == tables.NONE else f"{change} {verdict}"
        reporter.write_line(f"{record['id']} {shown}{word} ({record['wall_s']:.1f} s)")

    def _give_up(self, error: UsageError) -> None:
        self._lost = True
        self.incomplete.append(str(error))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn a pass into what the records say: 1 where the xfail table is wrong, 10 where something is undecided."""
        if not self.records or hasattr(self.config, "workerinput"):
            return
        from rooftest import session as sessions

        run = sessions.of(self.config)
        for op in {r["op"] for r in self.records}:
            run.of_op(op)  # under xdist only the workers have collected, and so seen an op's peers
        try:
            self.complaints += run.silence.complaints(run.ids()) if run.silence.entries else []
        except UsageError as error:
            self.complaints.append(str(error))
        if self.results is not None and not self._lost:
            try:
                self.results.set_against(results.against(run, self.records))
                self.results.arrange(list(run.rows))
                self.results.finish()
            except UsageError as error:
                self._give_up(error)
        whole = not any(f"[{name}]" in node for name in run.ids() for node in self._broken)
        self._report(run, complete=whole and results.ended(session, session.exitstatus))
        invalid = sum(r["verdict"] == "INVALID" for r in self.records)
        self.incomplete += [f"{invalid} INVALID"] if invalid else []
        gates = [r["verdict"] for r in self.records if r["kind"] == "gate"]
        if gates and not any(gates):  # no GPU, or -n: a gate that looked at nothing has let nothing pass
            self.incomplete.append(f"nothing was timed against {run.options.against}")
        if session.exitstatus == pytest.ExitCode.OK:
            if self.complaints:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            elif self.incomplete:
                session.exitstatus = UNDECIDED

    def _report(self, run: Session, *, complete: bool) -> None:
        """Write what --roof-report and --roof-github asked for."""
        if not run.options.reports and not run.options.github:
            return
        from rooftest import digest
        from rooftest.outputs import github
        from rooftest.outputs.forms import FORMS

        order = list(run.rows)
        records = sorted(self.records, key=lambda r: order.index(r["kernel"]))  # xdist's workers end in any order
        data = results.gathered(run, records, complete=complete)
        made = digest.digest(records, data["machine_info"], complete=complete, complaints=self.complaints)
        for path in run.options.reports:
            try:
                store.put(path, FORMS[path.suffix](data, made))
                self.written.append(path)
            except UsageError as error:
                self.incomplete.append(str(error))
        if run.options.github:
            self._github = github.annotated([data], run.root)
            try:
                self._github.append(github.summarise([data]))
            except UsageError as error:
                self.incomplete.append(str(error))

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter, exitstatus: int) -> None:
        """Print the tables."""
        if not self.records:
            left = [item for item in terminalreporter.stats.get("deselected", ()) if item.get_closest_marker("roof")]
            if left and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
                by = " and ".join(f'{o} "{self.config.getoption(o)}"' for o in ("-m", "-k") if self.config.getoption(o))
                terminalreporter.write_line(f"nothing ran: {by} chose none of {len(left)} tests", yellow=True)
            if self.config.getoption("--roof-report"):
                terminalreporter.write_line("no report was written: no test of rooftest ran", yellow=True)
            return
        from rooftest import tables

        show = terminalreporter.write_line
        terminalreporter.write_sep("=", "rooftest")
        width = shutil.get_terminal_size((WIDTH, 24)).columns
        show(tables.render(tables.made(self.records), width, colour=terminalreporter.hasmarkup))
        for line in tables.undecided(self.records):
            show(line, yellow=True)
        for line in tables.left_out(self.records):
            show(line)
        for line in results.calibrated(self.records):
            show(line)
        if self.results is not None and not self._lost:
            show(f"results: {self.results.path}")
        for path in self.written:
            show(f"report: {path}")
        for line in self._github:
            show(line)
        for line in self.complaints:
            show(line, red=True, bold=True)
        if self.incomplete and not self.complaints:
            code = f"; exit code {UNDECIDED}" if exitstatus == pytest.ExitCode.OK else ""  # a failure's own stands
            show(f"not decided: {'; '.join(self.incomplete)}{code}", yellow=True)
