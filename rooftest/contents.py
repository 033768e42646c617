"""What timed calls read and what they wrote, as the timer asks for it; and contents that stay as they are."""

from __future__ import annotations

from typing import Protocol


class Contents(Protocol):
    """What the calls read, and what they wrote; `rooftest.fresh.Fresh` is the real one."""

    def renew(self, name: str) -> None:
        """Enqueue new contents of the inputs, before a call of that name."""
        ...

    def look(self, name: str) -> None:
        """Enqueue a copy of what a timed call of that name read and wrote, or don't."""
        ...


class Same:
    """Contents that stay as they are, and that nobody looks at."""

    def renew(self, name: str) -> None:
        """Do nothing."""

    def look(self, name: str) -> None:
        """Do nothing."""
