"""The least SM cycles that machine code can take for its multiply-adds: a true lower bound, from instructions alone.

Every multiply-add is done by an instruction of the matrix unit where the code has one, else by a thread's FFMA. All
instructions of a basic block run equally often, so a block that does w multiply-adds takes at least c / w cycles of a
pipe for each, where c are the cycles that its instructions keep the pipe busy; and the whole takes no less than its
cheapest block does. So trip counts follow from the workload, whatever the loops: W multiply-adds on S SMs take at
least W / S times as many cycles. Left out, which makes the bound lower: latencies, waits, conflicts of banks, tails,
and all work in blocks without a multiply-add.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from rooftest import devices
from rooftest.compiled import loops
from rooftest.compiled.generations import GENERATIONS
from rooftest.compiled.sass import Code, Instruction

LANES = 32  # threads of a warp: an instruction is one warp's
WARPGROUP = 4  # warps that issue one wgmma together
ISSUE = 1 / 4  # cycles: four schedulers an SM, each one instruction a cycle (NVIDIA's architecture whitepapers)
# CUDA Programming Guide, "Arithmetic Instructions": 16 results a cycle and SM on every generation here.
SPECIAL = LANES / 16
# An SM moves 128 bytes a cycle between shared memory and registers. Threads may read the same bytes, so a load takes
# one cycle at least whatever its width; an 8x8 matrix of ldmatrix fills 128 bytes of registers.
SHARED = 1.0
SHAPES = (
    ("wgmma", re.compile(r"[HQ]GMMA\.(?P<m>64)x(?P<n>\d+)x(?P<k>\d+)\.\w+(?:\.(?P<type>\w+))?"), WARPGROUP),
    ("mma.sync", re.compile(r"[HQ]MMA\.(?P<m>16)(?P<n>8)(?P<k>\d+)\.\w+(?:\.(?P<type>\w+))?"), 1),
)
TYPES = {"BF16": "bfloat16", None: "float16", "TF32": "tf32", "E4M3": "float8", "E5M2": "float8"}
"""The assembler's name of the operands' type, none for fp16, by the word of a device file."""
Counter = Callable[[Instruction], tuple[float, str] | None]
MATRICES = re.compile(r"LDSM\..*?(?P<count>[124])?$")


def per_mac(code: Code, generation: str) -> dict[str, float]:
    """Least cycles of one SM for one multiply-add, by pipe: tensor, fma, special function, shared memory, issue.

    Empty where nothing is known: a generation without a device file, code without a multiply-add that this can count
    (tcgen05 names no shape), or a type of the matrix unit whose rate no file says.
    """
    known = GENERATIONS.get(generation)
    if known is None or known.device is None:
        return {}
    rates = devices.device(known.device).flop_per_sm_clock  # FLOP: two a multiply-add
    blocks = [code.instructions[start:end] for start, end in loops.blocks(code).items()]
    counted = counter(each.kind for block in blocks for each in block)
    if counted is None:
        return {}
    found: list[dict[str, float]] = []
    for block in blocks:
        pairs = [pair for each in block if (pair := counted(each)) is not None]
        if any(type_ not in rates for _, type_ in pairs):
            return {}
        macs = sum(each for each, _ in pairs)
        if macs:
            busy = _busy(block) | {"tensor" if counted is _matrix else "fma": sum(2 * n / rates[t] for n, t in pairs)}
            found.append({pipe: cycles / macs for pipe, cycles in busy.items()})
    return {pipe: min(each[pipe] for each in found) for pipe in found[0]} if found else {}


def cycles(each: Mapping[str, float], flop: float, sm_count: int) -> dict[str, float]:
    """Least cycles of a workload by pipe, the one that binds first; `each` as per_mac gives it."""
    least = {pipe: rate * flop / 2 / sm_count for pipe, rate in each.items()}
    return dict(sorted(least.items(), key=lambda pair: -pair[1]))


def least(kernels: Sequence[Mapping[str, float]], flop: float, sm_count: int) -> dict[str, float]:
    """The same of a call that launches several kernels, whichever of them does the work; empty if one is unknown, or
    the work is.
    """  # noqa: D205 - one sentence
    if not flop or not all(kernels):
        return {}
    every = [cycles(each, flop, sm_count) for each in kernels]
    return min(every, key=lambda found: max(found.values())) if every else {}


def counter(kinds: Iterable[str | None]) -> Counter | None:
    """What counts the multiply-adds of code with such instructions; None of tcgen05, which names no shape."""
    found = set(kinds)
    if "tcgen05.mma" in found:
        return None
    return _matrix if found & {"wgmma", "mma.sync"} else _threads


def _matrix(instruction: Instruction) -> tuple[float, str] | None:
    """Multiply-adds of one warp's instruction for the matrix unit, and their type."""
    for kind, shape, warps in SHAPES:
        if instruction.kind == kind:
            read = shape.match(instruction.mnemonic)
            if read is None or read["type"] not in TYPES:
                return 0.0, instruction.mnemonic  # no rate is known by that name
            return int(read["m"]) * int(read["n"]) * int(read["k"]) / warps, TYPES[read["type"]]
    return None


def _threads(instruction: Instruction) -> tuple[float, str] | None:
    """Multiply-adds of one warp's fp32 instruction: one a thread, two for a packed one."""
    opcode = instruction.mnemonic.partition(".")[0]
    return (LANES * (2.0 if opcode == "FFMA2" else 1.0), "float32") if opcode in {"FFMA", "FFMA2"} else None


def _busy(block: tuple[Instruction, ...]) -> dict[str, float]:
    """Cycles that a block keeps the pipes busy, without the one that multiplies.

    An instruction behind a predicate is issued all the same, but may do nothing.
    """
    sure = [each for each in block if not each.predicated]
    return {
        "issue": ISSUE * len(block),
        "special function": SPECIAL * sum(each.kind == "special function" for each in sure),
        "shared memory": SHARED * sum(_shared(each) for each in sure),
    }


def _shared(instruction: Instruction) -> int:
    if instruction.kind == "ldmatrix":
        read = MATRICES.search(instruction.mnemonic)
        return int(read["count"] or 1) if read else 1
    return instruction.kind in {"shared load", "shared store", "stmatrix"}
