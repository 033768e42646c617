"""Is a kernel fast: one test per workload, timed beside the op's peer in the kernel's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rooftest import host
from rooftest.finding import Finding
from rooftest.trial import Trial, marked

if TYPE_CHECKING:
    from rooftest.rows import Row
    from rooftest.session import Session
    from rooftest.spec import Workload


def measures(kernel: str | None = None, *, op: str | None = None) -> Callable[[Any], Any]:
    """Give a test the timing of one kernel, or of every kernel of an op.

    @rooftest.measures("acme.matmul")
    def test_matmul_speed(measurement): measurement()
    """
    import pytest

    mark, recorder = marked("measures", kernel, op), pytest.mark.usefixtures("benchmark")
    return lambda test: mark(recorder(test))


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
        from rooftest import domain

        device = self.record["device"] = self.session.device(self.row)
        if not device.startswith("cuda"):
            self.leave_out(host.NO_TIMING if self.session.gpu is None else f"--roof-device {device}: no timing there")
        if hasattr(self.session.config, "workerinput"):
            self.leave_out("timing needs the GPU for itself: run without pytest-xdist's -n")
        reason = domain.undecidable(self.row, device)
        if reason:
            self.leave_out(reason)
        bench = self.session.bench(self.row)
        found = self._measure(bench)
        if found:
            raise Finding(found)

    def _measure(self, bench: Any) -> str | None:
        raise NotImplementedError
