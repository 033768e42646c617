"""Is a kernel right: one test per rung, dtype and layout, each of which draws examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

from rooftest.errors import UsageError
from rooftest.finding import Finding
from rooftest.session import kinds
from rooftest.trial import Trial, marked

if TYPE_CHECKING:
    from rooftest.bench import Bench
    from rooftest.case import Case
    from rooftest.rows import Row
    from rooftest.rungs import Outcome
    from rooftest.session import Session


def checks(kernel: str | None = None, *, op: str | None = None) -> Callable[[Any], Any]:
    """Give a test all checks of one kernel, or of every kernel of an op.

        @rooftest.checks("acme.matmul")
        def test_matmul(check): check()

    The kernel is a row of `[tool.rooftest.kernels]` in the pyproject.toml of the tests.
    """
    return marked("checks", kernel, op)


@dataclass
class Tally:
    """What the examples of one test read."""

    examples: int = 0
    ratio: float = 0.0
    reading: str = ""
    worst: str = ""
    withdrawn: Counter[str] = field(default_factory=Counter)
    undrawn: str = ""  # why Hypothesis gave up
    filled: int = 0  # examples in which no axis was 0
    found: str | None = None  # the latest failure's text: with shrinking, the smallest

    def add(self, outcome: Outcome) -> None:
        """Count one example."""
        self.examples += 1
        self.filled += all(outcome.case.sizes.values())
        self.withdrawn.update(outcome.withdrawn)
        if outcome.ratio >= self.ratio:
            self.ratio, self.reading, self.worst = outcome.ratio, outcome.reading, str(outcome.case)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data; an infinite ratio (something that must not happen at all) as None."""
        ratio = self.ratio if self.ratio < float("inf") else None
        return {
            "examples": self.examples, "ratio": ratio, "reading": self.reading,
            "worst": self.worst, "withdrawn": dict(self.withdrawn),
        }  # fmt: skip


class _Ended(BaseException):
    """Carries a call that ended the kernel's process out of Hypothesis.

    Not an Exception, so that it is neither shrunk nor run again: a crash costs seconds each time, a hang a minute.
    """


class Check(Trial):
    """One rung of one kernel in one dtype and layout."""

    argument = "check"
    kind = "conformance"

    @classmethod
    def of_row(cls, session: Session, row: Row) -> Iterator[Trial]:
        """Every rung in every dtype and layout that the row takes."""
        from rooftest.rungs import RUNGS

        for dtype, layout in kinds(row):
            yield from (cls(session, row, rung, dtype, layout) for rung in RUNGS)

    def cases(self) -> list[Case]:
        """The cases of --roof-case that this trial runs."""
        from rooftest.fills import FILLS
        from rooftest.rungs import RUNGS

        def fits(case: Case) -> bool:
            rung = RUNGS[self.what]
            large = all(n >= rung.low for n in case.sizes.values())
            return large and rung.fill(FILLS[case.fill])

        mine = (c for c in self.session.cases if c.kernel == self.row.name)
        return [c for c in mine if (c.dtype, c.layout) == (self.dtype, self.layout) and fits(c)]

    def fits(self) -> bool:
        """Whether --roof-case leaves this trial in the run."""
        return not self.session.cases or bool(self.cases())

    def __call__(self) -> None:
        """Draw examples and judge each.

        Raises Finding with the smallest failing case that was found.
        """
        from rooftest import domain
        from rooftest.rungs import RUNGS

        device = self.record["device"] = self.session.device(self.row)
        reason = domain.undecidable(self.row, device) or RUNGS[self.what].applies(self.row)
        if reason:
            self.leave_out(reason)
        bench = self.bench()
        if self.dtype in bench.signature.undecidable:
            self.leave_out(bench.signature.undecidable[self.dtype])
        self.record["domain"] = domain.share(self.row, bench.signature)
        tally = Tally()
        try:
            self._examine(bench, tally)
        finally:
            self.record |= tally.as_dict()
        if tally.found is not None:  # raised here, where no frame holds tensors
            raise Finding(tally.found)
        if tally.examples == 0 or tally.undrawn:
            self.undecided(f"too few examples could be drawn in the row's domain {tally.undrawn}".rstrip())
        elif tally.filled == 0 and not self.session.cases:
            self.undecided("every example had an axis of size 0: nothing was computed")

    def _examine(self, bench: Bench, tally: Tally) -> None:
        """Run the examples; what failed stands in `tally.found`."""
        from hypothesis import errors, given, seed

        from rooftest import profiles, strategies
        from rooftest.process import KernelError
        from rooftest.rungs import Failure

        name = self.session.options.profile
        known = self.session.silence.of(self.id) is not None
        database = self.session.root / ".hypothesis" / "roof" / self.id
        settings = profiles.chosen(name, database, shrink=not known, examples=self.session.options.examples)
        explicit = self.cases()

        def example(case: Case) -> None:
            self._one(bench, case, tally, hunt=name == "hunt" and not explicit)

        try:
            if explicit:
                for case in explicit:
                    example(case)
            else:
                every = not settings.derandomize
                drawn = given(strategies.cases(bench, self.what, self.dtype, self.layout, every_config=every))(example)
                # The same examples in every process and on every day, others for every id.
                (seed(crc32(self.id.encode())) if settings.derandomize else _same)(settings(drawn))()
        except (Failure, KernelError, _Ended):
            pass
        except (errors.Unsatisfiable, errors.FailedHealthCheck) as error:  # a domain with next to nothing in it
            tally.undrawn = str(error).splitlines()[0]
        except errors.Flaky:
            tally.found = (
                f"{tally.found}\n  and right when the same case was run again: it is not deterministic, or races"
            )

    def _one(self, bench: Bench, case: Case, tally: Tally, *, hunt: bool) -> None:
        from rooftest import rungs
        from rooftest.process import KernelError

        try:
            outcome = rungs.check(bench, self.what, case)
        except rungs.Failure as failure:
            tally.add(failure.outcome)
            tally.found = str(failure).replace(failure.outcome.case.command(), self.session.command(case))
            raise
        except (KernelError, UsageError) as error:
            tally.examples += 1
            tally.ratio, tally.reading, tally.worst = float("inf"), getattr(error, "kind", "usage"), str(case)
            lines = [
                f"{case.op}: {case.kernel} failed, rung {self.what}: {error}",
                *([f"  {hint}"] if (hint := self._hint(error, case)) else []),
                f"  case: {case}",
                f"  reproduce: {self.session.command(case)}",
            ]
            tally.found = "\n".join(lines)
            if isinstance(error, KernelError):
                if error.lives:
                    raise
                self.note(error, f"case: {case}")
            raise _Ended from None
        tally.add(outcome)
        if hunt and 0 < outcome.ratio < float("inf"):
            from hypothesis import target

            target(outcome.ratio, label=self.what)

    def _hint(self, error: Exception, case: Case) -> str | None:
        """What to do about an exception that may come from an axis that the kernel never meant to take."""
        axes = [a for a in self.row.spec.optional_axes if a in case.sizes and a not in self.row.at_least]
        if getattr(error, "kind", None) != "exception" or not axes:
            return None
        sizes, names = ", ".join(f"{a}={case.sizes[a]}" for a in axes), ", ".join(f'"{a}"' for a in axes)
        return f"the case is batched ({sizes}): a kernel that takes no batch says without = [{names}] in its row"


def _same(test: Callable[[], None]) -> Callable[[], None]:
    return test
