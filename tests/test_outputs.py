"""What a run tells GitHub and other programs, from made-up records."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rooftest import cli, run, store
from rooftest.outputs import columns, comment, github, order, room
from rooftest.outputs.source import locate

ROOT = Path(__file__).parents[1]
GPU = {"uuid": "GPU-7a83c607-3a4d-9c92-985a-881af537acf6", "name": "NVIDIA H200", "driver": "580.159.04"}
EVIL = 'a|b<img src=x>@someone\n%0A::error::"`` ` ``` --> [x](y) *z* _w_ </details>'


def judged(kernel="acme.matmul", verdict="PASS", what="bound", **more):
    return {
        "kind": "conformance", "id": f"gemm/{kernel}/{what}/bfloat16-nn", "op": "gemm", "kernel": kernel, "what": what,
        "rung": what, "dtype": "bfloat16", "layout": "nn", "device": "cpu", "verdict": verdict, "reason": None,
        "status": {"PASS": "passed", "FAIL": "failed", None: "skipped"}.get(verdict, "invalid"), "domain": 0.5,
        "examples": 10, "ratio": 0.5, "reading": "z", "worst": "gemm acme.matmul bfloat16 nn M=1", "withdrawn": {},
    } | more  # fmt: skip


def wrong(kernel="acme.matmul", **more):
    message = f"gemm: {kernel} is wrong, rung bound\n  output c: worst element (0, 0)\n  reproduce: pytest x"
    return judged(kernel, "FAIL", **{"ratio": 3.0, "message": message, "reproduce": "pytest x"} | more)


def arm(time_s):
    return {
        "time_s": time_s, "ci95_s": [time_s * 0.999, time_s * 1.001], "cycles": None, "clock_hz": 1.9e9, "n": 100,
        "peer_s": None, "timer": "events", "u_timer_s": 5e-7, "status": "ok", "reasons": [], "tags": [],
    }  # fmt: skip


def pair(base_s, head_s):
    told = {"stage": "screen", "order": "AB", "log_ratio": 0.03, "valid": True, "reasons": []}
    return told | {"base": arm(base_s), "head": arm(head_s)}


def gate(kernel="acme.matmul", verdict="FAIL", what="square-4096", **more):
    return {
        "kind": "gate", "id": f"gemm/{kernel}/{what}/bfloat16-nn", "op": "gemm", "kernel": kernel, "what": what,
        "dtype": "bfloat16", "layout": "nn", "device": "cuda:0", "status": "failed" if verdict == "FAIL" else "passed",
        "series": f"gemm/{kernel}/{what}/bfloat16/nn/burst/cold/nograph/v1", "verdict": verdict,
        "reason": "slower by 3.10% in both stages", "base": {"revision": "abc1234", "row": kernel, "name": kernel},
        "head": {"revision": "def5678", "dirty": False}, "budget": 0.02, "delta": 0.01, "sigma": 0.004,
        "pairs_known": 30, "mde": 0.0092, "estimator": "time", "change": 0.031, "ci95": [0.029, 0.033],
        "pairs": [pair(1e-4, 1.031e-4), pair(1.02e-4, 1.05e-4), pair(0.98e-4, 1.01e-4)], "stages": [],
        "memory": {"base_bytes": 1024, "head_bytes": 2048}, "changed": ["machine code"],
    } | more  # fmt: skip


TIMED = json.loads((ROOT / "results/runs/h200-2026-12-01-speed.json").read_text())["benchmarks"][3]


def timed(kernel="step4_dot", verdict="PASS"):
    return TIMED | {"kernel": kernel, "id": TIMED["id"].replace("step4_dot", kernel), "verdict": verdict}


def results(*records, gpu=GPU, **more):
    made = store.empty({"gpu": gpu, "software": {"rooftest": "0.1.0", "torch": "2.13.0"}}, None) | {"complete": True}
    made |= {"created": "2026-12-01T12:00:00+00:00", "gate": []} | more
    for record in records:
        made[order.KINDS[record["kind"]]].append(record)
    return made


# --- the comment ----------------------------------------------------------------------------------------------------


def test_a_comment_shows_what_is_wrong_and_slow_in_full_and_folds_the_rest():
    text = comment.render([results(
        judged("acme.good"), wrong(), gate(), gate("acme.same", "UNCHANGED", change=None, ci95=None, pairs=[]),
        gate("acme.maybe", "AMBIGUOUS", reason="the second stage did not confirm"), timed(),
        gate("acme.gone", "INVALID", reason="no such row in abc1234", change=None, pairs=[]),
    )])  # fmt: skip
    first, title, *_ = text.splitlines()
    assert first == "<!-- rooftest: NVIDIA H200 -->"
    assert title == "### rooftest: 2 FAIL, 1 INVALID, 1 AMBIGUOUS, 2 PASS, 1 UNCHANGED"
    assert "`def5678` against `abc1234`, budget 2.00%" in text
    shown, *hidden = text.split("<details>")
    assert "gemm: acme.matmul is wrong, rung bound\n  output c: worst element (0, 0)\n  reproduce: pytest x" in shown
    assert "| `acme.matmul` | `square-4096 bf16-nn` | **FAIL** | +3.10% ±0.20% | 100 us | 103.1 us | 0.92% |" in shown
    assert "slower by 3.10% in both stages" in shown
    assert "the second stage did not confirm" in shown
    assert "no such row in abc1234" in shown
    for quiet in ("acme.good", "acme.same", "32.96 us"):
        assert quiet not in shown
        assert any(quiet in each for each in hidden)
    assert text.count("<details>") == text.count("</details>") == 3


def test_a_reproduce_command_that_the_message_lacks_stands_below_it():
    assert "```\npytest x\n```" in comment.render([results(wrong(message="out of memory"))])


def test_every_table_has_as_many_cells_as_its_head():
    text = comment.render([results(judged(), wrong(), gate(), gate("u", "UNARMED"), timed(), timed("b", "FAIL"))])
    tables = "\n".join(line if line.startswith("|") else "" for line in text.splitlines()).split("\n\n")
    widths = [{line.count(" | ") for line in table.splitlines() if line} for table in tables]
    assert [len(width) for width in widths if width] == [1] * 5


LONG = [
    [gate(f"k{n:05}", change=n / 1e5, reason="slow " * 60) for n in range(10_000)],
    [wrong(f"k{n:05}", message="wrong " * 800) for n in range(10_000)],
    [wrong("k" * 100_000, message="x" * 100_000, reproduce="y" * 100_000)],
    [gate("ü€😀" * 400, reason="ü€😀" * 1000) for n in range(1000)],
    [timed(f"k{n:05}") for n in range(3000)] + [judged(f"k{n:05}") for n in range(3000)],
    [gate(f"k{n:05}") for n in range(3000)] + [wrong(f"k{n:05}") for n in range(30)],
    [judged(f"k{n}", None, reason=f"reason {n}") for n in range(300)],
]


@pytest.mark.parametrize("records", LONG, ids=["slow", "wrong", "one", "unicode", "right", "both", "left out"])
def test_a_comment_is_below_the_limit_whoever_counts(records):
    text = comment.render([results(*records)])
    assert 500 < room.size(text) <= comment.LIMIT
    assert len(text.encode()) < 65_536
    assert text.count("<details>") == text.count("</details>")


def test_what_is_cut_is_counted_and_the_worst_is_kept():
    text = comment.render([results(*LONG[0])])
    shown = re.findall(r"\| `(k\d+)` ", text)
    assert shown == [f"k{n:05}" for n in range(9999, 9999 - len(shown), -1)]
    assert len(shown) > 100
    assert f"... and {10_000 - len(shown)} more of 10000" in text
    assert "10000 FAIL" in text.splitlines()[1]


def test_a_long_section_leaves_room_for_a_short_one():
    text = comment.render([results(*LONG[5])])
    assert text.count("is wrong, rung bound") == 30
    assert re.search(r"more of 3000\b", text)


def test_the_same_whatever_order_the_tests_ended_in():
    records = [*LONG[5], *(judged(f"g{n}") for n in range(50)), gate("u", "UNARMED"), judged("s", None, reason="r")]
    once = comment.render([results(*records)])
    assert comment.render([results(*reversed(records))]) == once
    assert comment.render([results(*records[7::2], *records[:7], *records[8::2])]) == once


def test_what_a_run_says_is_never_markup():
    text = comment.render([results(
        wrong(EVIL, message=EVIL, reproduce=EVIL), gate(EVIL, reason=EVIL), judged(EVIL, "INVALID", reason=EVIL),
        judged("ok", None, reason=EVIL), gate("u", "UNARMED", reason=EVIL),
        gpu=GPU | {"name": "A --> <b>", "uuid": EVIL, "driver": EVIL},
    )])  # fmt: skip
    assert text.splitlines()[0] == "<!-- rooftest: A b -->"
    bare = outside(text)
    assert bare.count("-->") == 1
    assert "<img" not in bare
    assert "@someone" not in bare
    assert bare.count("</details>") == bare.count("<details>")


def outside(text):
    """What is neither in a block of code nor in inline code."""
    text = re.sub(r"(?ms)^(`{3,})\n.*?\n\1$", "", text)
    return re.sub(r"(?<![\\`])(`+)(?!`)(.*?)(?<!`)\1(?!`)", "", text)


@pytest.mark.parametrize(
    ("records", "title", "said"),
    [
        ([], "### rooftest: nothing was judged", "NVIDIA H200"),
        ([judged(verdict=None, reason="no CUDA device | here")], "### rooftest: 1 left out", r"no CUDA device | here"),
        ([judged(status="xfailed", verdict="FAIL")], "### rooftest: 1 known", "1 known"),
    ],
)
def test_a_run_of_nothing_says_so(records, title, said):
    text = comment.render([results(*records)])
    assert text.splitlines()[1] == title
    assert said in text


def test_a_run_without_a_gpu_and_one_that_was_cut_say_so():
    text = comment.render([results(judged(), gpu=None, complete=False)])
    assert text.startswith("<!-- rooftest: no CUDA device -->")
    assert "**interrupted: not every test ran**" in text


def test_several_files_are_one_comment_with_a_line_for_each():
    other = results(gate("acme.b"), gpu=GPU | {"uuid": "GPU-2"})
    text = comment.render([results(gate("acme.a")), other])
    assert text.count("NVIDIA H200, `GPU-") == 2
    assert "2 FAIL" in text
    assert re.search(r"\| `acme.b` \|.* `GPU-2` \|", text)


def test_calibration_says_how_often_it_alarmed():
    calibrated = results(gate(verdict="PASS"), against={"base": "a", "head": "a", "aa": True, "false_alarms": [1, 300]})
    assert "A/A: 1 false alarms of 300" in comment.render([calibrated])


# --- GitHub Actions ---------------------------------------------------------------------------------------------------


def test_annotations_are_of_failures_only_one_a_kernel_beside_its_source(monkeypatch, tmp_path):
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    records = [wrong(source={"file": "ops.py", "line": 7}), gate(), gate("b", "AMBIGUOUS"), judged("c", "INVALID")]
    [line] = github.annotated([results(*records)], tmp_path / "sub")
    assert line == (
        "::error file=sub/ops.py,line=7,title=gemm/acme.matmul/bound/bfloat16-nn and 1 more%3A FAIL::"
        "gemm: acme.matmul is wrong, rung bound%0A  output c: worst element (0, 0)%0A  reproduce: pytest x"
    )


def test_there_are_ten_annotations_at_most_and_the_last_counts_the_rest():
    lines = github.annotated([results(*(gate(f"k{n:02}", change=n / 100) for n in range(40)))], Path())
    assert len(lines) == 10
    assert "k39" in lines[0]
    assert lines[-1].endswith("::31 more tests of 31 kernels fail; the step's summary has them.")
    assert len(github.annotated([results(*(gate(f"k{n}") for n in range(10)))], Path())) == 10


def test_an_annotation_is_one_line_that_nothing_breaks_out_of(tmp_path):
    records = [wrong(EVIL, message=EVIL, source={"file": "a,b:c.py", "line": 1})]
    [line] = github.annotated([results(*records)], tmp_path)
    assert "\n" not in line
    properties, message = re.fullmatch(r"::error ([^:]*)::(.*)", line).groups()
    assert [p.partition("=")[0] for p in properties.split(",")] == ["file", "line", "title"]
    assert message.startswith("a|b<img src=x>@someone%0A%250A::error::")


def test_a_summary_is_appended_and_has_no_marker(monkeypatch, tmp_path):
    path = tmp_path / "summary.md"
    path.write_text("# before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    assert github.summarise([results(wrong())]) == f"step summary: {path}"
    assert path.read_text().startswith("# before\n### rooftest: 1 FAIL\n")


def test_a_summary_is_below_a_mebibyte_with_what_was_there(monkeypatch, tmp_path):
    path = tmp_path / "summary.md"
    path.write_text("x" * 500_000)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    github.summarise([results(*LONG[0])])
    assert 1_000_000 < path.stat().st_size <= 2**20
    path.write_text("x" * (2**20 - 100))
    assert github.summarise([results(*LONG[0])]).startswith("no step summary: what other programs wrote there")
    assert path.stat().st_size == 2**20 - 100
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    assert github.summarise([results()]).startswith("no step summary: GITHUB_STEP_SUMMARY is not set")


def test_a_summary_that_can_not_be_written_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "none" / "summary.md"))
    store.write(tmp_path / "run.json", results(wrong()))
    assert cli.main(["github", str(tmp_path / "run.json")]) == 4
    assert capsys.readouterr().err.startswith("ERROR: cannot write the step's summary ")


@pytest.mark.parametrize("call", ["ops.py:matmul", "lib.ops:matmul", "lib.ops:TABLE.best"])
def test_a_source_is_found_without_running_it(tmp_path, call):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/__init__.py").write_text("raise SystemExit('run')\n")
    text = "raise SystemExit('run')\n\n\n@wrapped\ndef matmul(a, b): ...\n\n\nTABLE = 1\n"
    (tmp_path / "lib/ops.py").write_text(text)
    (tmp_path / "ops.py").write_text(text)
    file = call.partition(":")[0].replace("lib.ops", "lib/ops.py")
    line = 8 if "TABLE" in call else 5
    assert locate(call, str(tmp_path), str(tmp_path)) == {"file": file, "line": line}


def test_a_source_outside_of_the_root_folder_or_none_is_not_named(tmp_path):
    for call in ("json:dumps", "nosuch.module:f", "nosuch.py:f", "math:sin", "../ops.py:f", ":"):
        assert locate(call, str(tmp_path), str(tmp_path)) is None
    assert locate("rooftest_kernels.gemm.step4_dot:matmul", "", str(ROOT))["file"] == "kernels/gemm/step4_dot.py"


# --- CSV --------------------------------------------------------------------------------------------------------------


def test_a_csv_has_a_row_a_series_in_si_units():
    text = columns.render([results(gate(reason='a,b\n"c"'), timed(), wrong())])
    slow, quick = csv.DictReader(io.StringIO(text))
    assert text.count("\n") == 3
    assert slow["reason"] == 'a,b "c"'
    assert {k: slow[k] for k in ("kind", "series", "time_s", "base_time_s", "change", "change_ci95_low", "pairs")} == {
        "kind": "gate", "series": "gemm/acme.matmul/square-4096/bfloat16/nn/burst/cold/nograph/v1",
        "time_s": "0.0001031", "base_time_s": "0.0001", "change": "0.031", "change_ci95_low": "0.029", "pairs": "3",
    }  # fmt: skip
    assert slow["head_workspace_bytes"] == "2048"
    assert (slow["base_revision"], slow["head_revision"]) == ("abc1234", "def5678")
    assert float(quick["time_s"]) == pytest.approx(32.96e-6, rel=1e-3)
    assert (quick["timer"], quick["gpu_uuid"], quick["change"]) == ("cupti", GPU["uuid"], "")
    assert float(quick["time_over_peer"]) == pytest.approx(1 / 0.725, rel=1e-3)


def test_a_csv_of_nothing_has_its_head():
    assert columns.render([results(wrong())]) == ",".join(columns.COLUMNS) + "\n"


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["comment", "csv", "github"])
def test_the_command_takes_several_files_and_says_what_it_can_not_read(command, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        store.write(path, results(wrong(path.stem), gate(path.stem)))
    assert cli.main([command, *map(str, paths)]) == 0
    assert "gemm/b/" in capsys.readouterr().out
    paths[1].write_text(paths[1].read_text()[:-50])
    assert cli.main([command, *map(str, paths)]) == 4
    told = capsys.readouterr()
    assert told.out == ""
    assert "b.json is not JSON" in told.err
    bare = results()
    bare["benchmarks"] = [{k: v for k, v in gate().items() if k not in ("kind", "what", "series")}]
    store.write(paths[1], bare)
    assert cli.main([command, *map(str, paths)]) == 4
    assert "fits the schema, but a record lacks what is shown: 'kind'" in capsys.readouterr().err
    bare["benchmarks"] = [gate(kind="other", verdict="FAIL")]
    store.write(paths[1], bare)
    assert cli.main(["comment", *map(str, paths)]) == 4
    assert "a record lacks what is shown: 'other' is not in list" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["comment", "csv", "github"])
def test_a_file_that_is_named_twice_counts_once(command, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    one, copy, other = (tmp_path / name for name in ("a.json", "b.json", "c.json"))
    for path in (one, copy):
        path.write_text(json.dumps(results(wrong(), timed())))
    other.write_text(json.dumps(results(wrong("other"), timed("other"), gpu=None)))
    out = []
    for files in ([one], [one, one, copy], [one, other], [one, other, copy]):
        assert cli.main([command, *map(str, files)]) == 0
        out.append(capsys.readouterr().out)
    assert out[0] == out[1] != out[2] == out[3]


def test_the_outputs_import_no_torch():
    code = "import rooftest.outputs.github, rooftest.outputs.columns, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# --- JUnit ------------------------------------------------------------------------------------------------------------


def test_junit_carries_the_numbers_of_a_comparison_and_of_a_time():
    told = {k: v for k, v in run._properties(gate()) if v is not None}
    assert {"change": 0.031, "ci95": [0.029, 0.033], "sigma": 0.004, "mde": 0.0092, "verdict": "FAIL"}.items() <= (
        told.items()
    )
    assert {"delta", "budget", "series", "reason", "device", "id"} <= set(told)
    told = {k: v for k, v in run._properties(timed()) if v is not None}
    assert {"time_s", "time_ci95_s", "efficiency", "series", "verdict", "reason"} <= set(told)
    assert told["time_ci95_s"][0] <= told["time_s"] <= told["time_ci95_s"][1]
