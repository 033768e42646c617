"""Is a kernel's machine code worse than another revision's: the compiled test under --roof-against, without a GPU."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

from rooftest.compiled.trial import Compiled
from rooftest.errors import UsageError
from rooftest.finding import Finding

if TYPE_CHECKING:
    from rooftest.compiled.compare import Code
    from rooftest.compiled.expect import Expected
    from rooftest.gate.trees import Trees
    from rooftest.rows import Row
    from rooftest.session import Session
    from rooftest.spec import Workload


class Recompiled(Compiled):
    """The kernels of a row in two trees, for every generation that head's row speaks of."""

    compares = True

    def __init__(self, session: Session, row: Row, workloads: list[Workload], dtype: str, layout: str) -> None:
        super().__init__(session, row, workloads, dtype, layout)
        self.record |= {"code": [], "base": None, "head": None}
        self._base: Row | None = None

    def __call__(self) -> None:
        """Hold head's code against its row, and both sides' against each other.

        Raises Finding if a promise is broken or head is worse than base and its row does not allow it.
        """
        self._importable()
        self._ready()
        super().__call__()
        if all(each["verdict"] == "UNCHANGED" for each in self.record["code"]):
            self.record["reason"] = "the same machine code on both sides"

    def _ready(self) -> None:
        """Have both trees, and base's row; why not stands among what could not be decided."""
        from rooftest.gate import base

        trees = self.trees
        trees.ready()
        self.record["base"] = {"revision": trees.revision, "row": None, "name": None}
        self.record["head"] = {
            "revision": trees.head_words,
            "dirty": None if trees.changed is None else trees.changed > 0,
        }
        if "head" in trees.wrong:
            raise Finding(f"{self.row.op}: {self.row.name}: {trees.wrong['head']}")
        if "base" in trees.wrong:
            self._open.append(f"no baseline: {trees.wrong['base']}")
            return
        try:
            self._base, self.record["base"]["row"] = base.row(self.session, self.row, trees)
            self.record["base"]["name"] = self._base.name
        except UsageError as error:
            self._open.append(f"no baseline: {error}")

    @property
    def trees(self) -> Trees:
        """Both trees."""
        return self.session.trees(self.row)

    def _broken(self, generation: str, expected: Expected, workload: Workload) -> list[str]:
        from rooftest.compiled import build, compare

        lines = super()._broken(generation, expected, workload)
        try:
            head = self._found(self.row, workload, generation, None)
        except build.CompileError:
            return lines  # it says so
        before = self._before(generation, workload)
        if before is None:
            return lines
        about: dict[str, Any] = {"generation": generation, "workload": workload.name}
        found = compare.compared(before, head, expected)
        self.record["code"] += [about | each.as_dict() for each in found]
        return lines + [f"against {self.trees.revision}: {line}" for each in found for line in each.worse]

    def _before(self, generation: str, workload: Workload) -> list[Code] | None:
        """Base's kernels; None where there is nothing to compare with, and why stands among the undecided."""
        from dataclasses import replace

        from rooftest.compiled import build

        if self._base is None:
            return None
        if not self._base.admits(self.dtype, self.layout, workload.sizes):
            self._open.append(f"no baseline: the row in {self.trees.revision} does not take {workload.name}")
            return None
        # Under head's name: what is kept of one side is the other's too where nothing differs.
        row = replace(self._base, name=self.row.name)
        try:
            return self._found(row, workload, generation, build.Side(self.trees.base, self.trees.head))
        except build.CompileError as error:
            self._open.append(f"no baseline: {self.trees.revision}: {error}")
            return None

    def _options(self) -> list[str]:
        asked = self.session.options
        words = [f"--roof-against={quote(str(asked.against))}"]
        return words + ([f"--roof-build={quote(asked.build)}"] if asked.build else [])
