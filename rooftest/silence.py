"""Known failures, silenced in one place: `[[tool.rooftest.xfail]]` of the file that the rows stand in.

    [[tool.rooftest.xfail]]
    id = "gemm/acme.matmul/bound/bfloat16-*"
    reason = "accumulates in bf16 past K = 4096, acme#12"
    until = 2027-01-31
    arch = [90]

Strict: an entry that is expired, whose test passes, or that matches no test there is, fails the run.
"""

from __future__ import annotations

import datetime as dt
import difflib
import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rooftest.errors import UsageError
from rooftest.rows import section


@dataclass(frozen=True)
class Entry:
    """A known failure. `id` is a glob over our own ids; `arch` the GPU generations it is known on, all if empty."""

    id: str
    reason: str
    until: dt.date
    arch: tuple[int, ...] = ()

    def matches(self, name: str) -> bool:
        """Whether the id falls under this entry."""
        return fnmatch.fnmatchcase(name, self.id)

    def expired(self, today: dt.date) -> bool:
        """Whether the day named in `until` has passed."""
        return today > self.until

    def __str__(self) -> str:
        return f'xfail "{self.id}" ({self.reason}, until {self.until})'


def read(path: Path) -> tuple[Entry, ...]:
    """The entries of a pyproject.toml; none if it has no such table or does not exist.

    Raises UsageError naming the entry and the key that is unknown, missing or of the wrong kind.
    """
    if not path.exists():
        return ()
    tables = section(path).get("xfail", [])
    if not isinstance(tables, list):
        raise UsageError(f"{path.name}: xfail is a list of tables: write [[tool.rooftest.xfail]]")
    return tuple(_entry(table, f"{path.name}: [[tool.rooftest.xfail]] number {n}") for n, table in enumerate(tables, 1))


def _entry(table: Any, where: str) -> Entry:
    if not isinstance(table, dict):
        raise UsageError(f"{where}: an entry is a table of keys, not {table!r}")
    known = tuple(f.name for f in fields(Entry))
    unknown = [key for key in table if key not in known]
    if unknown:
        raise UsageError(f"{where}: key {unknown[0]!r} is none of {', '.join(known)}")
    for key in ("id", "reason"):
        if not isinstance(table.get(key), str) or not table[key].strip():
            raise UsageError(f'{where}: needs {key} = "..."')
    until = table.get("until")
    if isinstance(until, str):
        try:
            until = dt.date.fromisoformat(until)
        except ValueError:
            until = None
    if not isinstance(until, dt.date) or isinstance(until, dt.datetime):
        raise UsageError(f"{where}: needs until = YYYY-MM-DD, the day after which it fails")
    arch = table.get("arch", [])
    arch = [arch] if isinstance(arch, int) else arch
    if not isinstance(arch, list) or not all(isinstance(a, int) and not isinstance(a, bool) for a in arch):
        raise UsageError(f"{where}: arch must be a list such as [90], not {table['arch']!r}")
    return Entry(table["id"], table["reason"], until, tuple(arch))


class Silence:
    """The entries as they apply to one run; those for another GPU silence nothing here, but are checked too."""

    def __init__(self, entries: Iterable[Entry], arch: int | None, today: dt.date | None = None) -> None:
        self.today = today or dt.datetime.now(tz=dt.UTC).date()
        self.entries, self.arch = tuple(entries), arch

    def of(self, name: str) -> Entry | None:
        """The entry that silences a failure of this id; an expired one does not."""
        here = (e for e in self.entries if not e.arch or self.arch in e.arch)
        return next((e for e in here if e.matches(name) and not e.expired(self.today)), None)

    def complaints(self, ids: Iterable[str]) -> list[str]:
        """What is wrong with the entries themselves; `ids` are all ids there are, run or not."""
        every = tuple(ids)
        found = [f"{e} is expired: mend the kernel, or set a new date" for e in self.entries if e.expired(self.today)]
        for e in self.entries:
            if not any(e.matches(name) for name in every):
                near = "".join(difflib.get_close_matches(e.id, every, 1))
                found.append(f"{e} matches no test: remove it" + (f" or mend its id; there is {near}" if near else ""))
        return found
