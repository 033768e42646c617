"""Is a kernel fast: one test per workload, timed beside the op's peer in the kernel's own process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from rooftest import host, record
from rooftest.finding import Finding
from rooftest.trial import Trial, marked

if TYPE_CHECKING:
    from rooftest.bench import Bench
    from rooftest.case import Case
    from rooftest.roof import Roof
    from rooftest.rows import Row
    from rooftest.session import Session
    from rooftest.spec import Workload


def measures(kernel: str | None = None, *, op: str | None = None) -> Callable[[Any], Any]:
    """Give a test the timing of one kernel, or of every kernel of an op.

    @rooftest.measures("acme.matmul")
    def test_matmul_speed(measurement): measurement()
    """
    mark = marked("measures", kernel, op)
    recorder, clock = pytest.mark.usefixtures("benchmark"), pytest.mark.benchmark(timer=record.CLOCK)
    return lambda test: mark(recorder(clock(test)))


class Measurement(Trial):
    """One workload of one kernel."""

    argument = "measurement"
    kind = "benchmark"

    def __init__(self, session: Session, row: Row, workload: Workload, dtype: str) -> None:
        super().__init__(session, row, workload.name, dtype, workload.layout)
        self.workload = workload

    @classmethod
    def of_row(cls, session: Session, row: Row) -> Iterator[Trial]:
        """The workloads that the command line chose, within the row's domain."""
        return (cls(session, row, workload, dtype) for workload, dtype in session.timed(row))

    def fits(self) -> bool:
        """Whether --roof-case leaves this trial in the run: a case is judged, not timed."""
        return not self.session.cases

    def __call__(self) -> None:
        """Time the workload and judge the time.

        Raises Finding if it is slower than the row says, or the kernel can't run it.
        """
        self._admit()
        bench = self.bench()
        found = self._measure(bench)
        if found:  # raised here, where no frame holds the samples
            raise Finding(f"{found}\n  reproduce: {self._command()}")
        if self.record["verdict"] == "INVALID":
            self.undecided(self.record["reason"])

    def _admit(self) -> None:
        """Skip the test, saying why, where the workload can't be timed."""
        from rooftest import domain

        device = self.record["device"] = self.session.device(self.row)
        if not device.startswith("cuda") and self.session.simulated is None:
            self.leave_out(host.NO_TIMING if self.session.gpu is None else f"--roof-device {device}: no timing there")
        if hasattr(self.session.config, "workerinput"):
            self.leave_out("timing needs the GPU for itself: run without pytest-xdist's -n")
        reason = domain.undecidable(self.row, device)
        if reason:
            self.leave_out(reason)

    def _measure(self, bench: Bench) -> str | None:
        """Fill the record; what is wrong with the kernel, or None."""
        from rooftest import recheck
        from rooftest.process import KernelError
        from rooftest.rungs import Failure

        row, roof = self.row, self.session.measured_roof  # before the measurement: it heats the GPU
        peer = self.session.peer(row, self.workload, self.dtype)
        try:
            begun = time.perf_counter()
            rechecked = self._recheck(bench)
            recheck_s = time.perf_counter() - begun
            got, looked = recheck.timed(bench, self._case(), self._request(peer))
        except Failure as failure:
            self.record |= {"verdict": "FAIL", "reason": f"wrong on workload {self.what}"}
            return str(failure)
        except KernelError as error:
            self.note(error, self._place())
            return f"{row.op}: {row.name} could not be timed, {self._place()}: {error}"
        got["wall"]["recheck_s"] = recheck_s
        measured = self._measured(got, roof, rechecked | looked)
        entry = measured.entry()
        told = entry["extra_info"]
        self.record |= {**entry, "peer": peer.name if peer else None, "time_s": (told["timing"] or {}).get("median_s")}
        self.record |= {"verdict": told["verdict"], "reason": told["reason"]}
        if measured.samples_s and self.benchmark is not None:
            record.replay(self.benchmark, measured.samples_s, told)
        if told["bound"]["remeasure_ceiling"]:
            from rooftest import ceilings

            ceilings.beaten(roof.identity)
        if told["verdict"] == "FAIL":
            return f"{row.op}: {row.name} is slow, {self._place()}: {told['reason']}"
        return None

    def _case(self) -> Case:
        """The workload as a case, on contents that nobody can have seen."""
        from rooftest import recheck
        from rooftest.case import Case

        sizes, seed = dict(self.workload.sizes), recheck.seed()
        params = dict(self.workload.params)
        return Case(self.row.op, self.row.name, self.dtype, self.layout, sizes, params, fill="normal", seed=seed)

    def _recheck(self, bench: Bench) -> dict[str, Any]:
        """Judge the kernel on the workload that is about to be timed; say in words what was judged.

        Raises Failure if it is wrong there: a wrong kernel has no time.
        """
        from rooftest import recheck

        outcome = recheck.workload(bench, self._case())
        if outcome is None:
            return {"before": f"no: {recheck.TOO_LARGE}"}
        return {"before": f"yes: worst ratio {outcome.ratio:.3g}"}

    def _measured(self, got: dict[str, Any], roof: Roof, rechecked: dict[str, Any]) -> record.Measurement:
        from rooftest import closures
        from rooftest.gate import spread

        row, sizes, regime = self.row, dict(self.workload.sizes), self.session.options.regime
        return record.Measurement(
            op=row.op,
            kernel=row.name,
            workload=self.what,
            dtype=self.dtype,
            layout=self.layout,
            spec_version=row.spec.version,
            sizes=sizes,
            work=closures.work(
                row.spec, {"workload": sizes, "dtype": self.dtype, "params": dict(self.workload.params)}
            ),
            result=got,
            physical=roof.physical,
            attainable=roof.attainable,
            share=row.efficiency.get(roof.key or "") if regime == "burst" else None,  # as the ceilings are
            name=row.name,
            tokens=row.spec.tokens_of(sizes),
            covariates={"harness": spread.harness(), "rechecked": rechecked},
        )

    def _request(self, peer: Row | None) -> dict[str, Any]:
        """How the kernel's process is asked to measure; see rooftest.closures."""
        options = self.session.options
        plan = {"regime": options.regime, "bytes_moved": True, "energy": options.energy}
        request: dict[str, Any] = {"plan": plan, "params": dict(self.workload.params)}
        return request | reference(peer)

    def _place(self) -> str:
        return f"workload {self.what} in {self.dtype}-{self.layout} on {self.record['device']}"

    def _command(self) -> str:
        regime = self.session.options.regime
        words = [*self.session.words(), *([] if regime == "burst" else [f"--roof-regime={regime}"])]
        return " ".join([*words, f"--roof-workloads={self.what}/{self.dtype}-{self.layout} -k {self.id}"])


def reference(peer: Row | None) -> dict[str, Any]:
    """What a request says of the kernel that is timed beside the judged one; nothing where there is none."""
    if peer is None:
        return {}
    told = {k: getattr(peer, k) for k in ("name", "call", "prepare", "root")}
    return {"reference": {**told, "args": dict(peer.args)}}
