"""Machine code compared with another revision's, without a GPU: what is the same, what is worse, what a row allows."""

import json
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rooftest import cli, conformance, run
from rooftest.compiled import against, build, compare, elf
from rooftest.compiled.expect import Expected
from rooftest.compiled.facts import Facts
from rooftest.compiled.occupancy import Occupancy
from rooftest.rows import parse_row
from rooftest.spec import Workload

pytest_plugins = "pytester"
# pytester forgets what a run inside this process imported; an exception of another import would be another one, and
# torch can't be imported twice.
KEPT = (against, conformance, run, torch)

KERNEL = """import triton
import triton.language as tl

@triton.jit
def product(a_ptr, b_ptr, c_ptr, N, K, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, DEPTH)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, DEPTH):
        a = tl.load(a_ptr + rows[:, None] * K + k + depth[None, :])
        b = tl.load(b_ptr + (k + depth[:, None]) * N + columns[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(c_ptr.dtype.element_ty))

def matmul(a, b, out):
    (M, K), N = a.shape, b.shape[1]
    product[(M // 128, N // 128)](a, b, out, N, K, BLOCK=128, DEPTH=64, num_warps=8)
"""
LINES = KERNEL.replace("@triton.jit", "# A line more: only line numbers differ.\n@triton.jit")
FEW_REGISTERS = KERNEL.replace("num_warps=8", "num_warps=8, maxnreg=64")
NO_MATRIX_UNIT = KERNEL.replace("tl.dot(a, b, acc)", "acc + tl.sum(a.to(tl.float32) * tl.trans(b), 1)[:, None]")
BROKEN = KERNEL.replace("tl.dot(a, b, acc)", "tl.dot(a, nothing_of_the_name, acc)")
ROW = """[tool.rooftest.kernels."{name}"]
op = "gemm"
call = "ops.py:matmul"
args = {{ c = "out" }}
dtypes = ["bfloat16"]
layouts = ["nn"]
compiled = {{ {generation} = {{ {limits} }} }}
"""
HERE = (Workload("square", {"M": 2048, "N": 2048, "K": 2048}, "nn"), "bfloat16", "nn")


@pytest.fixture(scope="module", autouse=True)
def kept(tmp_path_factory):
    """What is built is kept for this module: most of its tests begin with the same kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("store")))
        patch.setenv("TRITON_HOME", str(tmp_path_factory.mktemp("triton")))
        yield


def built(folder, text, side=None):
    (folder / "ops.py").write_text(text)
    row = parse_row("acme.mm", {"op": "gemm", "call": "ops.py:matmul", "args": {"c": "out"}}, "test", str(folder))
    (found,) = build.build(row, *HERE, "sm_80", side)
    return found


# --- the same code --------------------------------------------------------------------------------------------------


def test_line_numbers_change_a_cubin_but_not_the_digest_of_its_code(tmp_path):
    one, two = built(tmp_path, KERNEL), built(tmp_path, LINES)
    assert one.cubin != two.cubin
    assert elf.code_digest(one.cubin, "one") == elf.code_digest(two.cubin, "two")
    other = built(tmp_path, KERNEL.replace("k + depth", "k + 1 + depth"))
    assert elf.code_digest(one.cubin, "one") != elf.code_digest(other.cubin, "other")


def test_the_same_ptx_is_the_same_code_though_its_assembler_named_registers_otherwise(tmp_path, monkeypatch):
    one, two, other = (built(tmp_path, text) for text in (KERNEL, LINES, KERNEL.replace("k + depth", "k + 1 + depth")))
    digests = iter("abcd")
    monkeypatch.setattr(elf, "code_digest", lambda *_: next(digests))
    assert one.ptx != two.ptx
    assert [f.verdict for f in compare.compared([(one, facts())], [(two, facts())], Expected())] == ["UNCHANGED"]
    assert [f.verdict for f in compare.compared([(one, facts())], [(other, facts())], Expected())] == ["PASS"]


def test_the_same_files_in_another_tree_are_not_built_again_and_changed_ones_are(tmp_path, monkeypatch):
    head, base = tmp_path / "head", tmp_path / "base"
    for folder in (head, base):
        folder.mkdir()
    first = built(head, KERNEL)
    server, asked = build._server(), []
    monkeypatch.setattr(build, "_server", lambda: asked.append(1) or server)
    assert built(base, KERNEL, build.Side(base, head)) == first
    assert not asked
    assert built(base, NO_MATRIX_UNIT, build.Side(base, head)).cubin != first.cubin
    assert built(head, KERNEL) == first  # base has not taken its place
    assert len(asked) == 1
    (base / "triton.py").write_text("what might now be imported in its place")
    built(base, KERNEL, build.Side(base, head))
    assert len(asked) == 2


def test_a_file_that_the_launcher_reads_decides_too(tmp_path):
    tuned = KERNEL.replace("def matmul", "DEPTH = int(open(__file__ + '.txt').read())\n\ndef matmul")
    tuned = tuned.replace("DEPTH=64", "DEPTH=DEPTH")
    (tmp_path / "ops.py.txt").write_text("64")
    first = built(tmp_path, tuned)
    (tmp_path / "ops.py.txt").write_text("32")
    assert (first.launch.constants["DEPTH"], built(tmp_path, tuned).launch.constants["DEPTH"]) == ("64", "32")


# --- the rule -------------------------------------------------------------------------------------------------------


def facts(**changes):
    held, counts = changes.pop("held", 2), changes.pop("counts", {"wgmma": 8})
    made = Facts("mm", "sm_90", "triton", 128, 100, 0, 0, 0, 0, 4096, 9000, Occupancy(held, "registers"), counts)
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("changes", "words", "allowed"),
    [
        ({"spill_store_bytes": 8}, "mm spills 8 bytes a thread, base 0", Expected(spills=8)),
        ({"counts": {"mma.sync": 64}}, "mm has no wgmma, base 8", Expected(needs=("mma.sync",))),
        ({"held": 1}, "an SM holds 1 of its CTAs .of 128 threads, limited .*base 2", Expected(ctas_per_sm=1)),
        ({"registers": 168, "code_bytes": 10**6, "counts": {"wgmma": 4, "barrier": 9}}, None, Expected()),
        ({"held": 1, "threads": 256}, None, Expected()),
    ],
)  # fmt: skip
def test_what_is_worse_is_said_and_a_limit_of_the_row_decides_instead(changes, words, allowed):
    import re

    lines = compare.worse(facts(), facts(**changes), Expected())
    assert len(lines) == (words is not None)
    assert all(re.search(words, line) for line in lines)
    assert compare.worse(facts(), facts(**changes), allowed) == []
    assert compare.worse(facts(**changes), facts(**changes), Expected()) == []


@pytest.mark.parametrize(
    ("row", "verdicts"),
    [
        (Expected(), ["PASS", "PASS"]),
        (Expected(needs=("wgmma", "mma.sync")), ["PASS", "PASS"]),  # one of the kernels has each
        (Expected(needs=("tcgen05.mma",)), ["FAIL", "FAIL"]),
        (Expected(registers=150), ["FAIL", "PASS"]),
        (Expected(kernel="other", registers=150), ["PASS", "PASS"]),
        (Expected(kernel="other", needs=("wgmma",)), ["PASS", "FAIL"]),
        (Expected(spills=0), ["PASS", "FAIL"]),
        (Expected(ctas_per_sm=3), ["FAIL", "FAIL"]),
    ],
)
def test_changed_code_that_breaks_a_promise_of_its_row_does_not_read_pass(monkeypatch, row, verdicts):
    monkeypatch.setattr(compare, "_same", lambda *_: False)
    launch = SimpleNamespace(launch=SimpleNamespace(constants={}, options={}))
    head = [
        (launch, facts(kernel="mm", registers=168)),
        (launch, facts(kernel="other", counts={"mma.sync": 8}, spill_store_bytes=8)),
    ]
    both = [(launch, facts(kernel=each.kernel, counts=each.instructions, spill_load_bytes=16)) for _, each in head]
    assert [each.verdict for each in compare.compared(both, head, row)] == verdicts
    monkeypatch.setattr(compare, "_same", lambda *_: True)
    assert [each.verdict for each in compare.compared(both, head, row)] == ["UNCHANGED"] * 2


def test_kernels_are_paired_by_constants_then_by_name_then_by_order(monkeypatch):
    monkeypatch.setattr(compare, "_same", lambda *_: False)

    def code(name, block, counts=None):
        launch = SimpleNamespace(constants={"BLOCK": block}, options={})
        return SimpleNamespace(launch=launch), facts(kernel=name, counts=counts or {}, registers=int(block))

    def paired(base, head, expected=None):
        found = compare.compared(base, head, expected or Expected())
        told = [
            (f.base and (f.base.kernel, f.base.registers), f.head and (f.head.kernel, f.head.registers)) for f in found
        ]
        return told, [f.verdict for f in found]

    base = [code("mm", "64"), code("mm", "128"), code("split", "1")]
    assert paired(base, [code("mm", "128"), code("mm", "32"), code("joined", "1"), code("new", "2")]) == (
        [
            (("mm", 128), ("mm", 128)), (("mm", 64), ("mm", 32)), (("split", 1), ("joined", 1)), (None, ("new", 2)),
        ],
        ["PASS"] * 4,
    )  # fmt: skip
    fast = [code("mm", "64", {"wgmma": 1}), code("other", "1", {"mma.sync": 1})]
    assert paired(fast, [code("other", "1", {"mma.sync": 1})])[1] == ["PASS", "FAIL"]
    named = Expected(kernel="o*", needs=("mma.sync",))
    assert paired(fast, [code("other", "1", {"mma.sync": 1})], named)[1] == ["PASS", "FAIL"]


# --- from end to end ------------------------------------------------------------------------------------------------


class Repository:
    """A git repository with a kernel, its row and a test."""

    def __init__(self, pytester):
        self.pytester, self.path = pytester, pytester.path
        self.git("init", "-q")
        (self.path / ".gitignore").write_text("__pycache__\nresults\n")
        (self.path / "test_acme.py").write_text(
            'import rooftest\n@rooftest.checks("acme.mm")\ndef test_it(check): check()\n'
        )

    def git(self, *words):
        words = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *words)
        subprocess.run(["git", *words], cwd=self.path, capture_output=True, check=True)

    def commit(self, kernel, name="acme.mm", generation="sm_80", limits=""):
        (self.path / "ops.py").write_text(kernel)
        (self.path / "pyproject.toml").write_text(ROW.format(name=name, generation=generation, limits=limits))
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a commit")

    def run(self, *options):
        words = ("-p", "no:cacheprovider", "-m", "compiled", "--roof-results=results/r.json")
        result = self.pytester.runpytest_inprocess(*words, *(options or ("--roof-against=HEAD~1",)))
        (record,) = json.loads((self.path / "results" / "r.json").read_text())["conformance"]
        return result, record


@pytest.fixture
def repository(pytester, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return Repository(pytester)


def test_code_that_only_moved_in_its_file_is_unchanged(repository, monkeypatch):
    ahead = []
    monkeypatch.setattr(build, "ahead", ahead.extend)
    repository.commit(KERNEL)
    repository.commit(LINES)
    result, record = repository.run()
    assert (result.ret, record["verdict"]) == (0, "PASS")
    assert [each["verdict"] for each in record["code"]] == ["UNCHANGED"]
    assert record["base"]["row"] == "pyproject.toml"
    assert [(request[0].name, request[-1]) for request in ahead] == [("acme.mm", "sm_80")]
    result.stdout.fnmatch_lines([" sm_80 product square-2048 * UNCHANGED"])


def test_spills_that_appeared_fail_in_text_table_and_markdown_unless_the_row_allows_them(repository, capsys):
    repository.commit(KERNEL)
    repository.commit(FEW_REGISTERS)
    result, record = repository.run()
    assert (result.ret, record["verdict"], record["code"][0]["verdict"]) == (1, "FAIL", "FAIL")
    assert record["code"][0]["changed"]["local store"][0] == 0
    result.stdout.fnmatch_lines([
        "gemm: acme.mm compiled for sm_80, square-2048 *: against HEAD~1 *: product spills * bytes*base 0",
        "  reproduce: pytest --roof-against='HEAD~1' -m compiled -k gemm/acme.mm/compiled/bfloat16-nn",
        " sm_80 product square-2048 * -> 64 * 0 -> * FAIL",
    ])  # fmt: skip
    assert cli.main(["comment", str(repository.path / "results" / "r.json")]) == 0
    said = capsys.readouterr().out
    assert "#### Machine code against the base" in said
    assert "| `acme.mm` | `sm_80 product square-2048` | **FAIL** |" in said
    repository.commit(FEW_REGISTERS, limits="spills = 4096")
    result, record = repository.run("--roof-against=HEAD~2")
    assert (result.ret, record["code"][0]["verdict"]) == (0, "PASS")


def test_a_lost_matrix_unit_fails(repository):
    repository.commit(KERNEL)
    repository.commit(NO_MATRIX_UNIT)
    result, record = repository.run()
    assert (result.ret, record["code"][0]["verdict"]) == (1, "FAIL")
    result.stdout.fnmatch_lines(["*product has no mma.sync, base *"])


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ({"kernel": KERNEL, "name": "acme.other"}, 'no baseline: * has no kernel "acme.mm"*'),
        ({"kernel": BROKEN}, "no baseline: *product does not compile for sm_80: *nothing_of_the_name*"),
    ],
)
def test_without_a_base_nothing_is_decided_and_the_exit_code_says_so(repository, base, words):
    repository.commit(**base)
    repository.commit(KERNEL)
    result, record = repository.run()
    assert (result.ret, record["verdict"], record["code"]) == (10, "INVALID", [])
    result.stdout.fnmatch_lines([f"INVALID gemm/acme.mm/compiled/bfloat16-nn: {words}"])
    assert record["compiled"]  # head was held against its row all the same


def test_a_head_that_does_not_compile_fails(repository):
    repository.commit(KERNEL)
    repository.commit(BROKEN)
    result, record = repository.run()
    assert (result.ret, record["verdict"]) == (1, "FAIL")


def test_an_unknown_revision_ends_the_run_before_anything_is_compiled(repository):
    repository.commit(KERNEL)
    result = repository.pytester.runpytest_inprocess("-m", "compiled", "--roof-against=nothing")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--roof-against nothing: * has no such revision*"])
