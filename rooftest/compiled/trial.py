"""Is a kernel's machine code what its row says: one test a kernel, without a GPU (`pytest suites/ -m compiled`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from rooftest import domain
from rooftest.finding import Finding
from rooftest.session import identify
from rooftest.trial import Trial

if TYPE_CHECKING:
    from rooftest.compiled.build import Request, Side
    from rooftest.compiled.compare import Code
    from rooftest.compiled.expect import Expected
    from rooftest.rows import Row
    from rooftest.session import Session
    from rooftest.spec import Workload

COMPILED = "compiled"  # stands where a rung does in the tests' ids
NOTHING = "launches no kernel of Triton or CUDA Tile: nothing to compile"


class Compiled(Trial):
    """The kernels that one call on each workload launches, for every generation that the row speaks of."""

    argument = "check"
    kind = "conformance"
    marks = (pytest.mark.compiled,)

    def __init__(self, session: Session, row: Row, workloads: list[Workload], dtype: str, layout: str) -> None:
        super().__init__(session, row, COMPILED, dtype, layout)
        self.workloads = workloads
        self._met = False  # whether the promise was about any kernel so far
        self._open: list[str] = []  # what could not be decided
        self.record |= {"rung": COMPILED, "claimed": list(row.claims), "compiled": [], "bound": []}

    @classmethod
    def of_row(cls, session: Session, row: Row) -> Iterator[Trial]:
        """One test for every dtype and layout of the timed workloads; without a glob, one for the first of them."""
        groups: dict[tuple[str, str], list[Workload]] = {}
        for workload, dtype in chosen(session, row):
            groups.setdefault((dtype, workload.layout), []).append(workload)
        from rooftest.compiled.against import Recompiled

        made = cls if session.options.against is None or row.peer else Recompiled
        return (made(session, row, workloads, *kind) for kind, workloads in groups.items())

    def fits(self) -> bool:
        """Whether --roof-case leaves this trial in the run: a case is judged, not compiled."""
        return not self.session.cases

    def __call__(self) -> None:
        """Compile and compare.

        Raises Finding with everything that is not as the row says; ends undecided where no kernel has the name meant.
        """
        self._importable()
        self.session.compile_ahead()
        lines = []
        for generation, expected in self.row.compiled.items():
            self._met = False
            for workload in self.workloads:
                where = f"{generation}, {workload.name} in {self.dtype}-{self.layout}"
                lines += [f"{where}: {line}" for line in self._broken(generation, expected, workload)]
            if not self._met:
                self._open.append(f"{generation}: no kernel {expected.kernel!r} among those launched")
        if lines:
            command = " ".join([*self.session.words(), *self._options(), f"-m {COMPILED} -k {self.id}"])
            first, *rest = lines
            more = "".join(f"\n  {line}" for line in rest)
            raise Finding(f"{self.row.op}: {self.row.name} compiled for {first}{more}\n  reproduce: {command}")
        if self._open:
            self.undecided("; ".join(self._open))

    def _importable(self) -> None:
        """Skip the test where a package that the row requires is missing."""
        missing = domain.absent(self.row)
        if missing is not None:
            self.leave_out(missing)

    def requests(self) -> list[Request]:
        """What this test has built, but for another side."""
        if domain.absent(self.row) is not None:
            return []
        each = (self.dtype, self.layout)
        return [
            (self.row, workload, *each, generation) for workload in self.workloads for generation in self.row.compiled
        ]

    def _options(self) -> list[str]:
        """What the command of a reproduction says beside names."""
        return []

    def _broken(self, generation: str, expected: Expected, workload: Workload) -> list[str]:
        from rooftest.compiled import asked, bound, build, expect
        from rooftest.compiled.generations import generation as known

        try:
            found = self._found(self.row, workload, generation, None)
        except build.CompileError as error:
            return [str(error)]
        if not found:
            return [f"{self.row.call} {NOTHING}"]
        told: list[dict[str, Any]] = [
            {"workload": workload.name, "launch": asdict(each.launch)} | asdict(facts) for each, facts in found
        ]
        self.record["compiled"] += told
        flop, sms = self.row.spec.flop_of(workload.sizes, workload.params), known(generation).sm_count
        least = bound.least([facts.cycles_per_mac for _, facts in found], flop, sms)
        fewest = self._fewest_bytes(workload)
        asks = asked.least([facts.bytes_per_mac for _, facts in found], flop, fewest or 0)
        about = {"generation": generation, "workload": workload.name}
        self.record["bound"].append(about | {"cycles": least, "read_bytes": {"fewest": fewest, "asked": asks}})
        meant = expect.meant(expected, [facts for _, facts in found])
        self._met |= bool(meant)
        return expect.broken(expected, meant) if meant else []

    def _fewest_bytes(self, workload: Workload) -> int | None:
        """Bytes that a call must read; None of an op that does not say."""
        spec = self.row.spec
        return spec.least_bytes(workload.sizes, self.dtype)[0] if spec.inputs else None

    def _found(self, row: Row, workload: Workload, generation: str, side: Side | None) -> list[Code]:
        """Every kernel of one call; raises CompileError."""
        from rooftest.compiled import build, reading

        made = build.build(row, workload, self.dtype, self.layout, generation, side)
        return [(each, facts) for each in made for facts in reading.read(each, generation)]


def chosen(session: Session, row: Row) -> list[tuple[Workload, str]]:
    """The workloads and dtypes that a row is compiled for: one, or what --roof-workloads says; none without a table."""
    if not row.compiled:
        return []
    asked = list(session.chosen(row)) or list(session.workloads(row))
    return asked if session.options.workloads is not None else asked[:1]


def ids(session: Session, row: Row) -> Iterator[str]:
    """The ids of every test that the row can give here."""
    kinds = dict.fromkeys((dtype, workload.layout) for workload, dtype in session.workloads(row))
    return (identify(row, COMPILED, *kind) for kind in kinds if row.compiled)
