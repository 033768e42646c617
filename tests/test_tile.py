"""CUDA Tile's kernels: recorded and compiled without a GPU where cuTile is installed, else left out, saying how."""

from pathlib import Path

import pytest

from rooftest import domain
from rooftest.compiled import build, compare, reading
from rooftest.compiled.expect import Expected
from rooftest.rows import parse_row, read_rows
from rooftest.spec import Workload

pytest_plugins = "pytester"

FOLDER = Path(__file__).parent
ROW = read_rows(FOLDER.parent / "pyproject.toml")["cutile"]
MISSING = domain.absent(ROW)
GENERATIONS = ("sm_80", "sm_90", "sm_100", "sm_120")
with_cutile = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory):
    """A store of our own, so that the tests compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("store")))
        yield


def square(n=4096, **sizes):
    return Workload("square", {"M": n, "N": n, "K": n} | sizes, "nn")


def row(function):
    table = {"op": "gemm", "call": f"tile_kernels.py:{function}", "args": {"c": "out"}}
    return parse_row(function, table, "test", str(FOLDER))


@with_cutile
def test_a_launch_is_recorded_as_the_launcher_makes_it():
    (launch,) = build.launches(ROW, square(), "bfloat16", "nt", "sm_90")
    assert launch.function == "rooftest_kernels.gemm.cutile:gemm_tiles"
    assert launch.grid == [132]
    assert launch.signature == dict.fromkeys(("a", "b", "c", "c0", "bias"), "bfloat16 3-D") | {
        "B": "int32", "K": "int32", "alpha": "float32", "beta": "float32",
    }  # fmt: skip
    assert launch.constants | {"BN": "256", "A_TRANS": "False", "B_TRANS": "True", "C0": "False"} == launch.constants
    assert launch.options["num_worker_warps"] == 8


@with_cutile
def test_divisibility_is_that_of_the_sizes_and_addresses():
    (launch,) = build.launches(ROW, square(), "bfloat16", "nn", "sm_90")
    seen = launch.attributes["a"]
    assert seen["base_addr_divisible_by"] == 16
    assert seen["stride_constant"] == [None, None, 1]
    assert (seen["stride_divisible_by"], seen["shape_divisible_by"]) == ([8, 8, 1], [1, 16, 16])
    (launch,) = build.launches(ROW, square(K=4095), "bfloat16", "nn", "sm_90")
    seen = launch.attributes["a"]
    assert (seen["stride_divisible_by"], seen["shape_divisible_by"]) == ([8, 1, 1], [1, 16, 1])


@with_cutile
def test_each_generation_has_code_of_its_own():
    found = [build.build(row("right"), square(), "float16", "nn", name)[0] for name in GENERATIONS]
    assert len({each.cubin for each in found}) == len(GENERATIONS)
    (facts,) = reading.read(found[1], "sm_90")
    assert (facts.kernel, facts.generation, facts.compiler.split()[0]) == ("scaled", "sm_90", "tileiras")
    assert facts.registers > 0
    assert facts.threads == 128


@with_cutile
def test_what_does_not_compile_is_said_in_one_line():
    words = "tile_kernels.py:scaled does not compile for sm_90: .*power of two"
    with pytest.raises(build.CompileError, match=words) as it:
        build.build(row("mistaken"), square(), "bfloat16", "nn", "sm_90")
    assert "\n" not in str(it.value)


@with_cutile
def test_other_code_without_ptx_is_not_the_same():
    one, two = (build.build(row("right"), square(n), "float16", "nn", "sm_90")[0] for n in (4096, 4095))
    assert one.cubin != two.cubin
    (facts,) = reading.read(one, "sm_90")
    assert [f.verdict for f in compare.compared([(one, facts)], [(one, facts)], Expected())] == ["UNCHANGED"]
    assert [f.verdict for f in compare.compared([(one, facts)], [(two, facts)], Expected())] == ["PASS"]


@with_cutile
@pytest.mark.parametrize("size", [(1, 1), (8, 5), (9, 3), (17, 16)])
def test_every_tile_has_one_place_in_the_order(size):
    from rooftest_kernels.gemm import cutile

    tiles_m, tiles_n = size
    found = [cutile.grouped(tile, tiles_m, tiles_n, 8) for tile in range(tiles_m * tiles_n)]
    assert sorted(found) == [(m, n) for m in range(tiles_m) for n in range(tiles_n)]
    assert len({n for _, n in found[:8]}) == 1 or tiles_m < 8


def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it():
    present = {"pytest": "pip install pytest"}
    table = {"op": "gemm", "call": "ops.py:mm", "requires": present | {"absent-one": "pip get it"}}
    mine = parse_row("acme.mm", table, "test")
    assert domain.absent(mine) == "requires absent-one, which is not installed here: pip get it"
    assert domain.undecidable(mine, "cuda:0") == domain.absent(mine)
    assert domain.undecidable(mine, "cpu") == "runs on cuda only, this is cpu"
    assert domain.absent(parse_row("acme.mm", table | {"requires": present}, "test")) is None


def test_a_kernel_whose_package_is_missing_is_collected_and_left_out(pytester):
    pytester.makepyprojecttoml("""
        [tool.rooftest.kernels."acme.mm"]
        op = "gemm"
        call = "nowhere.py:mm"
        requires = { absent-one = "pip install 'acme[absent]'" }
        args = { c = "out" }
        compiled = { sm_90 = { spills = 0 } }
    """)
    pytester.makepyfile(test_it='import rooftest\n@rooftest.checks(op="gemm")\ndef test_it(check): check()')
    result = pytester.runpytest_subprocess("-m", "compiled", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*requires absent-one, which is not installed here: pip install 'acme?absent?'"])
