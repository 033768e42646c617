"""The mutation engine makes the slips that its table names, and tells killed, stillborn and equivalent apart."""

import ast
import json
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).with_name("mutation")
sys.path.insert(0, str(HERE))

import processes  # noqa: E402
from delays import delayed  # noqa: E402
from equivalence import argued, arguments, compared  # noqa: E402
from operators import OPERATORS, mutants  # noqa: E402
from run import FATES, chosen, known, record  # noqa: E402
from score import KERNELS, Score, examples, planted, score  # noqa: E402

TOY = '''
@triton.jit
def toy(a_ptr, stride_az, stride_am, stride_ak, M, K, alpha, beta, BM: tl.constexpr, BK: tl.constexpr):
    """Every operator has a site."""
    z = tl.program_id(0) // tl.cdiv(M, BM)
    m = tl.arange(0, BM)
    acc = tl.zeros((BM,), dtype=tl.float32)
    for k in range(0, K, BK):
        if USED:
            a = tl.load(a_ptr + m.to(tl.int64) * stride_am, mask=(m < M) & (beta != 0), other=0.0)
        acc += a * alpha
    acc = tl.minimum(acc, 3)
    tl.atomic_add(a_ptr, acc)
    tl.store(a_ptr, acc, mask=m < M)
'''
MADE = {
    "boundary": "m < M -> m <= M",
    "condition": "beta != 0 -> beta == 0",
    "load mask dropped": "tl.load(a_ptr + m.to(tl.int64) * stride_am, mask=(m < M) & (beta != 0), other=0.0) -> "
    "tl.load(a_ptr + m.to(tl.int64) * stride_am)",
    "store mask dropped": "tl.store(a_ptr, acc, mask=m < M) -> tl.store(a_ptr, acc)",
    "mask widened": "(m < M) & (beta != 0) -> m < M",
    "range": "range(0, K, BK) -> range(0, K - 1, BK)",
    "offset": "tl.arange(0, BM) -> (tl.arange(0, BM) + 1)",
    "stride": "stride_am -> stride_ak",
    "step": "range(0, K, BK) -> range(0, K, BK * 2)",
    "doubled": "acc += a * alpha -> acc += 2 * (a * alpha)",
    "other": "tl.load(a_ptr + m.to(tl.int64) * stride_am, mask=(m < M) & (beta != 0), other=0.0) -> "
    "tl.load(a_ptr + m.to(tl.int64) * stride_am, mask=(m < M) & (beta != 0), other=1.0)",
    "precision": "tl.float32 -> tl.bfloat16",
    "narrow index": "tl.int64 -> tl.int32",
    "scaling": "a * alpha -> a",
    "identity": "tl.zeros((BM,), dtype=tl.float32) -> (tl.zeros((BM,), dtype=tl.float32) + 1)",
    "program": "tl.program_id(0) -> tl.program_id(1)",
    "unordered": "tl.atomic_add(a_ptr, acc) -> tl.store(a_ptr, acc)",
    "constant": "3 -> 4",
    "addend": "acc += a * alpha -> pass",
    "swapped": "alpha -> beta",
    "rounding": "tl.cdiv(M, BM) -> M // BM",
    "extreme": "tl.minimum(acc, 3) -> tl.maximum(acc, 3)",
}
STEP7 = (KERNELS / "step7_persistent_triton.py").read_text()


@cache
def every(module):
    return mutants(module, (KERNELS / f"{module}.py").read_text())


def find(module, edit):
    return next(m for m in every(module) if edit == f"{m.before} -> {m.after}")


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda o: o.name)
def test_an_operator_makes_the_slip_that_it_names(operator):
    made = {f"{m.before} -> {m.after}": m for m in mutants("toy", TOY, (operator,))}
    edit = MADE[operator.name]
    assert edit in made
    before, _, after = edit.partition(" -> ")
    line = made[edit].line - 1
    old, new = TOY.splitlines()[line], made[edit].text.splitlines()[line]
    assert new in (old.replace(before, f"({after})"), old.replace(before, after))


def test_every_mutant_of_our_kernels_is_python_and_has_a_name_of_its_own():
    for path in KERNELS.glob("*.py"):
        found, text = every(path.stem), path.read_text()
        assert len({m.key for m in found}) == len(found)
        assert all(m.text != text for m in found)
        for mutant in found[::10]:  # a module takes 10 ms to parse, and there are two thousand
            ast.parse(mutant.text)


def test_sizes_layouts_and_refusals_are_left_alone():
    text = """
@gluon.jit
def kernel(x, BM: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 2], [4, 8], [1, 1], [1, 0])
    return x.reshape([1, 2])

def launch(a):
    if a.ndim != 2:
        raise ValueError("2")
"""
    assert mutants("kernel", text) == []


def test_a_wrong_kernel_is_killed():
    found = score(find("step7_persistent_triton", "tile_n * BN -> tile_n"), "interpreter", 1)
    assert found.fate == "killed"
    assert found.examples < 100


def test_a_kernel_that_never_runs_is_stillborn():
    found = score(find("step7_persistent_triton", "tl.dot(a, b, acc) -> tl.dot(a, b, acc, input_precision='tf32')"),
                  "interpreter", 1, first=3)  # fmt: skip
    assert found.fate == "survived"
    broken = STEP7.replace("tl.dot(a, b, acc)", "tl.dot(a, b, nothing)")
    mutant = find("step7_persistent_triton", "tl.cdiv(M, BM) -> M // BM")
    assert score(vars_of(mutant, broken), "interpreter", 1).fate == "stillborn"


def vars_of(mutant, text):
    return type(mutant)(**{**vars(mutant), "text": text})


def test_the_compiler_tells_the_same_program_from_another():
    cases = [str(case) for _, _, case in examples("step7_persistent_triton", "interpreter", 1)]
    cases = [case for case in cases if " K=0" not in case][:1]
    for edit, said in (
        ("tl.dot(a, b, acc) -> tl.dot(a, b, acc, input_precision='tf32')", "identical"),
        ("tl.cdiv(N, BN) -> N // BN", "differs"),
        ("tl.float32 -> tl.bfloat16", "does not compile"),
    ):
        mutant = find("step7_persistent_triton", edit)
        with planted(mutant.module, mutant.text) as folder:
            assert compared(folder, mutant.module, cases) == said, edit


def test_every_argument_is_about_a_mutant_that_exists():
    everything = [m for path in KERNELS.glob("*.py") for m in every(path.stem)]
    for entry in arguments():
        about = [m for m in everything if argued(m, entry.get("devices", ["cuda"])[0]) == entry["because"]]
        edits = {f"{m.before} -> {m.after}" for m in about}
        assert edits, entry
        assert set(entry.get("edits", ())) <= edits, entry


def test_delays_stand_before_what_orders_memory():
    text = delayed((KERNELS / "step6_specialised.py").read_text())
    ast.parse(text)
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.strip().startswith(("mbarrier.wait", "mbarrier.arrive", "fence_async_shared()", "tma.store_wait")):
            assert lines[number - 1].strip().startswith("sleep_a_while(")


@pytest.mark.parametrize("path", sorted((KERNELS.parents[1] / "results" / "mutation").glob("*.json")), ids=str)
def test_a_committed_score_adds_up(path):
    data = json.loads(path.read_text())
    assert data["schema"] == "mutation.v1"
    assert {m["fate"] for m in data["mutants"]} <= set(FATES)
    assert data["totals"] == dict(Counter(f"{m['group']} {m['fate']}" for m in data["mutants"]))
    assert all(m["said"] for m in data["mutants"] if m["fate"] == "equivalent")


def test_a_process_is_handed_on_to_the_next_mutant_unless_it_died(monkeypatch):
    monkeypatch.setattr("score.KernelProcess", processes.Handed)
    counted = Counter()
    started = processes.process._Child

    def child(device):
        counted["started"] += 1
        return started(device)

    monkeypatch.setattr(processes.process, "_Child", child)
    right = vars_of(find("step7_persistent_triton", "tl.cdiv(M, BM) -> M // BM"), STEP7)
    edits = ("tl.cdiv(M, BM) -> M // BM", "tl.cdiv(N, BN) -> N // BN")
    try:
        found = [score(m, "interpreter", 1, first=6) for m in (find("step7_persistent_triton", e) for e in edits)]
        assert [f.fate for f in (*found, score(right, "interpreter", 1, first=6))] == ["killed", "killed", "survived"]
        assert counted["started"] == 1
        dying = STEP7.replace("    ops = operands(", "    import os; os._exit(3)\n    ops = operands(")
        assert score(vars_of(right, dying), "interpreter", 1).said.startswith("died: exit code 3")
        assert score(right, "interpreter", 1, first=6).fate == "survived"
        assert counted["started"] == 2
    finally:
        processes.end()


@pytest.mark.parametrize("done", [True, False])
def test_a_call_from_which_the_device_does_not_come_back_ends_the_process(done):
    text = f"""
import time, torch, watch
torch.cuda.current_stream = lambda: type("Stream", (), {{"query": lambda self: {done}}})()
watch.LIMIT_S = 0.2
watch.watched(lambda: None)()
time.sleep(1)
print("alive")
"""
    run = subprocess.run([sys.executable, "-c", text], cwd=HERE, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == ((0, "alive") if done else (9, "the device hung for 0.2 s"))


def test_what_an_earlier_run_settled_about_the_same_source_is_taken_over(tmp_path):
    todo = every("step7_persistent_triton")[:4]
    fates = [("killed", "interpreter"), ("killed", "cuda:0"), ("stillborn", "interpreter"), ("stillborn", "cuda:0")]
    old = [record(m, device, Score(fate)) for m, (fate, device) in zip(todo, fates, strict=True)]
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"mutants": old}))
    assert set(known([path], todo, "cuda:0")) == {todo[0].key, todo[1].key, todo[3].key}
    path.write_text(json.dumps({"mutants": [r | {"source": "another"} for r in old]}))
    assert known([path], todo, "cuda:0") == {}


def test_modules_and_operators_take_turns():
    first = chosen(["step6_specialised", "step7_persistent"], "")[:20]
    assert len({(m.module, m.operator) for m in first}) == 20
