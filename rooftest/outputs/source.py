"""Where a kernel's function stands, without importing it: its file and line, for a note beside it."""

from __future__ import annotations

import ast
import importlib.util
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any


@lru_cache(maxsize=256)
def locate(call: str, root: str, base: str) -> dict[str, Any] | None:
    """The file, relative to the folder `base`, and the line of a row's `call`; None where it lies elsewhere.

    `root` is the folder that "path.py:name" is relative to. Of "module:name" nothing is run, packages included.
    """
    place, _, name = call.partition(":")
    path = Path(root, place) if place.endswith(".py") else _module(place, root)
    try:
        if path is None:
            return None
        file = path.resolve().relative_to(Path(base).resolve())
        return {"file": file.as_posix(), "line": _line(path.read_text(encoding="utf-8"), name.partition(".")[0])}
    except (OSError, ValueError, SyntaxError, RecursionError):  # outside of base; no Python
        return None


def _module(name: str, root: str) -> Path | None:
    first, *rest = name.split(".")
    try:
        found = (PathFinder.find_spec(first, [root]) if root else None) or importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return None
    for n in range(len(rest)):
        if found is None or found.submodule_search_locations is None:
            return None
        found = PathFinder.find_spec(".".join([first, *rest[: n + 1]]), list(found.submodule_search_locations))
    return Path(found.origin) if found is not None and found.origin and found.has_location else None


def _line(text: str, name: str) -> int:
    """The line of a function, class or assignment of that name at the top level; 1 if there is none."""
    for node in ast.parse(text).body:
        names = [getattr(node, "name", None)]
        if isinstance(node, ast.Assign):
            names = [getattr(target, "id", None) for target in node.targets]
        if name in names:
            return node.lineno
    return 1
