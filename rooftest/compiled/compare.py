"""What became of machine code between two revisions, and whether it is worse by what a row says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from rooftest.compiled import elf, expect
from rooftest.compiled.build import Built
from rooftest.compiled.expect import Expected
from rooftest.compiled.facts import Facts
from rooftest.compiled.sass import NAMES

TENSOR = ("wgmma", "tcgen05.mma", "mma.sync")
"""Kinds of instructions of which losing all is losing the matrix unit, or its fast way."""
Code = tuple[Built, Facts]


@dataclass(frozen=True)
class Compared:
    """One kernel on both sides, None where it is not launched: UNCHANGED with the same code, FAIL if head is worse."""

    base: Facts | None
    head: Facts | None
    verdict: str
    worse: list[str] = field(default_factory=list)
    """What is worse and the row does not allow, in words."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: kernel, verdict, worse, base, head, and changed: kinds of instructions with both counts."""
        told = self.head or self.base
        assert told is not None
        both = [side.instructions if side else {} for side in (self.base, self.head)]
        counts = {name: [each.get(name, 0) for each in both] for name in NAMES}
        return {
            "kernel": told.kernel, "verdict": self.verdict, "worse": self.worse,
            "base": asdict(self.base) if self.base else None, "head": asdict(self.head) if self.head else None,
            "changed": {name: counts[name] for name in NAMES if counts[name][0] != counts[name][1]},
        }  # fmt: skip


def compared(base: Sequence[Code], head: Sequence[Code], expected: Expected) -> list[Compared]:
    """The kernels of one call on both sides, in head's order, those that head does not launch last."""
    has = {kind for _, facts in head for kind in TENSOR if facts.instructions.get(kind)}
    meant = expect.meant(expected, [facts for _, facts in head])
    # Of what some kernel of the call must have, only what none has is broken.
    lost = tuple(kind for kind in expected.needs if not any(facts.instructions.get(kind) for facts in meant))
    promise = replace(expected, needs=lost)
    found = [_one(before, after, expected, has) for before, after in _pairs(base, head)]
    return [replace(each, verdict="FAIL") if _breaks(each, promise) else each for each in found]


def _breaks(code: Compared, promise: Expected) -> bool:
    """Whether code that changed is not as its row says: the test says what, and the line must not read PASS."""
    meant = expect.meant(promise, [code.head]) if code.head and code.verdict == "PASS" else []
    return bool(meant and expect.broken(promise, meant))


def _one(base: Code | None, head: Code | None, expected: Expected, has: set[str]) -> Compared:
    if base is None or head is None:
        gone = [] if base is None else _lost(base[1], has, _rules(base[1], expected))
        return Compared(base and base[1], head and head[1], "FAIL" if gone else "PASS", gone)
    if _same(base, head):
        return Compared(base[1], head[1], "UNCHANGED")
    found = worse(base[1], head[1], _rules(head[1], expected))
    return Compared(base[1], head[1], "FAIL" if found else "PASS", found)


def _rules(facts: Facts, expected: Expected) -> Expected:
    """What the row says of a kernel: nothing of one that it does not mean."""
    return expected if fnmatchcase(facts.kernel, expected.kernel) else Expected()


def worse(base: Facts, head: Facts, expected: Expected) -> list[str]:
    """What head spills, lost of the matrix unit and of occupancy, in words.

    Where the row has a limit of its own, that decides instead of base: it is how a row allows a change.
    """
    spills = [facts.spill_store_bytes + facts.spill_load_bytes for facts in (base, head)]
    held = [facts.occupancy.ctas_per_sm for facts in (base, head)]
    found = []
    if expected.spills is None and spills[1] > spills[0]:
        found.append(f"{head.kernel} spills {spills[1]} bytes a thread, base {spills[0]}")
    found += _lost(base, {kind for kind in TENSOR if head.instructions.get(kind)}, expected)
    # Threads too: one CTA of 256 threads is no loss to two of 128.
    if expected.ctas_per_sm is None and held[1] * head.threads < held[0] * base.threads:
        limit = head.occupancy.limited_by
        found.append(
            f"{head.kernel}: an SM holds {held[1]} of its CTAs (of {head.threads} threads, limited by {limit}), "
            f"base {held[0]} (of {base.threads} threads)"
        )
    return found


def _lost(base: Facts, has: set[str], expected: Expected) -> list[str]:
    if set(TENSOR) & set(expected.needs):
        return []
    return [
        f"{base.kernel} has no {kind}, base {base.instructions[kind]}"
        for kind in TENSOR
        if base.instructions.get(kind) and kind not in has
    ]


def _same(base: Code, head: Code) -> bool:
    """Whether both run the same: instructions, constants, and what a launch adds.

    Or came from the same PTX: ptxas 12.9 names registers otherwise in one run of 8.
    """
    one, two = (elf.code_digest(built.cubin, facts.kernel) for built, facts in (base, head))
    alike = one == two or bool(_ptx(head[0]) and _ptx(base[0]) == _ptx(head[0]))
    return alike and replace(base[1], compiler="") == replace(head[1], compiler="")


def _ptx(built: Built) -> list[str]:
    """The PTX without what says where in the source it came from."""
    text = built.ptx.partition(".section\t.debug")[0]
    return [line for line in text.splitlines() if not line.strip().startswith((".loc", ".file", "//"))]


def _pairs(base: Sequence[Code], head: Sequence[Code]) -> Iterator[tuple[Code | None, Code | None]]:
    """Both sides' kernels that belong together: first by name and constants, then by name, then by their order."""
    spare, waiting = list(base), list(head)
    found: dict[int, Code] = {}
    for key in (_whole, _name, lambda _: ""):
        for code in list(waiting):
            match = next((each for each in spare if key(each) == key(code)), None)
            if match is not None:
                found[id(code)] = match
                waiting.remove(code)
                spare.remove(match)
    yield from ((found.get(id(code)), code) for code in head)
    yield from ((code, None) for code in spare)


def _whole(code: Code) -> str:
    launch = code[0].launch
    return repr((code[1].kernel, sorted(launch.constants.items()), sorted(launch.options.items())))


def _name(code: Code) -> str:
    return code[1].kernel
