"""How a kernel looks in every chart of a page: a colour and a shape, either of which tells it from its neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rooftest.tables import kind
from rooftest.web.scale import si

COLOURS = 6  # --c0 to --c5 of page.css; with seven shapes, 42 kernels differ in both at once
SHAPES = (
    "M0-5.5A5.5 5.5 0 1 0 0 5.5A5.5 5.5 0 1 0 0-5.5Z",
    "M-5-5H5V5H-5Z",
    "M0-6.5L6 5H-6Z",
    "M0-7L6.5 0L0 7L-6.5 0Z",
    "M0 6.5L-6-5H6Z",
    "M-2-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",
    "M0-7L1.8-2.3L6.7-2.2L2.8.9L4.1 5.7L0 3L-4.1 5.7L-2.8.9L-6.7-2.2L-1.8-2.3Z",
)
"""Disc, square, triangle, diamond, triangle on its head, cross, star: paths about the origin, in pixels."""


@dataclass(frozen=True)
class Mark:
    """A kernel's place in the legend."""

    number: int
    name: str

    @property
    def colour(self) -> int:
        """Which of the page's colours."""
        return self.number % COLOURS

    @property
    def shape(self) -> str:
        """An SVG path."""
        return SHAPES[self.number % len(SHAPES)]


def marks(records: Iterable[Mapping[str, Any]]) -> dict[str, Mark]:
    """A mark for each kernel, "op/kernel", in the order of their names as people count."""
    names = sorted({f"{r['op']}/{r['kernel']}" for r in records}, key=natural)
    return {name: Mark(n, name) for n, name in enumerate(names)}


def natural(text: str) -> list[tuple[int, str]]:
    """A key by which step10 comes after step9."""
    parts, word = [], ""
    for c in text:
        if word and c.isdigit() != word[-1].isdigit():
            parts.append(word)
            word = ""
        word += c
    return [(int(p), "") if p.isascii() and p.isdigit() else (-1, p) for p in [*parts, word]]


def duration(time_s: float) -> str:
    """A time for people, four digits."""
    return si(time_s, "s", 4) if time_s >= 1e-6 else f"{time_s * 1e9:.3g} ns"


def title(record: Mapping[str, Any]) -> str:
    """What was timed: kernel, workload, dtype and layout."""
    return f"{record['kernel']}, {record['what']} {kind(record)}"
