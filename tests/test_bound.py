"""The least cycles that machine code can take: what each instruction costs, and no measurement below any bound."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rooftest.compiled import bound, sass

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "device" / "bound_table.py"
RUNS = sorted((ROOT / "results" / "runs").glob("h200-*.json"))
RUN = ROOT / "results" / "runs" / "h200-2026-12-01-speed-2.json"
TOLD = ROOT / "results" / "bounds" / "h200.md"  # what TABLE printed of all of RUNS


def code(*lines):
    head = '\t.section\t.text.k,"ax",@progbits\n        .other  k,@"STO_CUDA_ENTRY STV_DEFAULT"\n'
    body = "".join(f"{each}\n" if each.endswith(":") else f"        /*0000*/     {each} ;\n" for each in lines)
    return sass.parse(head + body)["k"]


FMA = "FFMA R1, R2, R3, R1"


def test_a_thread_multiplies_once_and_a_load_from_shared_memory_takes_a_cycle():
    each = bound.per_mac(code(FMA, "LDS.128 R4, [R9]", "MUFU.EX2 R5, R6", "IADD3 R7, R7, R8, RZ"), "sm_90")
    # 32 multiply-adds: 128 lanes an SM do them in 1/4 cycle, and four schedulers issue four instructions in a cycle.
    assert each == pytest.approx(
        {"fma": 0.25 / 32, "issue": 1 / 32, "shared memory": 1 / 32, "special function": 2 / 32}
    )
    assert bound.per_mac(code(FMA), "sm_80")["fma"] == pytest.approx(0.5 / 32)  # 64 lanes
    assert bound.cycles(each, flop=2 * 32 * 132, sm_count=132) == pytest.approx(
        {"special function": 2, "issue": 1, "shared memory": 1, "fma": 0.25}
    )


@pytest.mark.parametrize(
    ("mnemonic", "macs", "cycles"),
    [
        ("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24", 64 * 256 * 16 / 4, 64 * 256 * 16 / 4 / 2048),
        ("QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24", 64 * 128 * 32 / 4, 64 * 128 * 32 / 4 / 4096),
        ("HMMA.16816.F32 R4, R8, R12, R4", 16 * 8 * 16, 1.0),
        ("HMMA.1688.F32.TF32 R4, R8, R12, R4", 16 * 8 * 8, 1.0),
    ],
)
def test_the_matrix_unit_multiplies_what_its_shape_says(mnemonic, macs, cycles):
    each = bound.per_mac(code(mnemonic, FMA, "LDSM.16.M88.4 R4, [R9]"), "sm_90")
    assert each["tensor"] * macs == pytest.approx(cycles)
    assert each["issue"] * macs == pytest.approx(3 / 4)
    assert each["shared memory"] * macs == pytest.approx(4)
    assert "fma" not in each  # an epilogue's


def test_the_cheapest_block_counts_and_what_a_predicate_may_pass_over_does_not():
    dear = (FMA, "LDS R4, [R9]", "LDS R4, [R9]")
    two = code(*dear, ".L_1:", FMA, "@P0 LDS R4, [R9]", "@P0 BRA `(.L_1)")
    assert bound.per_mac(code(*dear), "sm_90")["shared memory"] == pytest.approx(2 / 32)
    assert bound.per_mac(two, "sm_90")["shared memory"] == 0
    assert bound.per_mac(two, "sm_90")["issue"] == pytest.approx(3 / 4 / 32)  # issued whatever the predicate


@pytest.mark.parametrize(
    ("lines", "generation"),
    [
        (("UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR12], tmem[UR14], idesc[UR15], UP0", FMA), "sm_100"),
        (("IGMMA.64x64x32.S8.S8 R24, gdesc[UR8], R24",), "sm_90"),
        (("IADD3 R7, R7, R8, RZ",), "sm_90"),
        ((FMA,), "sm_120"),
        ((FMA,), "sm_86"),
    ],
)
def test_what_is_not_known_gives_no_bound(lines, generation):
    assert bound.per_mac(code(*lines), generation) == {}


def test_of_several_kernels_the_cheapest_may_have_done_the_work():
    slow, fast = {"fma": 2.0, "issue": 1.0}, {"fma": 1.0, "issue": 1.5}
    assert bound.least([slow, fast], flop=2, sm_count=1) == {"issue": 1.5, "fma": 1.0}
    assert bound.least([slow, {}], flop=2, sm_count=1) == bound.least([], flop=2, sm_count=1) == {}


def table(tmp_path, share, moved=1.0):
    """The table of some kernels of a run on the H200, its cycles and bytes moved multiplied by `share` and `moved`."""
    run = json.loads(RUN.read_text(encoding="utf-8"))
    names = ("step3_register", "step4_dot", "step6_specialised")
    mine = [b for b in run["benchmarks"] if b["extra_info"]["id"]["kernel"] in names]
    for each in mine:
        each["extra_info"]["clocks"]["cycles_median"] *= share
        each["extra_info"]["moved"]["bytes"] *= moved
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"benchmarks": mine}))
    return subprocess.run(
        [sys.executable, TABLE, "square-2048", path], capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_no_measurement_is_below_its_bound_and_one_that_were_would_be_told(tmp_path):
    done = table(tmp_path, 1.0)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0 bounds above what was measured"), done.stderr
    assert done.stdout.splitlines()[-2] == "0 moved more than their code asks for"
    (line,) = (each for each in done.stdout.splitlines() if each.startswith("| step6_specialised | square-2048"))
    assert line.split(" | ")[-2] == "12.0"  # 8 columns of tiles read A, 16 rows of them B
    done = table(tmp_path, 0.7)  # step 3 issues at 74 % of what an SM can, step 6 multiplies at 76 %
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "2 bounds above what was measured")


def test_more_moved_than_asked_for_would_be_told(tmp_path):
    done = table(tmp_path, 1.0, moved=1e6)  # an L2 of 60 MB holds all of it: 2 to 12 KB of 16 MB were moved
    assert done.returncode == 1
    assert done.stdout.splitlines()[-2] == "3 moved more than their code asks for"


def test_each_series_in_the_committed_table_took_longer_than_its_bound_in_every_run():
    spec = importlib.util.spec_from_file_location("bound_table", TABLE)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found = script.measured("*", RUNS).items()
    took = {f"{name} {workload} {dtype}-{layout}": cycles for (name, workload, dtype, layout), (cycles, *_) in found}
    lines = [each.strip("| ").split(" | ") for each in TOLD.read_text().splitlines() if each.startswith("| step")]
    assert len(lines) == 58  # docs/compiled.md says so
    for name, workload, _, *pipes, _, asks, _ in lines:
        assert max(float(cell) for cell in pipes if cell != "-") <= took[f"{name} {workload}"]
        assert float(asks) >= 1
