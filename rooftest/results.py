"""The results file of a run: when there is one, where it lies, what goes into it."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rooftest.outputs.order import KINDS

if TYPE_CHECKING:
    from rooftest.session import Session
    from rooftest.store import Run


def begin(session: Session, record: dict[str, Any]) -> Run | None:
    """A new results file if one was asked for, or as soon as a GPU timed something; else None.

    Raises UsageError if it can't be written.
    """
    path = session.options.results
    if path is None and record.get("stats") is None and not record.get("pairs"):
        return None
    from rooftest import header, store

    run = store.Run(path or _usual(session), header.machine(session), _ceilings(session))
    session.config.pluginmanager.register(Ending(run))
    return run


class Ending:
    """Says of a results file whether its session ended by itself, before the file is written."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Tell the file."""
        if ended(session, exitstatus):
            self.run.complete()


def ended(session: pytest.Session, exitstatus: int) -> bool:
    """Whether every test ran: not after Ctrl-C or an internal error, nor where -x or --maxfail left tests out."""
    whole = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    return whole and not session.shouldstop and not session.shouldfail


def _usual(session: Session) -> Path:
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = session.roof.key or re.sub(r"[^a-z0-9]+", "-", str(session.roof.identity.name).lower())
    # Nodes that share this folder may begin in the same second.
    return session.root / "results" / "runs" / f"{now}-{secrets.token_hex(4)}-{name}.json"


def _ceilings(session: Session) -> dict[str, Any] | None:
    return None if session.gpu is None else session.roof.as_dict()


def add(run: Run, record: dict[str, Any], session: Session) -> None:
    """Record one test, after ceilings that were measured for it; raises UsageError if the disk is full."""
    run.set_ceilings(_ceilings(session))
    run.add(KINDS[record["kind"]], record | _origin(session, record["kernel"]))


def _origin(session: Session, kernel: str) -> dict[str, Any]:
    """What a history needs of a kernel: the revision of its repository, and the names that it had before."""
    from rooftest.gate import trees

    row = session.rows.get(kernel)
    folder = Path(row.root) if row is not None and row.root else session.root
    earlier = list(row.renamed_from) if row is not None else []
    return {"revision": trees.current(folder.resolve()), **({"renamed_from": earlier} if earlier else {})}


def gathered(session: Session, records: list[dict[str, Any]], *, complete: bool) -> dict[str, Any]:
    """What a results file of these records holds but for ceilings, whether or not the run writes one."""
    from rooftest import header, store

    data: dict[str, Any] = store.empty(header.machine(session), None) | {"complete": complete}
    for record in records:
        data.setdefault(KINDS[record["kind"]], []).append(store.finite(record))
    told = against(session, records)
    return data if told is None else data | {"against": told}


def against(session: Session, records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What a run with --roof-against compared with; None of any other."""
    if session.against is None:
        return None
    every, seen = session.against.all, alarms(records)
    return {
        "base": ", ".join(trees.revision for trees in every),
        "head": ", ".join(trees.head_words for trees in every),
        "budget": session.options.budget,
        "aa": bool(every) and all(trees.same for trees in every),
        "false_alarms": seen,
    }


def alarms(records: list[dict[str, Any]]) -> list[int] | None:
    """Of comparisons of the same code that could alarm, how many did; and how many there were. None without any."""
    armed = [r for r in records if r["kind"] == "gate" and r.get("alarm") is not None]
    return [sum(r["alarm"] for r in armed), len(armed)] if armed else None


def calibrated(records: list[dict[str, Any]]) -> list[str]:
    """The false alarms of a run that compared the same code, in words."""
    seen = alarms(records)
    return [] if seen is None else [f"false alarms where nothing changed: {seen[0]} of {seen[1]} screened"]
