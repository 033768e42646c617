"""How many CTAs of a kernel one SM holds at once, by the rules of CUDA's occupancy calculator."""

from __future__ import annotations

from dataclasses import dataclass

from rooftest.errors import UsageError

WARP = 32  # threads
# Registers are allocated a warp at a time, in units of 256: 8 a thread. An SM has four schedulers with a quarter of the
# 65536 registers each, so a warp gets its registers from one quarter. Both as in NVIDIA's occupancy calculator (Nsight
# Compute), for all generations below.
REGISTER_UNIT = 256
REGISTERS = 65536
SCHEDULERS = 4
MAX_REGISTERS = 255  # one thread's
MAX_THREADS = 1024  # one CTA's
SHARED_UNIT = 128  # bytes by which shared memory is allocated, since sm_80
RESERVED_SHARED = 1024  # bytes that CUDA keeps of every CTA's shared memory, since sm_80
KB = 1024


@dataclass(frozen=True)
class Generation:
    """What an SM holds at most: warps, CTAs, bytes of shared memory (a CTA: all but RESERVED_SHARED)."""

    warps: int
    ctas: int
    shared_bytes: int


# CUDA Programming Guide, appendix "Compute Capabilities", the table of technical specifications per compute capability
# (docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html), and the tuning guides of
# Ampere, Ada, Hopper and Blackwell.
GENERATIONS = {
    "sm_80": Generation(64, 32, 164 * KB),
    "sm_86": Generation(48, 16, 100 * KB),
    "sm_89": Generation(48, 24, 100 * KB),
    "sm_90": Generation(64, 32, 228 * KB),
    "sm_100": Generation(64, 32, 228 * KB),
    "sm_120": Generation(48, 24, 100 * KB),
}


@dataclass(frozen=True)
class Occupancy:
    """CTAs that one SM holds at once, and what keeps it from holding more: of several, the first in this order:
    "registers", "shared memory", "threads", "blocks". 0 CTAs: the kernel can't be launched.
    """  # noqa: D205 - the list belongs to the sentence

    ctas_per_sm: int
    limited_by: str


def occupancy(generation: str, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """The occupancy of CTAs of `threads` threads with `registers` registers each and `shared_bytes` bytes (static and
    dynamic, without what CUDA reserves).

    Raises UsageError for a generation that is not in the table.
    """  # noqa: D205 - likewise
    sm = GENERATIONS.get(generation)
    if sm is None:
        raise UsageError(f"no occupancy is known for {generation}: of {', '.join(GENERATIONS)}")
    warps = _up(threads, WARP) // WARP
    warp_registers = max(_up(registers * WARP, REGISTER_UNIT), REGISTER_UNIT)
    warps_by_registers = REGISTERS // SCHEDULERS // warp_registers * SCHEDULERS
    limits = {
        "registers": 0 if registers > MAX_REGISTERS else warps_by_registers // warps,
        "shared memory": sm.shared_bytes // _up(shared_bytes + RESERVED_SHARED, SHARED_UNIT),
        "threads": 0 if threads > MAX_THREADS else sm.warps // warps,
        "blocks": sm.ctas,
    }
    limited_by = min(limits, key=lambda resource: limits[resource])
    return Occupancy(limits[limited_by], limited_by)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
