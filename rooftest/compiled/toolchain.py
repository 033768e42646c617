"""NVIDIA's programs as the triton wheel carries them: an assembler and a disassembler, which need no GPU."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

from rooftest.errors import UsageError

PREFIX = re.compile(r"^\w+ \w+\s*: ")  # "nvdisasm fatal   : "
LIMIT_S = 300  # the largest kernels disassemble in seconds; ptxas takes a minute for a few


def folder() -> Path:
    """Where the triton that would be imported keeps the programs.

    Raises UsageError without triton.
    """
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise UsageError("triton is not installed: rooftest reads machine code with the disassembler in its wheel")
    return Path(spec.origin).parent / "backends" / "nvidia" / "bin"


def program(name: str) -> Path:
    """The program's path.

    Raises UsageError where this triton carries none.
    """
    path = folder() / name
    if not path.is_file():
        raise UsageError(f"{name} is missing from {path.parent}: reinstall triton from a wheel for Linux")
    return path


def call(name: str, *arguments: str | Path, within: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in the folder `within`; its code and its output as text.

    Raises UsageError for a program that is missing, can't run or does not end.
    """
    path = program(name)
    try:
        return subprocess.run(
            [path, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
            cwd=within,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{path} does not run: {error}") from None


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of what a program says of its trouble, without warnings; empty if it says nothing."""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip() and "warning" not in line]
    return PREFIX.sub("", lines[-1]) if lines else ""
