"""The facts of what was built, kept beside it: a disassembler takes a second a kernel."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

from rooftest.compiled import facts
from rooftest.compiled.build import Built
from rooftest.compiled.capture import digest
from rooftest.compiled.facts import Facts
from rooftest.compiled.occupancy import Occupancy

# The files that decide what is read.
_DECIDING = ("asked", "bound", "elf", "facts", "loops", "occupancy", "sass", "toolchain")


def read(built: Built, generation: str) -> list[Facts]:
    """The facts of each kernel in one compiled kernel's machine code.

    Raises UsageError as rooftest.compiled.facts does.
    """
    kept = built.place.with_suffix(".facts.json")
    if kept.is_file():
        data = json.loads(kept.read_text(encoding="utf-8"))
        if data["by"] == _reader():
            return [Facts(**each | {"occupancy": Occupancy(**each["occupancy"])}) for each in data["facts"]]
    shared, compiler = int(built.metadata["shared"]), built.metadata["compiler"]
    found = facts.read(
        built.cubin, generation=generation, compiler=compiler, dynamic_shared_bytes=shared, ptx=built.ptx
    )
    kept.write_text(json.dumps({"by": _reader(), "facts": [asdict(each) for each in found]}), encoding="utf-8")
    return found


@cache
def _reader() -> list[str]:
    return [digest(Path(__file__).with_name(f"{name}.py")) for name in _DECIDING]
