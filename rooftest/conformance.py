"""Is a kernel right: one test per rung, dtype and layout, each of which draws examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from rooftest.digest import OWN_CHOICE
from rooftest.errors import UsageError
from rooftest.finding import Finding
from rooftest.session import kinds
from rooftest.trial import TIME_LIMITS, Trial, marked

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from rooftest.bench import Bench
    from rooftest.case import Case
    from rooftest.process import KernelError
    from rooftest.rows import Row
    from rooftest.rungs import Outcome
    from rooftest.session import Session

# Examples of each configuration that is judged by itself, if its share of the test's examples is less: smoke's number.
LEAST = 10


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
    unjudged: str = ""  # why a case could not be tried here, which says nothing of the kernel
    filled: int = 0  # examples in which no axis was 0
    found: str | None = None  # the latest failure's text: with shrinking, the smallest
    reproduce: str | None = None  # the command of that one
    tried: Counter[str] = field(default_factory=Counter)  # examples that put a claim to the test
    broke: set[str] = field(default_factory=set)  # claims that an example broke
    parts: dict[str | None, Tally] = field(default_factory=dict)  # by configuration, where each is judged by itself

    def add(self, outcome: Outcome) -> None:
        """Count one example."""
        self.examples += 1
        self.filled += all(outcome.case.sizes.values())
        self.withdrawn.update(outcome.withdrawn)
        self.tried.update(outcome.tried)
        self.broke |= {outcome.broke} if outcome.broke else set()
        self._worse(outcome.ratio, outcome.reading, str(outcome.case))

    def end(self, case: Case, kind: str, claim: str | None) -> None:
        """Count one example whose call failed."""
        self.examples += 1
        self.broke |= {claim} if claim else set()
        self._worse(float("inf"), kind, str(case))

    def _worse(self, ratio: float, reading: str, case: str) -> None:
        if ratio >= self.ratio:
            self.ratio, self.reading, self.worst = ratio, reading, case

    def take(self, config: str | None, part: Tally) -> None:
        """Add up what the examples of one configuration read."""
        self.parts[config] = part
        self.examples, self.filled = self.examples + part.examples, self.filled + part.filled
        self.withdrawn.update(part.withdrawn)
        self.tried.update(part.tried)
        self.broke |= part.broke
        self._worse(part.ratio, part.reading, part.worst)
        self.undrawn, self.unjudged = self.undrawn or part.undrawn, self.unjudged or part.unjudged
        if self.found is None:
            self.found, self.reproduce = part.found, part.reproduce

    def by_config(self) -> str:
        """Which configurations are wrong, in words; empty where none is."""
        named = {name or OWN_CHOICE: part for name, part in self.parts.items()}
        groups = {
            "wrong in": [name for name, part in named.items() if part.found],
            "right in": [name for name, part in named.items() if part.filled and not part.found],
            "not judged": [name for name, part in named.items() if not part.filled and not part.found],
        }
        said = "; ".join(f"{words} {', '.join(names)}" for words, names in groups.items() if names)
        return f"\n  by configuration: {said}" if groups["wrong in"] else ""

    def empty(self) -> str | None:
        """What computed nothing, in words; None where everything did something."""
        if self.filled == 0:
            return "every example had an axis of size 0: nothing was computed"
        names = [name or OWN_CHOICE for name, part in self.parts.items() if not part.filled]
        return f"every example of {', '.join(names)} had an axis of size 0: nothing was computed" if names else None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data; an infinite ratio (something that must not happen at all) as None."""
        ratio = self.ratio if self.ratio < float("inf") else None
        told: dict[str, Any] = {
            "examples": self.examples, "ratio": ratio, "reading": self.reading,
            "worst": self.worst, "withdrawn": dict(self.withdrawn),
        }  # fmt: skip
        told |= {"tried": dict(self.tried), "broke": sorted(self.broke)} if self.tried or self.broke else {}
        told |= {"reproduce": self.reproduce} if self.reproduce else {}
        if self.parts:
            told["configs"] = [
                {"config": name, "wrong": part.found is not None, "filled": part.filled} | part.as_dict()
                for name, part in self.parts.items()
            ]
        return told


class _Ended(BaseException):
    """Carries a call that ended the kernel's process out of Hypothesis.

    Not an Exception, so that it is neither shrunk nor run again: a crash costs seconds each time, a hang a minute.
    """


class Check(Trial):
    """One rung of one kernel in one dtype and layout."""

    argument = "check"
    kind = "conformance"

    def __init__(self, session: Session, row: Row, what: str, dtype: str, layout: str) -> None:
        super().__init__(session, row, what, dtype, layout)
        self.record |= {"rung": what, "claimed": list(row.claims)}

    @classmethod
    def of_row(cls, session: Session, row: Row) -> Iterator[Trial]:
        """Every rung in every dtype and layout that the row takes, what is past 2^31 elements, and the machine code."""
        from rooftest.compiled.trial import Compiled
        from rooftest.large import Large
        from rooftest.rungs import RUNGS

        for dtype, layout in kinds(row):
            yield from (cls(session, row, rung, dtype, layout) for rung in RUNGS)
        yield from Large.of_row(session, row)
        yield from Compiled.of_row(session, row)
        if session.options.sanitize:
            from rooftest.sanitize import Sanitized

            yield from Sanitized.of_row(session, row)

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
            raise Finding(tally.found + tally.by_config())
        if tally.unjudged:
            self.undecided(tally.unjudged)
        if tally.examples == 0 or tally.undrawn:
            self.undecided(f"too few examples could be drawn in the row's domain {tally.undrawn}".rstrip())
        elif (empty := tally.empty()) and not self.session.cases:
            self.undecided(empty)

    def _examine(self, bench: Bench, tally: Tally) -> None:
        """Run the examples; what failed stands in `tally.found`."""
        from rooftest import strategies
        from rooftest.process import KernelError
        from rooftest.rungs import Failure

        explicit = self.cases()
        if explicit:
            try:
                for case in explicit:
                    self._one(bench, case, tally, hunt=False)
            except (Failure, KernelError, _Ended):
                pass
            return
        cases = strategies.cases(bench, self.what, self.dtype, self.layout)
        configs = (None, *bench.signature.configs) if self.session.options.each_config else ()
        if len(configs) < 2:
            self._draw(bench, cases, self.id, tally)
            return
        for config in configs:
            part = Tally()
            if len(self._struck()) >= TIME_LIMITS:
                tally.take(config, part)
                continue
            mine = cases.map(partial(_under, config))
            self._draw(bench, mine, f"{self.id}/{config or ''}", part, share=len(configs))
            tally.take(config, part)

    def _draw(self, bench: Bench, cases: SearchStrategy[Case], key: str, tally: Tally, *, share: int = 1) -> None:
        """Draw cases and judge each; `key` names what is drawn for, which has one of `share` parts of the examples."""
        from hypothesis import errors, given, seed

        from rooftest import profiles
        from rooftest.process import KernelError
        from rooftest.rungs import Failure

        name = self.session.options.profile
        known = self.session.silence.of(self.id) is not None
        database = self.session.root / ".hypothesis" / "roof" / key
        settings = profiles.chosen(name, database, shrink=not known, examples=self.session.options.examples)
        if share > 1:
            count = max(settings.max_examples // share, min(settings.max_examples, LEAST))
            settings = profiles.chosen(name, database, shrink=not known, examples=count)

        def example(case: Case) -> None:
            self._one(bench, case, tally, hunt=name == "hunt")

        try:
            # The same examples in every process and on every day, others for every key.
            (seed(crc32(key.encode())) if settings.derandomize else _same)(settings(given(cases)(example)))()
        except (Failure, KernelError, _Ended):
            pass
        except (errors.Unsatisfiable, errors.FailedHealthCheck) as error:  # a domain with next to nothing in it
            tally.undrawn = str(error).splitlines()[0]
        except errors.Flaky:
            tally.found = (
                f"{tally.found}\n  and right when the same case was run again: it is not deterministic, or races"
            )

    def _one(self, bench: Bench, case: Case, tally: Tally, *, hunt: bool) -> None:
        import torch

        from rooftest import rungs
        from rooftest.process import KernelError

        try:
            outcome = rungs.check(bench, self.what, case)
        except rungs.Failure as failure:
            tally.add(failure.outcome)
            tally.reproduce = self.session.command(case)
            tally.found = str(failure).replace(failure.outcome.case.command(), tally.reproduce)
            raise
        except UsageError as too_much:
            tally.unjudged = f"{too_much} ({case})"
            raise _Ended from None
        except (KernelError, MemoryError, torch.OutOfMemoryError) as raised:
            error = raised if isinstance(raised, KernelError) else _starved(bench)
            tally.end(case, error.kind, error.claim)
            tally.reproduce = self.session.command(case)
            lines = [
                f"{case.op}: {case.kernel} failed, rung {self.what}: {error}",
                *([f"  {hint}"] if (hint := self._hint(error, case)) else []),
                f"  case: {case}",
                f"  reproduce: {tally.reproduce}",
            ]
            tally.found = "\n".join(lines)
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


def _starved(bench: Bench) -> KernelError:
    """What is said where the grader itself ran out of memory; the kernel's process gives back what it holds."""
    from rooftest.process import KernelError

    bench.process.restart()
    return KernelError("out of memory", f"too little was left on {bench.device} to judge beside the kernel's process")


def _under(config: str | None, case: Case) -> Case:
    return replace(case, config=config)


def _same(test: Callable[[], None]) -> Callable[[], None]:
    return test
