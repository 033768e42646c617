"""The comparison with ncu and the price list of mistakes, without a GPU: what they run, read, judge, print."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rooftest.simulated import Knobs, Simulated

DEVICE = Path(__file__).with_name("device")
HEAD = '"ID","Process ID","Kernel Name","Context","{}","{}"\n"","","","","ns","cycle"\n'


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(DEVICE))
    yield
    for name in ("timed", "compare_ncu", "mistakes"):
        sys.modules.pop(name, None)


def load(name):
    return importlib.import_module(name)


# --- what is run ---------------------------------------------------------------------------------------------------


def test_there_are_kernels_of_enough_kinds():
    rows = [row for row in load("timed").ROWS if row.bound != "offset"]
    assert len(rows) >= 12
    assert len({row.kind for row in rows}) >= 6
    assert sum(row.moves for row in rows) >= 6
    assert {row.bound for row in rows} == {"compute", "memory"}
    assert len({row.name for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("maker", "sizes"),
    [
        ("gemm", (2, 3, 4)), ("step", ("step8_overlapped", 8)), ("copy", (1,)), ("add", (100,)), ("row_sum", (5, 7)),
        ("softmax", (5, 7)), ("scale_and_sum", (5, 7)), ("empty", ()), ("watch", (5000,)),
    ],
)  # fmt: skip
def test_each_maker_builds_its_tensors_and_a_call_of_torch_runs(maker, sizes):
    call = getattr(load("timed"), maker)(*sizes)("cpu")
    if maker not in ("step", "empty", "watch"):  # Triton's need a GPU
        call()


def test_the_makers_compute_what_they_are_named_after():
    timed = load("timed")
    x = timed._normal("cpu", 5, 7)
    assert torch.equal(timed.row_sum(5, 7)("cpu")(), x.sum(1))
    assert torch.equal(timed.softmax(5, 7)("cpu")(), torch.softmax(x, 1))
    assert torch.equal(timed.scale_and_sum(5, 7)("cpu")(), (x * 0.5).sum(1))
    assert timed.gemm(2, 3, 4, 0.0)("cpu")().abs().max() == 0


def test_kernels_of_the_ladder_are_called_as_they_are_declared():
    timed = load("timed")
    for row in timed.ROWS:
        if row.kind == "gemm of ours":
            name = row.name.split()[0]
            assert callable(importlib.import_module(f"rooftest_kernels.gemm.{name}").matmul)


@pytest.mark.parametrize("kernel", ["rooftest_empty", "rooftest_watch"])
def test_our_own_kernels_compile_for_the_gpu_that_they_are_for(kernel):
    import triton
    from triton.backends.compiler import GPUTarget

    timed = load("timed")
    types = {"x": "*i64"} if kernel == "rooftest_empty" else {"out": "*i64", "watch_ns": "i32", "PTX": "constexpr"}
    source = triton.compiler.ASTSource(
        fn=getattr(timed, kernel), signature=types, constexprs={"PTX": timed.WATCH_PTX} if "PTX" in types else {}
    )
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    assert kernel in built.asm["ptx"]


# --- ncu's table ---------------------------------------------------------------------------------------------------


def table(compare, calls, columns):
    text = "==PROF== Profiling - 1 pass\n" + HEAD.format(*columns)
    number = 0
    for kernels in calls:
        for name, first, second in [("rooftest_mark", 900, 1500), *kernels]:
            text += f'"{number}","7","{name}","1","{first:,}","{second:,}"\n'
            number += 1
    return text + "==PROF== Disconnected\n"


def test_a_table_of_ncu_is_split_into_calls_of_any_number_of_kernels():
    compare = load("compare_ncu")
    calls = [[("void add<float, 4>(float*)", 12345, 20000)], [("a", 1, 2), ("b", 3, 4)], []]
    got = compare.parse(table(compare, calls, (compare.TIME, compare.CYCLES)), 3)
    assert got[0] == [{"name": "void add<float, 4>(float*)", compare.TIME: 12345.0, compare.CYCLES: 20000.0}]
    assert [k["name"] for k in got[1]] == ["a", "b"]
    assert got[2] == []
    with pytest.raises(SystemExit, match="saw 3 calls, expected 4"):
        compare.parse(table(compare, calls, (compare.TIME, compare.CYCLES)), 4)
    with pytest.raises(SystemExit, match="saw 0 calls, expected 1"):
        compare.parse("==ERROR== no permission", 1)


# --- what is made of both sides ------------------------------------------------------------------------------------

HZ, OFFSET_S = 1.7e9, 0.9e-6


def sides(compare, slip=None):
    """Our rows and ncu's as they would be if both told the truth, but for one slip."""
    slip = slip or {}
    rows, theirs = {}, {"none": {}, "all": {}, "bytes": {}}
    for row in compare.timed.ROWS:
        launches = 2 if row.kind == "two launches" else 1
        true_s = 12e-6 if "1024" in row.name else 80e-6
        told = {"cupti_s": true_s, "other_s": 1e-6 if row.name == "gemm 4096" else 0.0, "launches": launches}
        kernels_s = true_s - told["other_s"]
        told |= {"time_s": true_s, "clock_hz": HZ, "timer": "cupti", "status": "ok"}
        told |= slip.get(row.name, {})
        rows[row.name] = {"kind": row.kind, "bound": row.bound, "l2": {"cold": dict(told), "warm": dict(told)}}
        ncu_s = kernels_s + launches * OFFSET_S
        for control, l2 in (("none", "cold"), ("none", "warm"), ("all", "cold")):
            theirs[control][row.name, l2] = {
                "kernels": ["k"] * launches, "passes": 1, compare.TIME: ncu_s * 1e9, compare.CYCLES: ncu_s * HZ
            }  # fmt: skip
        if row.moves:
            rows[row.name]["moved"] = {"bytes": slip.get("bytes", 3e8), "reason": ""}
            theirs["bytes"][row.name, "warm"] = {"kernels": ["k"], compare.READ: 2e8, compare.WRITTEN: 1e8}
    return rows, theirs


def test_where_both_tell_the_truth_every_target_is_met():
    compare = load("compare_ncu")
    data = json.loads(json.dumps(compare.assembled(*sides(compare))))
    assert compare.missed(data) == []
    assert data["offset"]["none"]["used_s"] == pytest.approx(OFFSET_S)
    assert not any("MISSED" in line for line in compare.lines(data))
    assert data["rows"]["gemm 3072"]["l2"]["cold"]["ncu"]["none"]["by"] == "cycles"
    assert data["rows"]["softmax 8192x8192"]["l2"]["cold"]["ncu"]["none"]["by"] == "time"
    assert data["rows"]["gemm 1024"]["l2"]["cold"]["ncu"]["none"]["by"] == "cupti"
    assert "all" not in data["rows"]["scale and sum 8192x8192"]["l2"]["cold"]["ncu"]


@pytest.mark.parametrize(
    ("slip", "missing"),
    [
        ({"gemm 3072": {"clock_hz": HZ * 1.04}}, "gemm 3072 cold none"),
        ({"copy 256 MiB": {"time_s": 80e-6 * 0.96}}, "copy 256 MiB warm none"),
        ({"scale and sum 8192x8192": {"time_s": 80e-6 * 1.04}}, "scale and sum 8192x8192 cold none"),
        ({"gemm 1024": {"time_s": 12.4e-6}}, "gemm 1024 cold none"),
        ({"bytes": 3.1e8}, "gemm 8192 bytes"),
        ({"bytes": None}, "gemm 8192 bytes"),
    ],
)  # fmt: skip
def test_a_reading_beyond_its_target_is_missed_and_printed_so(slip, missing):
    compare = load("compare_ncu")
    data = compare.assembled(*sides(compare, slip))
    assert missing in compare.missed(data)
    assert any("MISSED" in line for line in compare.lines(data))


def test_an_offset_that_is_not_taken_out_would_be_a_miss():
    compare = load("compare_ncu")
    rows, theirs = sides(compare)
    row, told = rows["row sum 8192x8192"], rows["row sum 8192x8192"]["l2"]["cold"]
    told["time_s"] = told["cupti_s"] = 31e-6
    reading = {**theirs["none"]["row sum 8192x8192", "cold"], compare.TIME: 31e3 + 1200, compare.CYCLES: 5e4}
    assert compare.judged(row, told, reading, 1.2e-6)["met"]
    assert not compare.judged(row, told, reading, 0.0)["met"]


# --- the whole command, on a simulated GPU, with an ncu that tells the truth but for the launch that it holds --------


@pytest.fixture
def pretended(monkeypatch):
    compare = load("compare_ncu")
    device = Simulated(Knobs(noise=0.001, gap_s=0.1e-6))
    true_s = {"empty": 1e-6, "watch": 50e-6, "add": 4e-6, "gemm": 60e-6, "naive": 9e-3}
    writes = {"add": 3e6}
    rows = tuple(
        compare.timed.Row(
            name, lambda _, name=name, time_s=time_s: device.kernel(name, time_s, moved_bytes=writes.get(name, 0.0)),
            name, "offset" if name in ("empty", "watch") else "compute", moves=name in writes,
        )
        for name, time_s in true_s.items()
    )  # fmt: skip
    monkeypatch.setattr(compare.timed, "ROWS", rows)
    monkeypatch.setattr(compare, "Cuda", lambda: device)
    monkeypatch.setattr(compare, "open_monitor", lambda device: device)
    monkeypatch.setattr(compare.shutil, "which", lambda _: "ncu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: None)
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: None)

    def ncu(command, **_):
        if "--version" in command:
            return SimpleNamespace(stdout="Version 1", stderr="", returncode=0)
        what, found = command[-1], []
        assert command[-2] == "--child"
        metrics = command[command.index("--metrics") + 1].split(",")
        marked, device.mark = device.mark, lambda: found.append([])
        compare.child(what)  # what ncu would look at, call by call
        device.mark = marked
        plan = [row for row, _ in compare.schedule(what) for _ in range(compare.LEAD + compare.KEPT)]
        assert len(found) == len(plan)
        ns = [round(true_s[row.name] * 1e9 + 900) for row in plan]
        if what == "bytes":
            calls = [[(row.name, 1_000_000, 2_000_000)] for row in plan]
        else:
            calls = [[(row.name, n, round(n * 1.98))] for row, n in zip(plan, ns, strict=True)]
        return SimpleNamespace(stdout=table(compare, calls, metrics), stderr="", returncode=0)

    monkeypatch.setattr(compare.subprocess, "run", ncu)
    return compare


def test_the_whole_comparison_runs_and_meets_its_targets_where_everyone_tells_the_truth(pretended, tmp_path, capsys):
    assert pretended.main(tmp_path / "ncu.json") == 0
    data = json.loads((tmp_path / "ncu.json").read_text())
    add = data["rows"]["add"]["l2"]["cold"]
    assert add["events_s"] == pytest.approx(add["cupti_s"], abs=0.2e-6)
    assert add["graph_s"] == pytest.approx(add["cupti_s"], abs=0.3e-6)
    assert data["bytes"]["add"]["ratio"] == pytest.approx(1, abs=0.01)
    assert data["rows"]["naive"]["l2"]["warm"]["ncu"]["none"]["by"] == "cycles"
    assert capsys.readouterr().out.endswith("missed: nothing\n")


def test_a_kernel_that_cannot_be_had_leaves_the_others_and_is_missed(pretended, tmp_path, monkeypatch):
    rows = pretended.timed.ROWS
    ours = pretended.ours

    def broken(device, monitor, row):
        if row.name == "gemm":
            raise RuntimeError("no such kernel")
        return ours(device, monitor, row)

    monkeypatch.setattr(pretended, "ours", broken)
    assert pretended.main(tmp_path / "ncu.json") == 1
    data = json.loads((tmp_path / "ncu.json").read_text())
    assert data["missed"] == ["gemm: RuntimeError: no such kernel"]
    assert set(data["rows"]) == {row.name for row in rows if row.bound != "offset"} - {"gemm"}


def test_a_later_run_under_ncu_that_fails_leaves_the_first(pretended, tmp_path, monkeypatch):
    under = pretended.under_ncu

    def fails(what):
        if what != "none":
            raise SystemExit("no permission")
        return under(what)

    monkeypatch.setattr(pretended, "under_ncu", fails)
    assert pretended.main(tmp_path / "ncu.json") == 1
    data = json.loads((tmp_path / "ncu.json").read_text())
    assert data["missed"] == ["ncu bytes: no permission", "ncu all: no permission"]
    assert data["rows"]["naive"]["l2"]["cold"]["ncu"]["none"]["met"]


# --- mistakes ------------------------------------------------------------------------------------------------------

LONG, SHORT = "gemm 4096", "gemm 1024"


@pytest.fixture(scope="module")
def priced():
    sys.path.insert(0, str(DEVICE))
    try:
        mistakes = load("mistakes")
        device = Simulated(Knobs(throttle_factor=1.15, noise=0.001))
        kernels = {
            name: mistakes.Subject(device.kernel(name, cold, warm), device.kernel(f"{name} zeros", 0.9 * cold))
            for name, cold, warm in ((SHORT, 6e-6, 4e-6), (LONG, 170e-6, 168e-6))
        }
        zeroing = device.kernel("fill", 70e-6, write_bytes=1e9)
        return mistakes, mistakes.measured(device, kernels, zeroing)
    finally:
        sys.path.remove(str(DEVICE))


@pytest.mark.parametrize(
    ("way", "short", "long"),
    [
        ("again", 0.0, 0.0),
        ("zeroing", 60e6 / 4.2e12 / 6e-6, 60e6 / 4.2e12 / 170e-6),  # the whole L2 is written back
        ("raw", 3.3 / 6, 3.3 / 170),
        ("warm", -2 / 6, -2 / 170),
        ("zeros", -0.1, -0.1),
        ("hot", 0.15, 0.15),
    ],
)
def test_each_mistake_costs_on_the_simulated_gpu_what_is_built_into_it(priced, way, short, long):
    _, found = priced
    assert found["kernels"][SHORT][way]["change"] == pytest.approx(short, abs=0.02)
    assert found["kernels"][LONG][way]["change"] == pytest.approx(long, abs=0.004)


def test_an_empty_queue_costs_the_launch(priced):
    _, found = priced
    for name, true_s in ((SHORT, 6e-6), (LONG, 170e-6)):
        late_s = found["kernels"][name]["empty"]["time_s"] - true_s
        assert 1e-6 < late_s < 10e-6  # a launch takes the host 5 us


def test_every_mistake_is_a_way_that_differs_from_the_protocol_in_little(priced):
    mistakes, found = priced
    assert set(mistakes.MISTAKES) < set(mistakes.WAYS)
    base = mistakes.WAYS["protocol"]
    for name in mistakes.MISTAKES:
        way = mistakes.WAYS[name]
        differs = [f for f in ("flush", "timer", "queue", "zeros", "hot") if getattr(way, f) != getattr(base, f)]
        assert 1 <= len(differs) <= 2, name
    assert all(entry["n"] >= 60 for ways in found["kernels"].values() for entry in ways.values())


def test_the_subjects_are_four_kernels_on_data_and_on_zeros(monkeypatch):
    mistakes = load("mistakes")
    monkeypatch.setattr(mistakes.timed, "_normal", lambda device, *shape: torch.full([min(n, 4) for n in shape], 2.0))
    monkeypatch.setattr(torch, "empty", lambda *shape, **_: torch.zeros([min(n, 4) for n in shape]))
    for name, subject in mistakes.subjects("cpu").items():
        assert subject.call().max() == (8 if "sum" in name else 16)
        assert subject.zeros().max() == 0


def test_the_whole_price_list_is_measured_printed_and_written(monkeypatch, tmp_path, capsys):
    mistakes, device = load("mistakes"), Simulated()
    one = mistakes.Subject(device.kernel("a", 6e-6, 4e-6), device.kernel("b", 6e-6))
    monkeypatch.setattr(mistakes, "Cuda", lambda: device)
    monkeypatch.setattr(mistakes, "open_monitor", lambda device: device)
    monkeypatch.setattr(mistakes, "subjects", lambda _: {"one": one})
    monkeypatch.setattr(torch, "empty", lambda *_, **__: SimpleNamespace(zero_=device.kernel("fill", 60e-6)))
    mistakes.main(tmp_path / "m.json")
    data = json.loads((tmp_path / "m.json").read_text())
    assert list(data["kernels"]["one"]) == list(mistakes.WAYS)
    assert len(capsys.readouterr().out.splitlines()) == len(mistakes.WAYS) + 1
