"""Markdown as GitHub shows it. Text from a run (names, messages, reasons) goes through `span`, `plain` or `code`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# What GitHub would take for HTML, emphasis, a link, code or the name of a person to notify, who had no part in it.
_MARKS = re.compile(r"[\\`*_\[\]~]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "@&#8203;"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown."""
    return "\n".join([row(head), row(["---"] * len(head)), *map(row, rows)])


def row(cells: Sequence[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(map(cell, cells))} |"


def cell(text: str) -> str:
    """Text that neither ends a cell nor starts a line; code in it too, of which GitHub unescapes bars in tables."""
    return " ".join(str(text).split()).replace("|", "\\|")


def span(text: str) -> str:
    """Text as inline code, between more backticks than it has in a row."""
    line = " ".join(str(text).split())
    if not line:
        return ""
    ticks = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    edge = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{edge}{line}{edge}{ticks}"


def plain(text: str) -> str:
    """Text on one line that is shown as it is; bars are left to `cell`."""
    line = _MARKS.sub(r"\\\g<0>", " ".join(str(text).split()))
    return re.sub("[&<>@]", lambda found: _ENTITIES[found.group()], line)


def code(text: str) -> str:
    """A block of code, fenced by more backticks than the text has in a row."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def fold(summary: str) -> tuple[str, str]:
    """What opens and what closes Markdown that shows itself at a click; `summary` is one line of plain words."""
    return f"<details><summary>{summary}</summary>\n\n", "\n\n</details>"


def clip(text: str, most: int) -> str:
    """At most `most` characters of a text, and how many were left out."""
    text = str(text)
    return text if len(text) <= most else f"{text[:most]} ... ({len(text) - most} characters more)"
