"""Tensors that end, or begin, where their memory does, so that a stray access faults whatever becomes of its value.

Poison around a tensor shows a read outside it only if the value reaches an output. Here, in the kernel's own process,
each tensor has a mapping of its own whose neighbours on both sides can't be touched: on the CPU pages without access,
on CUDA reserved addresses with nothing behind them.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from dataclasses import dataclass, replace

import torch

from rooftest.arena import BLOCK_BYTES, Block, Placement, ask, driver
from rooftest.kernel import Fault
from rooftest.problem import GUARD_BYTES

# What the placement promises of the base modulo this is kept: kernels choose 16-byte loads and bulk copies by it. So a
# tensor may end up to 15 bytes before its memory does, and an overrun within these is seen only as poison.
ALIGN_BYTES = 16
_NO_ACCESS = 0  # PROT_NONE
_DEVICE, _PINNED, _READ_WRITE = 1, 1, 3  # CU_MEM_LOCATION_TYPE_, CU_MEM_ALLOCATION_TYPE_, CU_MEM_ACCESS_FLAGS_PROT_


@dataclass(frozen=True)
class Fenced:
    """A tensor that was moved; `here` and `home` are the same bytes in its mapping and in the arena."""

    tensor: torch.Tensor
    here: torch.Tensor
    home: torch.Tensor

    def back(self) -> None:
        """Copies everything to where it came from, what lies around the tensor too, so that stray writes are seen."""
        self.home.copy_(self.here)


def move(placement: Placement, arena: torch.Tensor, side: str, place: int) -> Fenced:
    """The tensor in a mapping of its own, with what lies around it in `arena` as far as the mapping reaches.

    `side`: which end of the mapping it meets, "end" or "start".
    `place` numbers the tensors of a call, which must not share a mapping. Raises Fault of kind "unfenced" where the
    device has no such mappings.
    """
    offset, size = placement.offset_bytes, placement.extent_bytes
    lead = offset % ALIGN_BYTES
    # On the other side as much room as in the arena, so that a fault says which end was left.
    memory = _mapping(str(arena.device), place, _room(size + GUARD_BYTES + ALIGN_BYTES, str(arena.device)))
    base = lead if side == "start" else (memory.numel() - size - lead) // ALIGN_BYTES * ALIGN_BYTES + lead
    before = min(GUARD_BYTES, offset, base)
    after = min(GUARD_BYTES, memory.numel() - base - size, arena.numel() - offset - size)
    here, home = memory[base - before : base + size + after], arena[offset - before : offset + size + after]
    here.copy_(home)
    return Fenced(replace(placement, offset_bytes=base).view(memory), here, home)


def _room(size: int, device: str) -> int:
    """The least power-of-two number of pages that hold `size` bytes: few sizes, so mappings are soon found again."""
    page = mmap.PAGESIZE if device == "cpu" else BLOCK_BYTES
    return page << (-(-size // page) - 1).bit_length()


@functools.cache
def _mapping(device: str, place: int, size: int) -> torch.Tensor:  # noqa: ARG001 - each place has its own
    """The accessible part of a fresh mapping, uint8; it lives as long as the process."""
    try:
        return _pages(size) if device == "cpu" else _blocks(device, size)
    except (OSError, RuntimeError) as error:
        raise Fault("unfenced", f"no memory with an end to be had: {error}") from None


def _pages(size: int) -> torch.Tensor:
    library = ctypes.CDLL(None, use_errno=True)
    pages = mmap.mmap(-1, size + 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    for fence in (start, start + mmap.PAGESIZE + size):
        if library.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(mmap.PAGESIZE), _NO_ACCESS):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return torch.frombuffer(pages, dtype=torch.uint8, offset=mmap.PAGESIZE, count=size)


class _Location(ctypes.Structure):
    """CUmemLocation: a kind of place and its number."""

    _fields_ = (("kind", ctypes.c_int), ("index", ctypes.c_int))


class _Allocation(ctypes.Structure):
    """CUmemAllocationProp; what is not named stays zero."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def _blocks(device: str, size: int) -> torch.Tensor:
    """Physical memory of `size` bytes in the middle of a reservation that has a block more on either side."""
    where = _Location(_DEVICE, torch.device(device).index or 0)
    kind, access = _Allocation(kind=_PINNED, location=where), _Access(where, _READ_WRITE)
    reserved, memory = ctypes.c_uint64(), ctypes.c_uint64()
    count, none = ctypes.c_size_t(size), ctypes.c_uint64(0)
    room = ctypes.c_size_t(size + 2 * BLOCK_BYTES)
    driver(device, "cuMemAddressReserve", ctypes.byref(reserved), room, ctypes.c_size_t(0), none, none)
    ask(device, "cuMemCreate", ctypes.byref(memory), count, ctypes.byref(kind), none)
    start = ctypes.c_uint64(reserved.value + BLOCK_BYTES)
    driver(device, "cuMemMap", start, count, ctypes.c_size_t(0), memory, none)
    driver(device, "cuMemSetAccess", start, count, ctypes.byref(access), ctypes.c_size_t(1))
    return Block(device, size, start.value).tensor()
