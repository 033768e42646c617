"""Kernels compiled without a GPU: what a launcher launches is recorded, and a row's promises of the code are kept."""

import json
import os
import re
from pathlib import Path

import pytest

from rooftest.compiled import build, expect, reading
from rooftest.compiled.expect import Expected
from rooftest.errors import UsageError
from rooftest.rows import parse_row, read_rows
from rooftest.spec import Workload

pytest_plugins = "pytester"

FOLDER = Path(__file__).parent
ROWS = read_rows(FOLDER.parent / "pyproject.toml")
SQUARE = Workload("square", {"M": 8192, "N": 8192, "K": 8192}, "nn")
HERE = (SQUARE, "bfloat16", "nn")


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory):
    """A store of our own, so that the tests compile; Triton's too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("store")))
        yield


def row(function, file="capture_kernels.py", folder=FOLDER):
    return parse_row(function, {"op": "gemm", "call": f"{file}:{function}", "args": {"c": "out"}}, "test", str(folder))


def facts(function, generation="sm_90"):
    return [each for b in build.build(row(function), *HERE, generation) for each in reading.read(b, generation)]


def test_a_launch_is_recorded_as_the_launcher_makes_it():
    (launch,) = build.launches(ROWS["step6_specialised"], *HERE, "sm_90")
    assert launch.function == "rooftest_kernels.gemm.step6_specialised:gemm_specialised"
    assert launch.grid == [64, 32, 1]
    assert launch.descriptors["a_desc"]["shape"] == [1, 8192, 8192]
    assert launch.descriptors["b_desc"]["block"] == [1, 64, 256]
    assert launch.signature["a_desc"].startswith("tensordesc<bf16[1, 128, 64],")
    assert launch.signature["M"] == "i32"
    assert launch.constants["BLOCK_N"] == "256"
    assert launch.options["num_warps"] == 8


def test_divisibility_is_that_of_the_sizes_and_addresses():
    (launch,) = build.launches(row("right"), *HERE, "sm_90")
    assert {n for n, each in launch.attributes.items() if ["tt.divisibility", 16] in each} == set("MNK") | {
        "a_ptr", "b_ptr", "c_ptr",
    }  # fmt: skip
    odd = Workload("odd", {"M": 8192, "N": 8192, "K": 8191}, "nn")
    (launch,) = build.launches(row("right"), odd, "bfloat16", "nn", "sm_90")
    assert "K" not in launch.attributes


def test_generations_one_after_the_other_have_their_own_grid_and_code():
    persistent = ROWS["step7_persistent_triton"]
    grids = [build.launches(persistent, *HERE, name)[0].grid for name in ("sm_80", "sm_90", "sm_100", "sm_120")]
    assert grids == [[108], [132], [148], [170]]
    found = {name: facts("right", name)[0] for name in ("sm_80", "sm_90", "sm_100")}
    assert found["sm_80"].instructions["mma.sync"] > 0
    assert found["sm_90"].instructions["wgmma"] > 0
    assert found["sm_100"].instructions["tcgen05.mma"] > 0


def test_every_launch_of_a_call_is_built():
    assert [b.launch.function.split(":")[1] for b in build.build(row("twice"), *HERE, "sm_90")] == ["zero", "product"]


def test_every_configuration_of_an_autotuner_is_built():
    assert [b.launch.constants["BLOCK"] for b in build.build(row("tunes"), *HERE, "sm_90")] == ["64", "128"]


def test_nothing_of_tritons_gives_nothing():
    assert build.build(row("library"), *HERE, "sm_90") == []


@pytest.mark.parametrize(
    ("function", "generation", "words"),
    [
        ("wrong", "sm_90", r"mistaken does not compile for sm_90: .*nothing_of_the_name is not defined"),
        ("reads", "sm_90", "the launcher reads the values of a tensor"),
        ("spills", "sm_90", "capture_kernels.py:product does not compile for sm_90: PTXASError: .*register"),
        ("ends", "sm_90", "the launcher ended the process .exit code 0.: no GPU of mine"),
        ("missing", "sm_90", "has no 'missing'"),
    ],
)
def test_what_does_not_compile_is_said_in_one_line(function, generation, words):
    with pytest.raises(build.CompileError, match=words) as raised:
        build.build(row(function), *HERE, generation)
    assert "\n" not in str(raised.value)


def test_a_compiler_that_aborts_is_one_finding_and_the_next_kernel_compiles():
    with pytest.raises(build.CompileError, match=r"SIGABRT.*Cannot select: intrinsic %llvm.nvvm.wgmma"):
        build.build(ROWS["step6_specialised"], *HERE, "sm_100")
    assert build.build(row("zeroed"), *HERE, "sm_100")


def test_more_shared_memory_than_a_cta_may_have_is_said():
    with pytest.raises(build.CompileError, match=r"can't be launched on sm_120: it needs .* bytes of shared memory"):
        build.build(ROWS["step5_pipeline_triton"], *HERE, "sm_120")


def test_an_unknown_generation_is_named():
    with pytest.raises(UsageError, match=r"'sm_91' is none of sm_80, .*; did you mean sm_90"):
        build.build(row("zeroed"), *HERE, "sm_91")


def test_what_was_built_is_kept_until_its_file_changes(tmp_path, monkeypatch):
    path = tmp_path / "capture_kernels.py"
    path.write_text((FOLDER / path.name).read_text())
    mine = row("zeroed", folder=tmp_path)
    first = build.build(mine, *HERE, "sm_90")
    asked, server = [], build._server()
    monkeypatch.setattr(build, "_server", lambda: asked.append(1) or server)
    assert build.build(mine, *HERE, "sm_90") == first
    assert not asked
    path.write_text(path.read_text().replace("0.0)", "1.0)"))
    assert build.build(mine, *HERE, "sm_90")[0].cubin != first[0].cubin
    assert asked


def test_what_is_built_ahead_on_two_cores_is_found_later_and_what_fails_is_said_then(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    ask, now, most = build._Server.ask, [], []

    def counted(server, request):
        now.append(server)
        most.append(len(set(now)))
        try:
            return ask(server, request)
        finally:
            now.remove(server)

    monkeypatch.setattr(build._Server, "ask", counted)
    build.ahead([(row(name), *HERE, "sm_90") for name in ("right", "zeroed", "wrong")])
    assert max(most) == 2
    before = len(most)
    assert build.build(row("right"), *HERE, "sm_90")
    assert build.build(row("zeroed"), *HERE, "sm_90")
    assert len(most) == before
    with pytest.raises(build.CompileError, match="nothing_of_the_name"):
        build.build(row("wrong"), *HERE, "sm_90")


def test_a_kernel_that_spills_breaks_the_promise_of_none():
    promise = Expected(spills=0)
    assert expect.broken(promise, facts("right", "sm_80")) == []
    (line,) = expect.broken(promise, facts("spills", "sm_80"))
    assert line.startswith("product spills ")
    assert line.endswith("its row says at most 0")


def test_each_promise_is_seen_broken():
    promises = {
        Expected(registers=8): "product takes .* registers a thread, its row says at most 8",
        Expected(shared=1024): "product takes .* bytes of shared memory a CTA, its row says at most 1024",
        Expected(ctas_per_sm=9): "product: an SM holds . of its CTAs .*, its row says at least 9",
        Expected(needs=("setmaxnreg",)): "product has no setmaxnreg",
    }
    found = facts("right")
    for promise, words in promises.items():
        (line,) = expect.broken(promise, found)
        assert re.fullmatch(words, line)
    kept = Expected(registers=255, shared=232448, ctas_per_sm=1, needs=("wgmma", "cp.async"))
    assert expect.broken(kept, found) == []


def test_a_promise_about_one_kernel_leaves_the_others_alone():
    found = facts("twice")
    promise = Expected(kernel="zero", needs=("wgmma",))
    assert expect.broken(promise, expect.meant(promise, found)) == ["zero has no wgmma"]
    promise = Expected(kernel="prod*", needs=("wgmma",))
    assert [each.kernel for each in expect.meant(promise, found)] == ["product"]


def test_a_kernel_without_a_product_has_no_wgmma():
    assert expect.broken(Expected(needs=("wgmma",)), facts("zeroed")) == ["zero has no wgmma"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (3, "compiled must be a table"),
        ({"sm90": {}}, "generation 'sm90' is none of .*; did you mean sm_90"),
        ({"sm_90": 0}, "compiled.sm_90 must be a table"),
        ({"sm_90": {"spill": 0}}, "key 'spill' is none of .*; did you mean spills"),
        ({"sm_90": {"spills": -1}}, "spills must be a whole number"),
        ({"sm_90": {"registers": True}}, "registers must be a whole number"),
        ({"sm_90": {"needs": ["gmma"]}}, "no kind of instruction is called 'gmma'"),
        ({"sm_90": {"kernel": 3}}, "kernel must be the name of a kernel"),
        ({"sm_90": {"needs": 3}}, "needs must be a list"),
        ({"sm_80": {"needs": ["wgmma"]}}, "needs 'wgmma', which sm_80 does not have"),
    ],
)
def test_a_row_that_promises_what_there_is_not_is_refused(table, words):
    with pytest.raises(UsageError, match=words):
        parse_row("acme.mm", {"op": "gemm", "call": "a:b", "compiled": table}, "test")


def test_the_gate_fails_with_kernel_generation_promise_and_measure(pytester):
    pytester.makepyprojecttoml(f"""
        [tool.rooftest.kernels."acme.mm"]
        op = "gemm"
        call = "{FOLDER}/capture_kernels.py:right"
        args = {{ c = "out" }}
        compiled = {{ sm_90 = {{ spills = 0, needs = ["wgmma"] }}, sm_100 = {{ needs = ["setmaxnreg"] }} }}
        [tool.rooftest.kernels."acme.other"]
        op = "gemm"
        call = "{FOLDER}/capture_kernels.py:zeroed"
        args = {{ c = "out" }}
        compiled = {{ sm_90 = {{ kernel = "product", spills = 0 }} }}
        [tool.rooftest.kernels."acme.cublas"]
        op = "gemm"
        call = "{FOLDER}/capture_kernels.py:library"
        args = {{ c = "out" }}
        compiled = {{ sm_90 = {{}} }}
    """)
    pytester.makepyfile(test_it='import rooftest\n@rooftest.checks(op="gemm")\ndef test_it(check): check()')
    result = pytester.runpytest_subprocess("-m", "compiled", "--roof-results=run.json")
    result.assert_outcomes(failed=2, skipped=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines([
        "gemm: acme.mm compiled for sm_100, square-2048 in bfloat16-nn: product has no setmaxnreg",
        "  reproduce: pytest -m compiled -k gemm/acme.mm/compiled/bfloat16-nn",
        "gemm: acme.cublas compiled for sm_90, *:library launches no kernel of Triton or CUDA Tile: nothing to compile",
        "*INVALID*sm_90: no kernel 'product' among those launched*",
    ])  # fmt: skip
    run = json.loads((pytester.path / "run.json").read_text())
    (mine,) = (r for r in run["conformance"] if r["kernel"] == "acme.mm")
    assert {"spill_store_bytes", "launch"} <= mine["compiled"][0].keys()
    # 2048^3 multiply-adds on 132 SMs that do 2048 each a cycle; of sm_100's matrix unit no shape is known.
    assert mine["bound"][0]["cycles"]["tensor"] == pytest.approx(2048**3 / 132 / 2048)
    assert mine["bound"][1]["cycles"] == {}
    # A and B in 2 bytes; a tile of 128 x 128 reads its rows of A and its columns of B.
    assert mine["bound"][0]["read_bytes"] == {"fewest": 2 * 2 * 2048**2, "asked": 16 * 2 * 2 * 2048**2}
    assert mine["bound"][1]["read_bytes"]["asked"] is None
