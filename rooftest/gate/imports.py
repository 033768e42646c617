"""In base's process: what head would import from its own tree comes from the same place in base's tree.

`rooftest` itself stays head's, and what is installed elsewhere is the same on both sides. An editable install maps
names to head's folders (a finder, a .pth file); so whatever any other finder says is asked first, and moved then.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from rooftest.gate.trees import foreign

OURS = "rooftest"


class Redirect:
    """A finder that stands before all others."""

    def __init__(self, head: Path, base: Path) -> None:
        self.head, self.base = head.resolve(), base.resolve()
        self.moved: set[str] = set()
        """Top-level names that were found in head's tree, and so are base's."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The module's place in base's tree; None for what lies in no tree of ours.

        Raises ModuleNotFoundError for a module that head has and base has not: no other finder may give head's.
        """
        top = name.partition(".")[0]
        if top == OURS:
            return None
        if path is not None:
            if top not in self.moved:
                return None
            found = PathFinder.find_spec(name, path, target)
            if found is None:
                raise ModuleNotFoundError(f"No module named {name!r} in the base tree", name=name)
            return found
        spec = self._others(name, target)
        if spec is None:
            return None
        place = self._place(spec)
        if place is None:
            # Found in base's tree already, by a path that was moved; its parts are base's too.
            if any(Path(p).is_relative_to(self.base) for p in _locations(spec)):
                self.moved.add(top)
            return spec
        self.moved.add(top)
        return self._move(name, spec, place)

    def _others(self, name: str, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, None, target)
                if spec is not None:
                    return spec
        return None

    def _place(self, spec: ModuleSpec) -> Path | None:
        """The file or folder of head's tree that a module was found in; None if it lies elsewhere."""
        for text in _locations(spec):
            path = Path(text).resolve()
            if inside(path, self.head) and not path.is_relative_to(self.base):
                return path
        return None

    def _move(self, name: str, spec: ModuleSpec, place: Path) -> ModuleSpec:
        there = self.base / place.relative_to(self.head)
        if not there.exists():
            raise ModuleNotFoundError(f"No module named {name!r} in the base tree ({there} is missing)", name=name)
        if there.is_dir():  # a namespace package: no file of its own
            moved = ModuleSpec(name, None, is_package=True)
            moved.submodule_search_locations = [str(there)]
            return moved
        folders = [str(there.parent)] if spec.submodule_search_locations is not None else None
        found = importlib.util.spec_from_file_location(name, there, submodule_search_locations=folders)
        assert found is not None  # it has the suffix that head's file was found by
        return found


def inside(path: Path, tree: Path) -> bool:
    """Whether a resolved path is source of a tree, not of an installation within it."""
    return path.is_relative_to(tree) and not foreign(path)


def _locations(spec: ModuleSpec) -> list[str]:
    if spec.has_location and spec.origin:
        return [spec.origin]
    return list(spec.submodule_search_locations or ())


def install(head: str, base: str) -> None:
    """Make this process base's: import path, working folder, finder.

    Raises RuntimeError if something of head's tree is loaded already: the process would be neither one nor the other.
    """
    mine, other = Path(head).resolve(), Path(base).resolve()
    early = [name for name, path in loaded() if inside(path, mine)]
    if early:
        raise RuntimeError(f"loaded before base's tree could take its place: {', '.join(sorted(early)[:5])}")
    sys.path[:] = [_moved(text, mine, other) for text in sys.path]
    here = Path.cwd().resolve()
    if inside(here, mine) and not here.is_relative_to(other):
        there = other / here.relative_to(mine)
        os.chdir(there if there.is_dir() else other)
    sys.path_importer_cache.clear()
    sys.meta_path.insert(0, Redirect(mine, other))


def loaded() -> list[tuple[str, Path]]:
    """Each module of this process that has a file and is none of the harness's, and the file."""
    ours = harness()
    return [(name, path) for name, path in _files() if path.parent not in ours]


def harness() -> set[Path]:
    """The folders that the harness's own modules lie in: its tree may be head's too."""
    return {path.parent for name, path in _files() if name.partition(".")[0] == OURS}


def _files() -> list[tuple[str, Path]]:
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")  # not getattr: some modules load on access
        if isinstance(file, str):
            found.append((name, Path(file).resolve()))
    return found


def _moved(text: str, head: Path, base: Path) -> str:
    path = Path(text or ".").resolve()
    if not inside(path, head) or path.is_relative_to(base):
        return text
    return str(base / path.relative_to(head))
