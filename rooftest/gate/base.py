"""A kernel's row as base's tree has it, read by this harness."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rooftest import rows

if TYPE_CHECKING:
    from rooftest.gate.trees import Trees
    from rooftest.rows import Row
    from rooftest.session import Session


def row(session: Session, mine: Row, trees: Trees) -> tuple[Row, str | None]:
    """The row in base's tree, and the file that it stands in there, None where rows stand apart from the kernel.

    Raises UsageError if there is none or it can't be read.
    """
    home = session.home(mine)
    place = trees.in_base(home)
    if place is None:  # the same row for both
        return mine, None
    if home.is_dir():
        return replace(mine, root=str(place)), None
    return rows.earlier(mine, place, trees.revision), place.relative_to(trees.base).as_posix()
