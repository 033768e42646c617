"""Text that must not be longer than a program takes: sections share the room, and each says what it left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# What a section needs beside its items, its line on what is missing included: "... and 10000 more of 12345".
LINE = 200


@dataclass
class Section:
    """A head, items of which the first are shown, and an end that closes what the head opened."""

    head: str
    total: int
    items: Iterable[str]
    """`total` items, made as far as there is room for them: a run may have 10,000."""
    between: str = "\n"
    end: str = ""
    made: list[str] = field(default_factory=list)

    def make(self, room: int) -> int:
        """Make the items that `room` may have, and one more if there is one; how much room they want."""
        wanted = size(self._text([]))
        for item in self.items:
            self.made.append(item)
            wanted += size(self.between + item)
            if wanted > room:
                break
        return wanted

    def within(self, room: int) -> str:
        """As many of the first items as fit, and how many are missing."""
        left = room - size(self._text([]))
        sizes = [size(self.between + item) for item in self.made]
        if len(sizes) == self.total and sum(sizes) <= left:
            return self._text(self.made)
        left, shown = left - LINE, 0
        for each in sizes:
            left -= each
            if left < 0:
                break
            shown += 1
        return self._text(self.made[:shown], f"\n\n... and {self.total - shown} more of {self.total}")

    def _text(self, items: Sequence[str], missing: str = "") -> str:
        return self.between.join([self.head, *items]) + missing + self.end


def size(text: str) -> int:
    """How long a text is at most, whoever counts: bytes of UTF-8, and two for a line's end, as web forms send it."""
    return len(text.encode()) + text.count("\n")


def fit(sections: Sequence[Section], room: int) -> str:
    """The sections, in their order, within `room`: a short one is whole, long ones share what is left alike."""
    room -= size("\n\n") * len(sections)
    wanted, todo = {n: section.make(room) for n, section in enumerate(sections)}, len(sections)
    shares = {}
    for n in sorted(wanted, key=lambda n: wanted[n]):
        shares[n] = min(wanted[n], room // todo)
        room, todo = room - shares[n], todo - 1
    return "\n\n".join(section.within(shares[n]) for n, section in enumerate(sections)) + "\n"
