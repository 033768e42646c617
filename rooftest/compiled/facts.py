"""What a compiler made of a kernel: registers, spills, memory, occupancy and the instructions that matter."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rooftest.compiled import asked, bound, elf, loops, sass, toolchain
from rooftest.compiled.occupancy import RESERVED_SHARED, Occupancy, occupancy
from rooftest.errors import UsageError

PTXAS = "ptxas"
LOCAL = "local-memory instructions"
UNKNOWN = "unknown"
# Triton assembles with one of these (which, depends on its version) and with or without this option; it does not say.
ASSEMBLERS = ("ptxas-blackwell", "ptxas")
OPTIONS: tuple[list[str], ...] = (["--regAllocOptLevel=2"], [])
SPILLS = re.compile(
    r"Function properties for (?P<name>\S+)\s+"
    r"\d+ bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)
TARGET = re.compile(r"^\s*\.target\s+(?P<name>\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Facts:
    """What the machine code of one kernel says. Registers, spills and stack are one thread's, shared memory a CTA's.

    `spills_from` says where the spills were read: "ptxas" (the assembler's own account) or "local-memory instructions",
    which also move a kernel's own arrays in local memory: exact where there are none, else at most so many.
    `instructions` counts each kind of sass.KINDS in the kernel with what it calls, `in_loop` those in innermost loops
    (loops.innermost). `cycles_per_mac`: the least cycles of an SM for a multiply-add, by pipe (bound.per_mac).
    `bytes_per_mac`: what the code asks of global memory for one (asked.per_mac).
    """

    kernel: str
    generation: str
    compiler: str
    threads: int
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    code_bytes: int
    occupancy: Occupancy
    instructions: Mapping[str, int]
    in_loop: Mapping[str, int] = field(default_factory=dict)
    spills_from: str = LOCAL
    cycles_per_mac: Mapping[str, float] = field(default_factory=dict)
    bytes_per_mac: float | None = None


def read(
    cubin: bytes,
    *,
    generation: str,
    compiler: str,
    threads: int | None = None,
    dynamic_shared_bytes: int = 0,
    ptx: str | None = None,
    what: str = "the cubin",
) -> list[Facts]:
    """The facts of each kernel in a cubin, in the order of their names.

    `threads` of a CTA are read from the file where the compiler was told them; dynamic shared memory (bytes a CTA) is
    given at the launch, so no file knows it. With the `ptx` that the cubin was made of, spills are told from arrays in
    local memory. `what` names the cubin in messages.

    Raises UsageError for a missing disassembler, a stripped or foreign file, a file for another generation, a
    generation whose occupancy is unknown, and where neither the file nor the caller says how many threads a CTA has.
    """
    return _read(cubin, what, generation, compiler, threads, dynamic_shared_bytes, ptx)


def _read(
    cubin: bytes,
    what: str,
    wanted: str | None,
    compiler: str,
    threads: int | None,
    dynamic_shared_bytes: int,
    ptx: str | None = None,
) -> list[Facts]:
    if (threads is not None and threads < 1) or dynamic_shared_bytes < 0:
        raise UsageError(
            f"a CTA can't have {threads} threads and {dynamic_shared_bytes} bytes of dynamic shared memory"
        )
    notes = elf.kernels(cubin, what)
    generation, codes = sass.disassemble(cubin, what)
    if wanted not in {None, generation}:
        raise UsageError(f"{what} is machine code for {generation}, not for {wanted}")
    found = []
    for name, code in sorted(codes.items()):
        if name not in notes:
            raise UsageError(f"{what} says nothing of {name} in .nv.info: stripped")
        note = notes[name]
        count = threads or note.threads
        if not count:
            raise UsageError(f"{what} does not say how many threads a CTA of {name} has: give them (--threads)")
        # Since sm_90 compilers put the bytes that CUDA keeps of every CTA before the kernel's own.
        kept = RESERVED_SHARED if int(generation.removeprefix("sm_")) >= 90 else 0
        static = max(note.shared_bytes - kept, 0)
        stores = sass.moved_bytes(code.instructions, "local store")
        loads = sass.moved_bytes(code.instructions, "local load")
        spills = _spills(name, note, ptx) if ptx and (stores or loads) else None
        stores, loads = spills or (stores, loads)
        found.append(
            Facts(
                kernel=name,
                generation=generation,
                compiler=compiler,
                threads=count,
                registers=note.registers,
                spill_store_bytes=stores,
                spill_load_bytes=loads,
                stack_bytes=note.stack_bytes,
                static_shared_bytes=static,
                dynamic_shared_bytes=dynamic_shared_bytes,
                code_bytes=len(note.code),
                occupancy=occupancy(generation, count, note.registers, static + dynamic_shared_bytes),
                instructions=sass.count(code.instructions),
                in_loop=sass.count(loops.innermost(code)),
                spills_from=PTXAS if spills else LOCAL,
                cycles_per_mac=bound.per_mac(code, generation),
                bytes_per_mac=asked.per_mac(code, count, ptx),
            )
        )
    if not found:
        raise UsageError(f"{what} holds no kernel")
    return found


def read_file(path: Path, threads: int | None = None, dynamic_shared_bytes: int = 0) -> list[Facts]:
    """The facts of each kernel in a .cubin, or in the machine code that nvcc put into a .so.

    Raises UsageError for a file that can't be read, holds no machine code for a GPU, and as `read` does.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from None
    machine = elf.machine(data)
    if machine is None:
        raise UsageError(f"{path} is neither a .cubin nor a .so: it has no ELF header")
    cubins = {str(path): data} if machine == elf.CUDA_MACHINE else _extracted(path)
    found = []
    for what, cubin in cubins.items():
        compiler = elf.compiler(cubin) or UNKNOWN
        found += _read(cubin, what, None, compiler, threads, dynamic_shared_bytes)
    return found


def _extracted(path: Path) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        done = toolchain.call("cuobjdump", "-xelf", "all", path.resolve(), within=Path(folder))
        cubins = {f"{path}:{each.name}": each.read_bytes() for each in sorted(Path(folder).glob("*.cubin"))}
    if not cubins:
        raise UsageError(f"{path} holds no machine code for a GPU: {toolchain.complaint(done) or 'nothing to extract'}")
    return cubins


def _spills(name: str, note: elf.Kernel, ptx: str) -> tuple[int, int] | None:
    """Bytes of spill stores and loads by ptxas, where one of the assemblers makes of the PTX code of this size with
    these registers and this stack; else None. Not the same code: ptxas 12.9 names registers otherwise in one run of 8.
    """  # noqa: D205 - one sentence
    target = TARGET.search(ptx)
    if target is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        for assembler in (each for each in ASSEMBLERS if (toolchain.folder() / each).is_file()):
            for options in OPTIONS:
                asked = ["-v", "-lineinfo", f"--gpu-name={target['name']}", *options]
                done = toolchain.call(assembler, *asked, source, "-o", made)
                same = None if done.returncode else elf.kernels(made.read_bytes(), "ptxas's output").get(name)
                if same is None or _size(same) != _size(note):
                    continue
                for spills in SPILLS.finditer(done.stderr):
                    if spills["name"] == name:
                        return int(spills["stores"]), int(spills["loads"])
    return None


def _size(kernel: elf.Kernel) -> tuple[int, int, int]:
    return kernel.registers, kernel.stack_bytes, len(kernel.code)
