"""The machine instructions that decide a kernel's speed: a table of their kinds, and how many of each a kernel has."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rooftest.compiled import toolchain
from rooftest.errors import UsageError

ALL = (8, 9, 10, 11, 12)  # majors of compute capabilities


@dataclass(frozen=True)
class Kind:
    """A kind of instruction: its name, the regular expression that a whole mnemonic (opcode and modifiers) of the kind
    matches, and the majors of the compute capabilities that have it. Where the expression has a group, what the group
    holds (a matrix unit's shape and types, as the disassembler prints them; of tcgen05, which names none, the opcode,
    one for each width of elements) is counted too, as "name group".
    """  # noqa: D205 - one sentence

    name: str
    pattern: str
    majors: tuple[int, ...] = ALL


# The first row that matches counts. Which opcode is what: the CUDA Binary Utilities' instruction set reference
# (docs.nvidia.com/cuda/cuda-binary-utilities), and for those it does not list the PTX that assembles to them.
KINDS = (
    Kind("wgmma", r"[HIQB]GMMA(?:\.SP)?\.(.+)", (9,)),
    Kind("tcgen05.mma", r"(UTC[A-Z]*MMA(?:\..*)?)", (10, 11)),
    Kind("mma.sync", r"[HIQBOD]MMA(?:\.SP|\.SF)*\.(.+)"),
    Kind("tensor memory load", r"LDTM(?:\..*)?", (10, 11)),
    Kind("tensor memory store", r"STTM(?:\..*)?", (10, 11)),
    Kind("tensor memory copy in", r"UTCCP(?:\..*)?", (10, 11)),
    Kind("bulk tensor copy in", r"UTMALDG(?:\..*)?", (9, 10, 11, 12)),
    Kind("bulk tensor copy out", r"UTMASTG(?:\..*)?", (9, 10, 11, 12)),
    Kind("bulk tensor reduction", r"UTMAREDG(?:\..*)?", (9, 10, 11, 12)),
    Kind("bulk copy", r"UBLKCP(?:\..*)?", (9, 10, 11, 12)),
    Kind("cp.async", r"LDGSTS(?:\..*)?"),
    Kind("ldmatrix", r"LDSM(?:\..*)?"),
    Kind("stmatrix", r"STSM(?:\..*)?", (9, 10, 11, 12)),
    Kind("load 16 bytes", r"LDG?\.(?:.*\.)?(?:128|256)(?:\..*)?"),  # a thread's share; sm_100 has 32 bytes too
    Kind("load narrower", r"LDG?(?:\..*)?"),
    Kind("store 16 bytes", r"STG?\.(?:.*\.)?(?:128|256)(?:\..*)?"),
    Kind("store narrower", r"STG?(?:\..*)?"),
    Kind("local load", r"LDL(?:\..*)?"),
    Kind("local store", r"STL(?:\..*)?"),
    Kind("shared load", r"LDS(?:\..*)?"),
    Kind("shared store", r"STS(?:\..*)?"),
    Kind("atomic", r"(?:ATOM[GS]?|RED[GS]?)(?:\..*)?"),
    Kind("barrier", r"(?:BAR|UCGABAR_[A-Z]+)(?:\..*)?"),
    Kind("mbarrier", r"(?:SYNCS|UTCBAR)(?:\..*)?", (9, 10, 11, 12)),
    Kind("setmaxnreg", r"USETMAXREG(?:\..*)?", (9, 10, 11, 12)),
    Kind("conversion", r"U?(?:F2FP?|F2IP?|I2FP?|I2IP?|FRND)(?:\..*)?"),
    Kind("special function", r"MUFU(?:\..*)?"),
    Kind("fma", r"U?(?:FH|[FHD])FMA2?(?:\..*)?"),
)
NAMES = tuple(kind.name for kind in KINDS)
WAITS = frozenset({"mbarrier", "setmaxnreg"})  # a loop with nothing but these waits for another warp

LINE = re.compile(r"\s*/\*(?P<address>[0-9a-f]+)\*/\s+(?:\{\s*)?(?:(?P<predicate>@!?U?P\w+)\s+)?(?P<text>[A-Z][^;]*)")
LABEL = re.compile(r"(?P<name>[.$\w]+):\s*$")
TARGET = re.compile(r"`\((?P<name>[^)]+)\)")
TABLE = re.compile(r"BRANCH_TARGETS (?P<names>[^\"]+)\"")
SECTION = re.compile(r"\s*\.section\s+\.text\.(?P<name>[^,\s\"]+)")
ENTRY = re.compile(r"\s*\.other\s+(?P<name>[^,\s]+),.*STO_CUDA_ENTRY")
GENERATION = re.compile(r"\.target\s+sm_(?P<now>\d+)|\.headerflags.*?EF_CUDA_SM(?P<before>\d+)")  # by CUDA's version
# Half-precision fma of zeros plus a constant is how a compiler moves a constant past busy integer units.
CONSTANT = re.compile(r"HFMA2\S* \w+, -RZ, RZ, ")
WIDTH = re.compile(r"\.[SU]?(?P<bits>8|16|32|64|128|256)(?:\.|$)")


@dataclass(frozen=True)
class Instruction:
    """One instruction: its mnemonic, the kind (a name of the table, or None), whether it always goes on elsewhere, the
    labels it may go to, and whether it may be passed over.
    """  # noqa: D205 - one sentence

    mnemonic: str
    kind: str | None
    ends: bool
    targets: tuple[str, ...]
    predicated: bool = False


@dataclass(frozen=True)
class Code:
    """A kernel's instructions in the order of their addresses, and which of them each label stands before."""

    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]


def disassemble(cubin: bytes, what: str) -> tuple[str, dict[str, Code]]:
    """The generation ("sm_90") a cubin is for, and the code of each of its kernels, with what they call beside them.

    Raises UsageError, with `what` as the file's name, for a file that the disassembler does not read.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.cubin"
        path.write_bytes(cubin)
        done = toolchain.call("nvdisasm", "-c", path)
    generation = GENERATION.search(done.stdout)
    if done.returncode or generation is None:
        said = toolchain.complaint(done) or "nvdisasm prints no machine code"
        raise UsageError(f"{what} can't be disassembled: {said.replace(str(path), what)}")
    return f"sm_{generation['now'] or generation['before']}", parse(done.stdout)


def parse(text: str) -> dict[str, Code]:
    """The code of each kernel in the disassembler's text."""
    found: dict[str, Code] = {}
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    section = ""
    for line in text.splitlines():
        if begun := SECTION.match(line):
            section, instructions, labels = begun["name"], [], {}
        elif line.split(maxsplit=1)[:1] == [".section"]:
            section = ""
        elif not section:
            continue
        elif entry := ENTRY.match(line):
            if entry["name"] == section:
                found[section] = Code(instructions, labels)  # type: ignore[arg-type] # grows until the section ends
        elif label := LABEL.match(line):
            labels[label["name"]] = len(instructions)
        elif read := LINE.match(line):
            instructions.append(_instruction(read["predicate"], read["text"].strip(), line))
    return {name: Code(tuple(code.instructions), dict(code.labels)) for name, code in found.items()}


def _instruction(predicate: str | None, text: str, line: str) -> Instruction:
    mnemonic = text.split(maxsplit=1)[0]
    opcode = mnemonic.split(".", 1)[0]
    jumps = opcode in {"BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU"}
    targets = [name for found in TARGET.finditer(text) for name in [found["name"]] if jumps or opcode == "CALL"]
    if table := TABLE.search(line):
        targets += table["names"].split(",")
    # A branch has its condition before it or, on uniform registers, as its first operand; without either it is taken.
    always = jumps and (opcode != "BRA" or re.match(r"\S+\s+`\(", text) is not None) and ".DIV" not in mnemonic
    ends = predicate is None and (always or opcode in {"EXIT", "RET", "KILL"})
    kind = None if CONSTANT.match(text) else _kind(mnemonic)
    return Instruction(mnemonic, kind, ends, tuple(targets), predicate is not None)


def _kind(mnemonic: str) -> str | None:
    return next((kind.name for kind in KINDS if re.fullmatch(kind.pattern, mnemonic)), None)


def count(instructions: Iterable[Instruction]) -> dict[str, int]:
    """How many of each kind: every name of the table, 0 too, and the shapes and types of matrix instructions."""
    counts = Counter(dict.fromkeys(NAMES, 0))
    patterns = {kind.name: kind.pattern for kind in KINDS}
    for instruction in instructions:
        if instruction.kind is None:
            continue
        counts[instruction.kind] += 1
        match = re.fullmatch(patterns[instruction.kind], instruction.mnemonic)
        if match and match.groups():
            counts[f"{instruction.kind} {match[1]}"] += 1
    return dict(counts)


def moved_bytes(instructions: Iterable[Instruction], kind: str) -> int:
    """Bytes that one thread moves if it executes each instruction of `kind` once; one without a width moves 4."""
    widths = [WIDTH.search(each.mnemonic) for each in instructions if each.kind == kind]
    return sum(int(width["bits"]) // 8 if width else 4 for width in widths)


def exists(name: str, generation: str) -> bool:
    """Whether a generation ("sm_90") has instructions of the kind.

    Raises UsageError for a name that is not in the table.
    """
    kind = next((kind for kind in KINDS if kind.name == name), None)
    if kind is None:
        raise UsageError(f"no kind of instruction is called {name!r}: {', '.join(NAMES)}")
    return int(generation.removeprefix("sm_")) // 10 in kind.majors
