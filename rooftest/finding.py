"""A finding fails a test and is shown as its text alone: no traceback of ours, no frames that keep tensors alive."""

from __future__ import annotations

from typing import Any


class Finding(AssertionError):
    """What is wrong with a kernel, in words for people."""


class _Crash:
    """What pytest's one-line summary reads."""

    def __init__(self, message: str) -> None:
        self.message = message


class Message:
    """A finding as pytest's report shows it (the part of a traceback's interface that pytest asks for)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.reprcrash = _Crash(text.splitlines()[0] if text else "")

    def toterminal(self, tw: Any) -> None:
        """Write the text, its first line marked."""
        first, *rest = self.text.splitlines()
        tw.line(first, red=True, bold=True)
        for line in rest:
            tw.line(line)

    def __str__(self) -> str:
        return self.text
