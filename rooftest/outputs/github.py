"""What a run tells GitHub Actions: annotations beside the code, and the summary of its step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rooftest.errors import UsageError
from rooftest.outputs import comment, order
from rooftest.outputs.markdown import clip
from rooftest.outputs.order import FAIL, Record

MOST = 10
"""Annotations of one kind that GitHub shows of one step; it drops the others."""
SUMMARY = 2**20
"""Bytes that a step's summary may have; GitHub drops a larger one whole."""
# A summary of less says nothing; heads, titles and counts have 4000 bytes.
LEAST = 8_192
MESSAGE = 4_000


def annotated(runs: Sequence[Mapping[str, Any]], base: Path) -> list[str]:
    """One workflow command for each kernel that fails, the worst first, at most MOST of them.

    `base` is the folder that the records' source files are relative to, as a rule pytest's root folder.
    """
    failed = [r for run in runs for r in order.records(run) if order.word(r) == FAIL]
    kernels: dict[tuple[str, str], list[Record]] = {}
    for record in order.worst_first(failed):
        kernels.setdefault((record["op"], record["kernel"]), []).append(record)
    shown = list(kernels.values())
    if len(shown) > MOST:
        rest = shown[MOST - 1 :]
        text = f"{sum(map(len, rest))} more tests of {len(rest)} kernels fail; the step's summary has them."
        return [*(_kernel(of, base) for of in shown[: MOST - 1]), _error({"title": "rooftest"}, text)]
    return [_kernel(of, base) for of in shown]


def _kernel(records: Sequence[Record], base: Path) -> str:
    worst = records[0]
    more = f" and {len(records) - 1} more" if len(records) > 1 else ""
    place = worst.get("source") or {}
    where = {"file": _file(place["file"], base), "line": str(place["line"])} if place else {}
    text = clip(worst.get("message") or worst.get("reason") or "no message was recorded", MESSAGE)
    return _error(where | {"title": f"{worst['id']}{more}: FAIL"}, text)


def _file(file: str, base: Path) -> str:
    """The file as GitHub wants it, relative to the repository that the workflow checked out."""
    root, path = os.environ.get("GITHUB_WORKSPACE"), (base / file).resolve()
    if root and path.is_relative_to(Path(root).resolve()):
        return path.relative_to(Path(root).resolve()).as_posix()
    return file


def _error(properties: Mapping[str, str], message: str) -> str:
    """A workflow command: properties and message escaped as GitHub's runner reads them."""
    told = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
    return f"::error {told}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    for sign in f"%\r\n{more}":  # % first: it is what the others become
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def summarise(runs: Sequence[Mapping[str, Any]]) -> str:
    """Append to the summary of the step in whose environment this runs; what became of it, in words.

    Raises UsageError if it can't be written.
    """
    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        return "no step summary: GITHUB_STEP_SUMMARY is not set, as GitHub Actions sets it"
    path = Path(name)
    try:
        room = SUMMARY - (path.stat().st_size if path.exists() else 0)
        if room < LEAST:
            return "no step summary: what other programs wrote there fills the 1 MiB that GitHub takes"
        with path.open("a", encoding="utf-8") as file:
            file.write(comment.render(runs, room, marker=False))
    except OSError as error:
        raise UsageError(f"cannot write the step's summary {path}: {error.strerror or error}") from None
    return f"step summary: {path}"
