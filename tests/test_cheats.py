"""Known ways of cheating a benchmark, each as a kernel that goes the whole way and is caught, with what catches it.

The numbers are those of a public list of exploits, source beside each in tests/cheats/README.md. What cannot exist here
by construction stands in that table too, with the reason. The last test prints the score.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import rooftest.worker
from rooftest import closures, fresh, genuine, recheck, rungs
from rooftest.bench import Bench
from rooftest.case import Case
from rooftest.errors import UsageError
from rooftest.measure import measure
from rooftest.plan import Plan
from rooftest.process import KernelError
from rooftest.roofline import Ceiling, Work, judge
from rooftest.rows import parse_row
from rooftest.simulated import Knobs, Simulated

HERE = Path(__file__).parent
FOLDER = HERE / "cheats"
SIZES = {"M": 96, "N": 32, "K": 48}
QUICK = {"warmup_s": 1e-3, "looks": [30], "duty": 1.0}
CASES = [
    Case("gemm", "cheat", "float32", "nn", SIZES, fill=fill, seed=seed)
    for seed, fill in enumerate(["normal", "integers", "heavy", "small", "normal"])
]


@dataclass(frozen=True)
class Cheat:
    """A kernel, the lines of the list that it stands for, the way it goes, and what is said of it."""

    call: str
    lines: tuple[int, ...]
    way: str
    reason: str


LINES = {
    1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 14, 15, 16, 18, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 33, 35, 36, 38, 40, 41, 42,
    44, 46, 47, 48, 50, 52, 54, 55, 57, 59, 60, 62, 63, 64, 66, 67,
}  # fmt: skip
WRONG = r"rung (bound|contract|exact)"
TIMED = "in a timed call"
CHEATS = [
    Cheat("address", (20,), "judged", WRONG),
    Cheat("address", (20,), "timed", TIMED),
    Cheat("identity", (22,), "timed", TIMED),
    Cheat("shape", (23,), "judged", WRONG),
    Cheat("shape", (23,), "timed", TIMED),
    Cheat("sampled", (23,), "law", "breaks the law"),
    Cheat("replay", (29,), "judged", WRONG),
    Cheat("seeds", (28,), "judged", WRONG),
    *(Cheat(f"hidden:{f}", (31,), "judged", WRONG) for f in ("closure", "default", "context", "generator")),
    Cheat("hidden:thread_local", (31,), "judged", WRONG),
    Cheat("phase", (26,), "timed", TIMED),
    Cheat("poison", (25,), "timed", TIMED),
    Cheat("watched", (15, 26), "timed", TIMED),
    Cheat("idle", (12, 26), "timed", TIMED),
    Cheat("thread", (3,), "judged", f"running thread|{WRONG}"),
    Cheat("lazy", (4,), "judged", "bad result: returned a Lazy for c, not a tensor"),
    Cheat("freed", (32,), "judged", WRONG),
    Cheat("garbage", (54,), "judged", WRONG),
    Cheat("mutates:always", (33,), "judged", "input a was modified"),
    Cheat("mutates:later", (33,), "timed", "(?s)in a timed call.*input a was modified"),
    Cheat("scans", (36,), "judged", "outside every tensor|input a was modified"),
    Cheat("wildcard", (35,), "judged", "got nan"),
    Cheat("allclose", (38,), "judged", WRONG),
    Cheat("small", (40,), "judged", WRONG),
    Cheat("ignored", (41,), "judged", WRONG),
    Cheat("degenerate", (42,), "judged", WRONG),
    Cheat("partial", (44,), "judged", WRONG),
    Cheat("precision", (46,), "judged", WRONG),
    Cheat("shapes", (48,), "timed", WRONG),
    Cheat("tail", (50,), "judged", WRONG),
    Cheat("exits", (18,), "judged", "died: exit code 0"),
    Cheat("stdout", (8, 19), "judged", f"standard stream|{WRONG}"),
    Cheat("forged", (5, 16), "timed", "the grader saw .* was reported"),
    Cheat("unkept", (5, 16), "timed", "no timed call could be judged"),
]

GPU = [
    Cheat("streams:side", (1,), "device", f"stream of its own|{WRONG}"),
    Cheat("streams:half", (2,), "device", f"stream of its own|{WRONG}"),
    Cheat("capture", (11,), "graph", TIMED),
    Cheat("megakernel", (63,), "launches", "claims a single launch and made [2-9]"),
    Cheat("phase", (26,), "device", TIMED),
    Cheat("mutates:later", (33,), "device", "(?s)in a timed call.*input a was modified"),
    Cheat("forged", (16,), "device", "the grader saw .* was reported|too few for an interval"),
]
USELESS = {"version": (22,), "sampled": (23,), "clocks": (5, 7), "library": (57, 59, 60, 62)}
"""Right, and the time is what it really takes: by file, the lines of the list."""


def caught(way, call, device="cpu"):
    """What is said of a kernel that goes the way, None if nothing is; and what was measured of it."""
    file, _, function = call.partition(":")
    function = function or "matmul"
    row = {"op": "gemm", "call": f"{file}.py:{function}", "devices": [device.split(":")[0]]}
    row["claims"] = ["single-launch" if way == "launches" else "deterministic"]
    if f"def {function}(a, b):" not in (FOLDER / f"{file}.py").read_text():
        row["args"] = {"c": "out"}
    bench = Bench(parse_row("cheat", row, "test", str(FOLDER)), device)
    try:
        return WAYS[way](bench)
    except (rungs.Failure, KernelError) as error:
        return str(error), {}
    finally:
        bench.close()


def judged(bench):
    """The cases as they are drawn, on three rungs."""
    for case in CASES:
        for rung in ("contract", "exact" if case.fill == "integers" else "bound"):
            rungs.check(bench, rung, case)
    return None, {}


def law(bench):
    """The laws of the op: the second call's inputs are made from the first's."""
    for seed in range(4):
        rungs.check(bench, "law", Case("gemm", "cheat", "float32", "nn", SIZES, fill="normal", seed=seed))
    return None, {}


def timed(bench):
    """A workload, judged and then timed on a simulated GPU in the kernel's process, as rooftest.speed does."""
    case = Case("gemm", "cheat", "float32", "nt", SIZES, fill="normal", seed=recheck.seed())
    recheck.workload(bench, case)
    request = {"plan": QUICK} | (
        {} if "rooftest.worker.timed = timed" in source(bench) else {"simulated": {"noise": 0.0}}
    )
    got, looked = recheck.timed(bench, case, request)
    return "; ".join(got["reasons"]) or None, {**got, "looked": looked}


def device(bench, timer="auto"):
    """A workload, judged and then timed on a GPU; a millisecond and more, so that the grader's clock can tell."""
    sizes = {"M": 8192, "N": 8192, "K": 4096} if "worker" in source(bench) else {"M": 2048, "N": 2048, "K": 2048}
    case = Case("gemm", "cheat", "bfloat16", "nn", sizes, fill="normal", seed=recheck.seed())
    recheck.workload(bench, case)
    got, looked = recheck.timed(bench, case, {"plan": {"cap_s": 2.0, "timer": timer}})
    return "; ".join(got["reasons"]) or None, {**got, "looked": looked}


def graph(bench):
    """The same where CUPTI can't be had and calls are captured to be timed."""
    return device(bench, "graph")


def launches(bench):
    """A case whose seed chooses that the launches are counted, where one is claimed."""
    case = Case("gemm", "cheat", "bfloat16", "nn", {"M": 256, "N": 128, "K": 192}, fill="normal", seed=0)
    for _ in range(2):  # the first call captures
        rungs.check(bench, "contract", case)
    return None, {}


def source(bench):
    return (FOLDER / bench.row.call.partition(":")[0]).read_text()


WAYS = {
    "judged": judged, "law": law, "timed": timed, "device": device, "graph": graph, "launches": launches,
}  # fmt: skip
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("way", ["judged", "law", "timed"])
def test_the_control_is_not_caught(way):
    said, got = caught(way, "honest")
    assert said is None
    if got:
        assert got["looked"]["timed"].startswith("yes, call ")


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda c: f"{c.call}-{c.way}")
def test_a_cheat_is_caught(cheat):
    said, _ = caught(cheat.way, cheat.call)
    assert said is not None, f"{FOLDER / cheat.call} went through"
    assert re.search(cheat.reason, said), said


@pytest.mark.parametrize("file", USELESS)
def test_a_cheat_that_gains_nothing_is_right_and_pays_for_its_product(file):
    said, got = caught("timed", file)
    assert said is None
    timing = got["calls"]["cheat"]["timing"]
    # A reader sees whose kernels ran. So small a matrix has few turns: the call that is looked at may repeat another's.
    assert {"copy_"} <= set(timing["kernels"]) <= {"matmul", "copy_"}
    assert timing["median_s"] == pytest.approx(Knobs().product_s + Knobs().other_s, rel=0.02)


@needs_gpu
@pytest.mark.parametrize("cheat", GPU, ids=lambda c: f"{c.call}-{c.way}")
def test_a_cheat_is_caught_on_a_gpu(cheat):
    said, _ = caught(cheat.way, cheat.call, "cuda:0")
    assert said is not None, f"{FOLDER / cheat.call} went through"
    assert re.search(cheat.reason, said), said


@needs_gpu
@pytest.mark.parametrize(
    ("call", "way"),
    [
        ("honest_cuda", "device"), ("honest_cuda", "graph"), ("streams:joined", "device"), ("streams:joined", "graph"),
        ("clocks", "device"), ("ghost", "device"),
    ],
)  # fmt: skip
def test_the_control_and_what_gains_nothing_are_timed_on_a_gpu(call, way):
    said, got = caught(way, call, "cuda:0")
    assert said is None
    assert got["looked"]["timed"].startswith("yes, call ")
    timing = got["calls"]["cheat"]["timing"]
    assert timing["median_s"] > 2 * 2048**3 / 2e15  # the patched event says a nanosecond
    assert way == "graph" or (timing["kernels"] and not any("fast_matmul" in name for name in timing["kernels"]))


# --- what cannot exist, and why ---------------------------------------------------------------------------------------


def test_the_timer_does_not_look_up_what_a_kernel_has_replaced(monkeypatch):
    real = torch.cuda.Event
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("random._urandom", lambda n: b"0" * n)
    monkeypatch.setattr("os.urandom", lambda n: b"0" * n)
    monkeypatch.setattr(torch.cuda, "Event", None)
    monkeypatch.setattr(real, "elapsed_time", lambda *_: 0.0)
    monkeypatch.setattr(torch.profiler, "profile", None)
    monkeypatch.setattr(torch.autograd.profiler, "profile", None)
    assert genuine.perf_counter() > 0
    assert genuine._Event is real
    assert genuine._elapsed is not real.elapsed_time
    assert genuine.profile is not None
    assert len({genuine.below(2**60) for _ in range(9)}) == 9


def test_the_kernels_process_has_what_measures_before_the_kernel():
    assert rooftest.worker.timed is closures.timed
    assert fresh.below is genuine.below


def test_seeds_are_not_foretold():
    assert len({recheck.seed() for _ in range(9)}) == 9


def test_there_is_no_tolerance_to_edit():
    with pytest.raises(UsageError, match="tolerance"):
        parse_row("x", {"op": "gemm", "call": "honest.py:matmul", "tolerance": 1.0}, "test", str(FOLDER))


def test_a_time_of_zero_is_no_time():
    roof = Ceiling("physical", {"float32": 1e12}, 1e12, 0, "test")
    assert judge(0.0, (0.0, 0.0), Work(1e9, 1, 1, "float32"), roof, roof).verdict == "INVALID"


def test_whoever_sleeps_until_the_timer_gives_up_has_no_time():
    device = Simulated(Knobs(launch_s=1.0))
    got = measure({"sleeper": device.kernel("k", 1e-3)}, Plan(warmup_s=0.01), None, device, device)
    assert got["status"] == "invalid"


LINE = re.compile(r"^\| (\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)


def test_the_table_has_every_line_and_says_of_each_what_becomes_of_it():
    table = dict(LINE.findall((FOLDER / "README.md").read_text()))
    lines = {int(number) for number in table}
    assert lines == LINES
    shown = {line for cheat in (*CHEATS, *GPU) for line in cheat.lines} | {n for ns in USELESS.values() for n in ns}
    for number, said in table.items():
        kind = said.split(":")[0]
        assert kind in ("caught", "gains nothing", "reported", "cannot exist", "open"), said
        assert (int(number) in shown) or kind in ("cannot exist", "open", "reported"), number
        for name in re.findall(r"`(\w+)\.py`", said):
            assert (FOLDER / f"{name}.py").exists(), name
