"""What machine code asks of global memory for a multiply-add: by its instructions, and of our own kernels by hand."""

from pathlib import Path

import pytest

from rooftest.compiled import asked, build, reading, sass
from rooftest.rows import read_rows

ROWS = read_rows(Path(__file__).parents[1] / "pyproject.toml")
FMA = "FFMA R1, R2, R3, R1"
WIDE, NARROW, ASYNC = "LDG.E.128 R4, [R8]", "LDG.E.U16 R4, [R8]", "@P0 LDGSTS.E.BYPASS.LTC128B.128 [R4], [R8]"
WGMMA = "HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24"
MACS = 64 * 256 * 16 / 4  # of one warp in it
COPY = "UTMALDG.3D [UR8], [UR4]"
PTX = """
    mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 49152;
    @%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], 32768;
    mbarrier.arrive.shared::cta.b64 _, [%r7];
"""


def loop(*lines, name=1):
    return (f".L_{name}:", *lines, f"@P0 BRA `(.L_{name})")


def code(*lines):
    head = '\t.section\t.text.k,"ax",@progbits\n        .other  k,@"STO_CUDA_ENTRY STV_DEFAULT"\n'
    body = "".join(f"{each}\n" if each.endswith(":") else f"        /*0000*/     {each} ;\n" for each in lines)
    return sass.parse(head + body)["k"]


def test_a_thread_asks_for_what_its_loads_are_wide_behind_a_predicate_too():
    assert asked.per_mac(code(*loop(FMA, WIDE, NARROW, ASYNC)), 128) == 16 + 2 + 16
    assert asked.per_mac(code(*loop(FMA, FMA, "LDG.E R4, [R8]")), 128) == 2
    assert asked.per_mac(code(*loop(FMA, "LDG.E.ENL2.256 R4, R8, [R8]")), 128) == 32
    assert asked.per_mac(code(*loop(WGMMA, WIDE)), 128) == 32 * 16 / MACS


def test_what_is_loaded_outside_the_loop_that_multiplies_is_not_counted_and_of_two_such_loops_the_one_that_asks_less():
    assert asked.per_mac(code(WIDE, *loop(FMA, NARROW), WIDE), 128) == 2
    assert asked.per_mac(code(*loop(FMA, WIDE), *loop(FMA, FMA, WIDE, name=2)), 128) == 8


def test_a_stage_is_shared_by_the_warps_that_may_multiply():
    together = code(*loop(WGMMA, COPY))
    assert asked.per_mac(together, 256, PTX) == 32768 / (8 * MACS)  # the smaller of two stages
    apart = code(*loop(COPY), *loop(WGMMA, WGMMA, name=2))
    assert asked.per_mac(apart, 384, PTX) == 32768 / (8 * 2 * MACS)  # the warpgroup that copies takes no part


@pytest.mark.parametrize(
    ("lines", "ptx"),
    [
        (loop(WGMMA, COPY), None),
        (loop(WGMMA, COPY), "mbarrier.arrive.expect_tx.shared.b64 _, [%r1], %r2;"),
        (loop(FMA), PTX),
        ((FMA, WIDE), PTX),
        (loop(WIDE), PTX),
        (loop("UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR12], tmem[UR14], idesc[UR15], UP0", COPY), PTX),
    ],
)
def test_what_is_not_known_is_not_said(lines, ptx):
    assert asked.per_mac(code(*lines), 384, ptx) is None


def test_of_several_kernels_the_one_that_asks_least_may_have_done_the_work():
    assert asked.least([3.0, 2.0], flop=8, fewest=7) == 8
    assert asked.least([3.0, 2.0], flop=8, fewest=9) == 9  # each input once, whatever hangs over
    for kernels, flop in (([3.0, None], 8), ([], 8), ([3.0], 0)):
        assert asked.least(kernels, flop, fewest=7) is None


@pytest.mark.parametrize(
    (
        "name",
        "rows",
        "columns",
    ),  # of the tile of C: an element of A is read for each column of tiles, of B for each row
    [
        ("step1_naive", 1, 1),
        ("step2_shared", 32, 32),
        ("step3_register", 128, 128),
        ("step4_dot", 128, 128),
        ("step5_pipeline", 128, 256),
        ("step6_specialised", 128, 256),
        ("step7_persistent_triton", 128, 256),
        ("step8_overlapped", 128, 256),
    ],
)
def test_a_tile_of_c_asks_for_its_rows_of_a_and_its_columns_of_b(name, rows, columns):
    row = ROWS[name]
    (square,) = (each for each in row.spec.workloads if each.name == "square-2048")
    made = build.build(row, square, "bfloat16", "nn", "sm_90")
    (found,) = (facts.bytes_per_mac for each in made for facts in reading.read(each, "sm_90"))
    assert found == 2 / rows + 2 / columns
