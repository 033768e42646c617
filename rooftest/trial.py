"""What a test of ours is given to call: one row in one dtype and layout, and the record of what came out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from rooftest.errors import UsageError
from rooftest.finding import Finding
from rooftest.session import identify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rooftest.bench import Bench
    from rooftest.process import KernelError
    from rooftest.rows import Row
    from rooftest.session import Session

MARK = "roof"
# A hang costs the whole limit, a minute and more, in each of a row's tests: one may be a busy machine, two are not.
TIME_LIMITS = 2
STRUCK = pytest.StashKey[dict[str, list[str]]]()  # by row: what struck at each time limit


class Trial:
    """Called by the test; raises Finding if the kernel is wrong, skips with a reason where it can't be asked."""

    argument = ""  # the name of the test's parameter that receives it
    kind = ""
    compares = False  # whether it has a second tree, what --roof-against names
    marks: tuple[pytest.MarkDecorator, ...] = ()

    def __init__(self, session: Session, row: Row, what: str, dtype: str, layout: str) -> None:
        self.session, self.row, self.what, self.dtype, self.layout = session, row, what, dtype, layout
        self.id = identify(row, what, dtype, layout)
        self.benchmark: Any = None  # pytest-benchmark's fixture, set before the call where the test has it
        # Plain data: it travels from an xdist worker, into the results file and into JUnit's properties.
        self.record: dict[str, Any] = {
            "kind": self.kind, "id": self.id, "op": row.op, "kernel": row.name, "what": what,
            "dtype": dtype, "layout": layout, "device": None, "verdict": None, "reason": None,
        }  # fmt: skip

    @classmethod
    def of_row(cls, session: Session, row: Row) -> Iterator[Trial]:
        """The trials of one row."""
        raise NotImplementedError

    def fits(self) -> bool:
        """Whether --roof-case leaves this trial in the run."""
        raise NotImplementedError

    def bench(self) -> Bench:
        """The row's bench.

        Raises Finding, in one line, if the kernel can't be had, or hung too often in this run.
        """
        struck = self._struck()
        if len(struck) >= TIME_LIMITS:
            raise Finding(f"{self.row.op}: {self.row.name} left after two time limits: {struck[0]}")
        return self.session.bench(self.row)

    def note(self, error: KernelError, where: str) -> None:
        """Remember that the kernel hung, if it did."""
        if error.kind == "time limit":
            self._struck().append(f"{error.cause}, {where}")

    def _struck(self) -> list[str]:
        return self.session.config.stash.setdefault(STRUCK, {}).setdefault(self.row.name, [])

    def leave_out(self, reason: str) -> NoReturn:
        """Skip the test, saying why."""
        self.record["reason"] = reason
        pytest.skip(reason)

    def undecided(self, reason: str) -> NoReturn:
        """End the test as neither passed nor failed, saying why."""
        self.record |= {"verdict": "INVALID", "reason": reason}
        pytest.skip(f"INVALID: {reason}")

    def __repr__(self) -> str:
        return self.id  # pytest-benchmark writes it into its JSON, where an address would differ from run to run


def marked(kind: str, kernel: str | None, op: str | None) -> Callable[[Any], Any]:
    """The mark by which the plugin knows a test."""
    if (kernel is None) == (op is None):
        raise UsageError(f'@rooftest.{kind} takes a kernel ("acme.matmul") or an op (op="gemm"), one of them')
    mark: Callable[[Any], Any] = getattr(pytest.mark, MARK)(kind=kind, kernel=kernel, op=op)
    return mark


def trials(session: Session, trial: type[Trial], metafunc: pytest.Metafunc, mark: pytest.Mark) -> list[Trial]:
    """The trials of one marked test.

    Raises UsageError if it names a kernel or op that does not exist, or has no parameter to receive a trial.
    """
    where = f"{metafunc.definition.nodeid}: @rooftest.{mark.kwargs['kind']}"
    if trial.argument not in metafunc.fixturenames:
        raise UsageError(f"{where}: the test must take `{trial.argument}` and call it")
    try:
        if mark.kwargs["op"] is not None:
            rows = session.of_op(mark.kwargs["op"])
        else:
            rows = [session.find(mark.kwargs["kernel"], where)]
    except UsageError as error:
        raise UsageError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
    return [p for row in rows if session.wanted(row) for p in trial.of_row(session, row) if p.fits()]


def of_item(item: pytest.Item) -> Trial | None:
    """The trial of a test of ours; None of any other."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or item.get_closest_marker(MARK) is None:
        return None
    return next((value for value in callspec.params.values() if isinstance(value, Trial)), None)
