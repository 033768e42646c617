"""What a cubin says of itself: the sections of its ELF file and the attributes in `.nv.info`."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rooftest.errors import UsageError

MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian: all that CUDA knows
CUDA_MACHINE = 190  # EM_CUDA
NOBITS = 8  # a section's type: it has a size, but no bytes in the file
HEADER = struct.Struct("<16x H H I Q Q Q I H H H H H H")
SECTION = struct.Struct("<I I Q Q Q Q I I Q Q")
# Attributes of `.nv.info`, by number, as `cuobjdump -elf` names them (EIATTR_...)
MAX_THREADS, REQUIRED_THREADS, FRAME_SIZE, REGISTERS = 0x05, 0x10, 0x11, 0x2F
# What a broken file raises: a read past its end, a name that is not UTF-8, a symbol or a section that is not there.
BROKEN = (struct.error, KeyError, IndexError, ValueError, OverflowError)
VERSION = re.compile(rb"\bV(\d+\.\d+\.\d+)")
RUN = (".text.", ".nv.constant", ".nv.global", ".nv.shared")
"""Sections that decide what runs."""
SIZED = 4  # EIFMT_SVAL: two bytes of length, then the value; every other format has its value in those two bytes


@dataclass(frozen=True)
class Section:
    """A section's name, its size (bytes) and its bytes: none where it takes no room in the file."""

    name: str
    size_bytes: int
    data: bytes


@dataclass(frozen=True)
class Kernel:
    """What the file says of one kernel: registers a thread, bytes of stack a thread, of shared memory (with what the
    compiler reserves), of code; threads of a CTA, or None where the compiler was not told.
    """  # noqa: D205 - one sentence

    registers: int
    stack_bytes: int
    shared_bytes: int
    code: bytes
    threads: int | None


def machine(data: bytes) -> int | None:
    """The machine an ELF file is for (190: CUDA); None for another file."""
    if data[: len(MAGIC)] != MAGIC or len(data) < HEADER.size:
        return None
    return int(HEADER.unpack_from(data)[1])


def kernels(data: bytes, what: str) -> dict[str, Kernel]:
    """What the cubin in `data` says of each of its functions.

    Raises UsageError, with `what` as the file's name, for a file that is no cubin or has been stripped.
    """
    if machine(data) != CUDA_MACHINE:
        raise UsageError(f"{what} is not a cubin: it has no CUDA ELF header")
    try:
        parts = {section.name: section for section in _sections(data)}
        names = _symbols(parts)
        counts = {
            (code, names[index]): value
            for code, raw in _attributes(parts[".nv.info"].data)
            if code in {FRAME_SIZE, REGISTERS}
            for index, value in [struct.unpack("<II", raw)]
        }
        found = {
            name: _kernel(name, parts, counts)
            for name in (part.removeprefix(".nv.info.") for part in parts if part.startswith(".nv.info."))
            if (REGISTERS, name) in counts
        }
    except BROKEN:
        raise UsageError(f"{what} is a cubin without the compiler's notes (.nv.info): stripped, or cut short") from None
    if not found:
        raise UsageError(f"{what} is a cubin without a kernel")
    return found


def compiler(data: bytes) -> str | None:
    """The assembler's version ("ptxas 13.4.59") where the cubin keeps it, as newer ones do; None too for a cut file."""
    try:
        note = next((section.data for section in _sections(data) if section.name == ".note.nv.tkinfo"), b"")
    except BROKEN:
        return None
    version = VERSION.search(note)
    return f"ptxas {version[1].decode()}" if version else None


def code_digest(data: bytes, what: str) -> str:
    """The sha256 of what a cubin runs: instructions and constants, without line numbers and compiler's notes.

    Raises UsageError, with `what` as the file's name, for a file that is no cubin or is cut short.
    """
    if machine(data) != CUDA_MACHINE:
        raise UsageError(f"{what} is not a cubin: it has no CUDA ELF header")
    total = hashlib.sha256()
    try:
        for section in sorted(_sections(data), key=lambda part: part.name):
            if section.name.startswith(RUN):
                total.update(f"{section.name} {section.size_bytes} ".encode() + section.data)
    except BROKEN:
        raise UsageError(f"{what} is a cubin that is cut short") from None
    return total.hexdigest()


def _kernel(name: str, parts: dict[str, Section], counts: dict[tuple[int, str], int]) -> Kernel:
    notes = dict(_attributes(parts[f".nv.info.{name}"].data))
    sizes = notes.get(REQUIRED_THREADS) or notes.get(MAX_THREADS)
    x, y, z = struct.unpack("<III", sizes) if sizes else (0, 0, 0)
    shared = parts.get(f".nv.shared.{name}")
    return Kernel(
        registers=counts[REGISTERS, name],
        stack_bytes=counts.get((FRAME_SIZE, name), 0),
        shared_bytes=shared.size_bytes if shared else 0,
        code=parts[f".text.{name}"].data,
        threads=x * y * z or None,
    )


def _sections(data: bytes) -> Iterator[Section]:
    *_, offset, _flags, _size, _program, _programs, size, count, strings = HEADER.unpack_from(data)
    rows = [SECTION.unpack_from(data, offset + index * size) for index in range(count)]
    if not rows:
        return
    table = _bytes(data, rows[strings])
    for row in rows:
        yield Section(_string(table, row[0]), row[5], b"" if row[1] == NOBITS else _bytes(data, row))


def _bytes(data: bytes, row: tuple[int, ...]) -> bytes:
    start, size = row[4:6]
    if start + size > len(data):
        raise IndexError
    return data[start : start + size]


def _string(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode() if start < len(table) else ""


def _symbols(parts: dict[str, Section]) -> dict[int, str]:
    entry = struct.Struct("<I 20x")
    table, strings = parts[".symtab"].data, parts[".strtab"].data
    return {index: _string(strings, start) for index, (start,) in enumerate(entry.iter_unpack(table))}


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        form, code, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == SIZED:
            yield code, data[at : at + value]
            at += value
        else:
            yield code, struct.pack("<H", value)
