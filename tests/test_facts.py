"""What the machine code of kernels says, compiled without a GPU for four generations; and what it refuses to say."""

import functools
import json
import os
import random
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from rooftest import cli
from rooftest.compiled import elf, facts, loops, sass, toolchain
from rooftest.compiled.occupancy import Occupancy, occupancy
from rooftest.errors import UsageError

PROBE = Path(__file__).with_name("facts_probe.py")
GENERATIONS = (80, 90, 100, 120)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("facts")
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, PROBE, folder], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@functools.cache  # a disassembler takes a second
def one(made, name, **options):
    (found,) = facts.read_file(made / f"{name}.cubin", **options)
    return found


def verbose(made, name):
    """Registers, and bytes of spill stores and loads, as each of the assemblers that takes the PTX prints them."""
    ptx = made / f"{name}.ptx"
    target = facts.TARGET.search(ptx.read_text())["name"]
    said = [toolchain.call(each, "-v", f"--gpu-name={target}", ptx, "-o", os.devnull) for each in facts.ASSEMBLERS]
    return {
        (int(re.search(r"Used (\d+) registers", done.stderr)[1]), int(found["stores"]), int(found["loads"]))
        for done in said
        for found in facts.SPILLS.finditer(done.stderr)
    }


def shared_object(cubin, arch):
    """A shared object with the cubin where nvcc puts it: in a fat binary, a section of its own."""
    code = cubin + bytes(-len(cubin) % 8)
    entry = struct.pack("<HHIQIIHHIIIQQQ", 2, 0x101, 64, len(code), 0, 0, 7, 1, arch, 0, 0, 0x11, 0, 0) + code
    fat = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry
    names = b"\0.nv_fatbin\0.shstrtab\0"
    table = elf.HEADER.size + len(fat) + len(names)
    start = table + -table % 8
    header = elf.MAGIC + b"\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, start, 0, 64, 56, 0, elf.SECTION.size, 3, 2)
    rows = [(0,) * 10, (1, 1, 2, 0, 64, len(fat), 0, 0, 8, 0), (12, 3, 0, 0, 64 + len(fat), len(names), 0, 0, 1, 0)]
    body = header + fat + names + bytes(start - table)
    return body + b"".join(elf.SECTION.pack(*row) for row in rows)


def parsed(body):
    return sass.parse(f'\t.section\t.text.k,"ax",@progbits\n        .other  k,@"STO_CUDA_ENTRY STV_DEFAULT"\n{body}')[
        "k"
    ]


def code(*lines):
    """Machine code as the disassembler prints it: labels end in a colon."""
    text = "".join(f"{each}\n" if each.endswith(":") else f"        /*0000*/     {each} ;\n" for each in lines)
    return parsed(text)


def in_loop(*lines):
    return [each.mnemonic for each in loops.innermost(code(*lines))]


def test_registers_are_those_the_assembler_prints(made):
    found = one(made, "copy_90")
    assert (found.registers, found.spill_store_bytes, found.spill_load_bytes) in verbose(made, "copy_90")
    assert (found.threads, found.generation, found.static_shared_bytes) == (128, "sm_90", 0)


def test_a_kernel_short_of_registers_is_seen_to_spill_as_much_as_the_assembler_says(made):
    given = (made / "squeezed_80.cubin").read_bytes()
    ptx = (made / "squeezed_80.ptx").read_text()
    (found,) = facts.read(given, generation="sm_80", compiler="ptxas", ptx=ptx)
    assert (found.registers, found.spill_store_bytes, found.spill_load_bytes) in verbose(made, "squeezed_80")
    assert found.spills_from == facts.PTXAS
    assert found.spill_store_bytes > 0
    assert found.stack_bytes > 0
    without = one(made, "squeezed_80")
    assert without.spills_from == facts.LOCAL
    assert without.spill_store_bytes == found.spill_store_bytes
    assert without.spill_load_bytes == found.spill_load_bytes
    assert without.in_loop["local load"] > 0


def test_another_kernels_ptx_is_not_believed(made):
    given = (made / "squeezed_80.cubin").read_bytes()
    (found,) = facts.read(
        given, generation="sm_80", compiler="ptxas", ptx=(made / "product_80.ptx").read_text(), threads=128
    )
    assert found.spills_from == facts.LOCAL
    assert found.spill_store_bytes > 0


@pytest.mark.parametrize(
    ("generation", "unit"), [(80, "mma.sync"), (90, "wgmma"), (100, "tcgen05.mma"), (120, "mma.sync")]
)
def test_a_dot_is_done_by_the_generations_matrix_unit_inside_the_loop(made, generation, unit):
    found = one(made, f"product_{generation}")
    assert found.in_loop[unit] > 0
    assert found.in_loop["cp.async"] > 0
    assert found.in_loop["store 16 bytes"] == 0 < found.instructions["store 16 bytes"]
    assert found.instructions["local load"] == found.spill_store_bytes == 0


@pytest.mark.parametrize("generation", GENERATIONS)
def test_no_kind_is_counted_that_the_generation_lacks(made, generation):
    found = one(made, f"product_{generation}")
    assert [name for name in sass.NAMES if found.instructions[name] and not sass.exists(name, f"sm_{generation}")] == []


def test_matrix_instructions_are_told_apart_by_shape_and_type(made):
    found = one(made, "product_80").instructions
    assert found["mma.sync 16816.F32.BF16"] == found["mma.sync"]


def test_step_6_copies_in_bulk_and_moves_registers_between_warps(made):
    found = one(made, "step6_specialised")
    for name in ("wgmma", "bulk tensor copy in", "bulk tensor copy out", "setmaxnreg", "stmatrix", "mbarrier"):
        assert found.instructions[name] > 0, name
    assert found.in_loop["wgmma"] == found.instructions["wgmma"]
    assert found.in_loop["bulk tensor copy in"] > found.in_loop["bulk tensor copy out"] == 0
    assert (found.threads, found.registers, found.occupancy.ctas_per_sm) == (384, 168, 1)


def test_step_3_loads_16_bytes_a_thread_and_none_narrower(made):
    found = one(made, "step3_register")
    assert found.in_loop["load 16 bytes"] > 0
    assert found.instructions["load narrower"] == 0
    assert found.instructions["fma"] >= found.in_loop["fma"] > 1000


def test_two_readings_are_the_same(made):
    assert facts.read_file(made / "product_100.cubin") == facts.read_file(made / "product_100.cubin")


def test_a_shared_object_says_what_its_cubin_says(made, tmp_path):
    path = tmp_path / "kernels.so"
    path.write_bytes(shared_object((made / "copy_90.cubin").read_bytes(), 90))
    assert facts.read_file(path) == [one(made, "copy_90")]


def test_a_file_that_is_not_machine_code_is_refused_in_one_line(made, tmp_path):
    whole = (made / "copy_90.cubin").read_bytes()
    for name, data, said in [
        ("text.cubin", b"nothing", "neither a .cubin nor a .so"),
        ("cut.cubin", whole[:200], "stripped, or cut short"),
        ("stripped.cubin", whole.replace(b".nv.info", b".nx.info"), "stripped"),
        ("host.so", shared_object(b"", 90).replace(b".nv_fatbin", b".xx_fatbin"), "no machine code for a GPU"),
    ]:
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(UsageError, match=said) as refused:
            facts.read_file(path)
        assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="can't be read: No such file"):
        facts.read_file(tmp_path / "none.cubin")


def test_a_damaged_cubin_raises_nothing_else(made):
    whole = (made / "step6_specialised.cubin").read_bytes()
    draw = random.Random(0)  # noqa: S311 - damage, not secrets
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        # The header, anything, the table of sections at the end: a byte that is read is hit often enough.
        for start, end in ((0, 64), (0, len(whole)), (len(whole) - 2048, len(whole))):
            damaged[draw.randrange(start, end)] = draw.randrange(256)
        try:
            elf.kernels(bytes(damaged), "x.cubin")
        except UsageError:
            refused += 1
        elf.compiler(bytes(damaged))
    assert 0 < refused < 300


def test_machine_code_for_another_generation_is_refused(made):
    with pytest.raises(UsageError, match="for sm_90, not for sm_80"):
        facts.read((made / "copy_90.cubin").read_bytes(), generation="sm_80", compiler="ptxas")


def test_impossible_launches_are_refused(made):
    with pytest.raises(UsageError, match="can't have -1 threads"):
        one(made, "copy_90", threads=-1)


def test_a_missing_disassembler_is_named(made, tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "folder", lambda: tmp_path)
    with pytest.raises(UsageError, match="nvdisasm is missing from"):
        facts.read_file(made / "copy_90.cubin")


def test_the_command_prints_a_table_or_json(made, capsys):
    path = made / "step6_specialised.cubin"
    assert cli.main(["facts", str(path), "--shared", "196812"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"registers a thread +168\n", shown)
    assert re.search(r"CTAs an SM +1, limited by", shown)
    assert re.search(r"  wgmma +[1-9]\d* +[1-9]", shown)
    assert cli.main(["facts", str(path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["kernel"] == "gemm_specialised"
    assert found["occupancy"]["limited_by"] == "registers"


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    (tmp_path / "x.cubin").write_bytes(b"x")
    assert cli.main(["facts", str(tmp_path / "x.cubin")]) == cli.USAGE
    assert capsys.readouterr().err.count("\n") == 1


# By hand from the table of compute capabilities: 65536 registers an SM, 256 a warp the unit.
@pytest.mark.parametrize(
    ("generation", "threads", "registers", "shared", "expected"),
    [
        ("sm_90", 128, 32, 0, Occupancy(16, "registers")),  # 64 warps by registers as by threads: the first is named
        ("sm_90", 128, 31, 0, Occupancy(16, "registers")),  # 31 are allocated as 32
        ("sm_90", 128, 24, 0, Occupancy(16, "threads")),
        ("sm_90", 32, 16, 0, Occupancy(32, "blocks")),
        ("sm_89", 32, 16, 0, Occupancy(24, "blocks")),
        ("sm_86", 32, 16, 0, Occupancy(16, "blocks")),
        ("sm_120", 128, 24, 0, Occupancy(12, "threads")),
        ("sm_90", 384, 168, 0, Occupancy(1, "registers")),
        ("sm_90", 128, 33, 0, Occupancy(12, "registers")),  # 1280 a warp: 12 in a quarter's 16384, so 48 warps
        ("sm_90", 32, 16, 113 * 1024, Occupancy(2, "shared memory")),
        ("sm_90", 32, 16, 113 * 1024 + 1, Occupancy(1, "shared memory")),  # 128 bytes more twice do not fit 228 KB
        ("sm_90", 32, 16, 227 * 1024, Occupancy(1, "shared memory")),
        ("sm_80", 32, 16, 163 * 1024 + 1, Occupancy(0, "shared memory")),
        ("sm_120", 32, 16, 99 * 1024, Occupancy(1, "shared memory")),
        ("sm_90", 1024, 128, 0, Occupancy(0, "registers")),
        ("sm_90", 1056, 16, 0, Occupancy(0, "threads")),
    ],
)
def test_occupancy_is_that_of_the_calculator(generation, threads, registers, shared, expected):
    assert occupancy(generation, threads, registers, shared) == expected


def test_the_occupancy_of_an_unknown_generation_is_not_guessed():
    with pytest.raises(UsageError, match="no occupancy is known for sm_75"):
        occupancy("sm_75", 32, 16, 0)


def test_an_unknown_kind_is_named():
    with pytest.raises(UsageError, match="'wmma'"):
        sass.exists("wmma", "sm_90")


@pytest.mark.parametrize(
    ("mnemonic", "kind"),
    [
        ("HGMMA.64x256x16.F32.BF16", "wgmma"),
        ("QGMMA.64x128x32.F32.E4M3.E4M3", "wgmma"),
        ("UTCHMMA.2CTA", "tcgen05.mma"),
        ("IMMA.16832.S8.S8", "mma.sync"),
        ("QMMA.SF.16832.F32.E4M3.E4M3.E8", "mma.sync"),
        ("LDG.E.128.CONSTANT", "load 16 bytes"),
        ("LDG.E.64", "load narrower"),
        ("LD.E", "load narrower"),
        ("LDGSTS.E.BYPASS.128", "cp.async"),
        ("STG.E.EF.128", "store 16 bytes"),
        ("STG.E.U16", "store narrower"),
        ("UTMALDG.3D.MULTICAST", "bulk tensor copy in"),
        ("REDG.E.ADD.F32.FTZ.RN.STRONG.GPU", "atomic"),
        ("REDUX.SUM", None),
        ("FFMA.FTZ", "fma"),
        ("HFMA2.MMA", "fma"),
        ("F2FP.BF16.F32.PACK_AB", "conversion"),
        ("IMAD.MOV.U32", None),
    ],
)
def test_a_mnemonic_is_of_its_kind(mnemonic, kind):
    (found,) = code(f"@!P0 {mnemonic} R2, R4").instructions
    assert found.kind == kind


def test_a_constant_moved_by_an_fma_is_none():
    assert sass.count(code("HFMA2.MMA R3, -RZ, RZ, 0, 0").instructions)["fma"] == 0


@pytest.mark.parametrize(
    ("modifiers", "size"), [("", 4), (".S16", 2), (".U8", 1), (".64", 8), (".LU.128", 16), (".LU", 4)]
)
def test_local_memory_is_counted_by_width(modifiers, size):
    assert sass.moved_bytes(code(f"LDL{modifiers} R2, [R1+0x10]").instructions, "local load") == size


def test_code_before_and_after_a_loop_is_not_in_it():
    assert in_loop("MUFU.EX2 R1", ".L_x_0:", "FFMA R2", "@P0 BRA `(.L_x_0)", "STG.E R2", "EXIT") == ["FFMA", "BRA"]


def test_only_the_inner_of_two_loops_counts():
    found = in_loop(".L_x_0:", "LDG.E R1", ".L_x_1:", "FFMA R2", "@P0 BRA `(.L_x_1)", "@P1 BRA `(.L_x_0)", "EXIT")
    assert found == ["FFMA", "BRA"]


def test_a_loop_that_waits_is_no_loop_of_its_own():
    wait = (".L_x_1:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4]", "@!P0 BRA `(.L_x_1)")
    found = in_loop(".L_x_0:", *wait, "HGMMA.64x64x16.F32 R2", "@P1 BRA `(.L_x_0)", "EXIT")
    assert "HGMMA.64x64x16.F32" in found
    assert in_loop(*wait, "STG.E R2", "EXIT") == []


def test_a_wait_moved_behind_the_end_belongs_to_the_loop_it_returns_to():
    found = in_loop(
        ".L_x_0:", "@!P0 BRA `(.L_x_2)", ".L_x_1:", "FFMA R2", "@P1 BRA `(.L_x_0)", "MUFU.EX2 R3", "EXIT",
        ".L_x_2:", "@!P0 BRA `(.L_x_2)", "BRA `(.L_x_1)",
    )  # fmt: skip
    assert found == ["BRA", "FFMA", "BRA", "BRA", "BRA"]


def test_a_branch_on_a_uniform_register_may_fall_through():
    found = in_loop(".L_x_0:", "BRA.U UP0, `(.L_x_1)", "FFMA R2", ".L_x_1:", "BRA `(.L_x_0)")
    assert found == ["BRA.U", "FFMA", "BRA"]


def test_the_targets_of_a_jump_table_are_followed():
    text = (
        '        /*0000*/  BRX R2 -0x1b0   (*"BRANCH_TARGETS .L_x_0,.L_x_1"*);\n'
        ".L_x_0:\n        /*0010*/  FFMA R2 ;\n        /*0020*/  @P0 BRA `(.L_x_0) ;\n        /*0030*/  EXIT ;\n"
        ".L_x_1:\n        /*0040*/  MUFU.EX2 R2 ;\n        /*0050*/  @P0 BRA `(.L_x_1) ;\n        /*0060*/  EXIT ;\n"
    )
    assert [each.mnemonic for each in loops.innermost(parsed(text))] == ["FFMA", "BRA", "MUFU.EX2", "BRA"]
