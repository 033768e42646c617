"""What a row promises of its machine code, by generation, and whether a kernel keeps it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from rooftest.compiled import sass
from rooftest.compiled.facts import Facts
from rooftest.compiled.generations import generation
from rooftest.errors import UsageError


@dataclass(frozen=True)
class Expected:
    """Limits on every kernel that a call launches, and what at least one of them has; None: no limit.

    kernel: a glob, only kernels of such a name are meant, the others must compile; spills: bytes that a thread may
    store to and load from local memory because registers ran out; registers: of a thread; shared: bytes of a CTA;
    ctas_per_sm: CTAs that one SM holds at once; needs: kinds of instructions.
    """

    kernel: str = "*"
    spills: int | None = None
    registers: int | None = None
    shared: int | None = None
    ctas_per_sm: int | None = None
    needs: tuple[str, ...] = ()


def parse(where: str, table: Any) -> dict[str, Expected]:
    """The expectations of a row's `compiled` table, by generation.

    Raises UsageError naming the generation, key or kind of instruction that does not exist, or a value of another kind.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: compiled must be a table such as {{ sm_90 = {{ spills = 0 }} }}, not {table!r}")
    return {name: _expected(f"{where}: compiled", name, each) for name, each in table.items()}


def _expected(where: str, name: str, table: Any) -> Expected:
    try:
        generation(name)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    where = f"{where}.{name}"
    if not isinstance(table, Mapping):
        raise UsageError(f"{where} must be a table such as {{ spills = 0 }}, not {table!r}")
    known = [f.name for f in fields(Expected)]
    for key, value in table.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"{where}: key {key!r} is none of {', '.join(known)}{hint}")
        if key == "kernel" and (not isinstance(value, str) or not value):
            raise UsageError(f"{where}: kernel must be the name of a kernel, or a glob, not {value!r}")
        if key not in ("kernel", "needs") and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise UsageError(f"{where}: {key} must be a whole number from 0 up, not {value!r}")
    needs = table.get("needs", ())
    needs = (needs,) if isinstance(needs, str) else needs
    if not isinstance(needs, (list, tuple)) or not all(isinstance(kind, str) for kind in needs):
        raise UsageError(f"{where}: needs must be a list of kinds of instructions, not {needs!r}")
    for kind in needs:
        try:
            there = sass.exists(kind, name)
        except UsageError as error:
            raise UsageError(f"{where}: needs: {error}") from None
        if not there:
            raise UsageError(f"{where}: needs {kind!r}, which {name} does not have")
    return Expected(**{k: v for k, v in table.items() if k != "needs"}, needs=tuple(needs))


def meant(expected: Expected, found: Sequence[Facts]) -> list[Facts]:
    """The kernels that the promise is about."""
    return [facts for facts in found if fnmatchcase(facts.kernel, expected.kernel)]


def broken(expected: Expected, found: Sequence[Facts]) -> list[str]:
    """What the kernels of one call break, a line each: the kernel, what was measured, what its row says."""
    lines = []
    for facts in found:
        spills = facts.spill_store_bytes + facts.spill_load_bytes
        shared = facts.static_shared_bytes + facts.dynamic_shared_bytes
        held = facts.occupancy
        for limit, measured, words in (
            (expected.spills, spills, f"spills {spills} bytes a thread"),
            (expected.registers, facts.registers, f"takes {facts.registers} registers a thread"),
            (expected.shared, shared, f"takes {shared} bytes of shared memory a CTA"),
        ):
            if limit is not None and measured > limit:
                lines.append(f"{facts.kernel} {words}, its row says at most {limit}")
        if expected.ctas_per_sm is not None and held.ctas_per_sm < expected.ctas_per_sm:
            lines.append(
                f"{facts.kernel}: an SM holds {held.ctas_per_sm} of its CTAs (limited by {held.limited_by}), "
                f"its row says at least {expected.ctas_per_sm}"
            )
    names = ", ".join(facts.kernel for facts in found)
    lines += [f"{names} has no {k}" for k in expected.needs if not any(f.instructions.get(k) for f in found)]
    return lines
