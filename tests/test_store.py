import builtins
import errno
import json
import os
from pathlib import Path

import pytest

from rooftest import cli, store
from rooftest.errors import UsageError


def run(path, n=2):
    made = store.Run(path, {"gpu": None, "software": {}})
    for i in range(n):
        made.add("conformance", entry(i))
    return made


def entry(i):
    return {"id": f"gemm/k{i}/bound/bfloat16-nt", "op": "gemm", "kernel": f"k{i}", "dtype": "bfloat16", "layout": "nt",
            "verdict": "PASS", "ratio": 0.5}  # fmt: skip


def test_a_run_is_one_valid_file_and_its_journal_is_gone(tmp_path):
    path = run(tmp_path / "runs" / "a.json").finish()
    assert [e["kernel"] for e in store.read(path)["conformance"]] == ["k0", "k1"]
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_run_that_is_killed_is_read_as_far_as_it_came(tmp_path):
    made = run(tmp_path / "a.json", 3)  # never finished
    text = made.journal.read_text()
    made.journal.write_text(text[: len(text) - 20])  # killed in the middle of the third record
    assert len(store.read(made.journal)["conformance"]) == 2


def test_records_are_filed_in_the_order_of_their_kernels_whichever_ended_first(tmp_path):
    made = store.Run(tmp_path / "r.json", {"gpu": None, "software": {}})
    for n, kernel in enumerate(("b", "a", "b", "a")):
        made.add("conformance", {"id": f"{kernel}{n}", "kernel": kernel})
        made.add("gate", {"id": f"{kernel}{n}", "kernel": kernel})
    made.arrange(["a", "b"])
    made.finish()
    data = store.load(tmp_path / "r.json")
    for kind in ("conformance", "gate"):
        assert [record["id"] for record in data[kind]] == ["a1", "a3", "b0", "b2"]


def test_a_new_run_keeps_the_journals_of_killed_ones(tmp_path):
    for n in (1, 2):
        run(tmp_path / "a.json", n)  # never finished
    path = run(tmp_path / "a.json", 3).finish()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "a.json.part.1", "a.json.part.2"]
    assert [len(store.read(path.with_name(f"a.json.part.{n}"))["conformance"]) for n in (1, 2)] == [1, 2]
    assert store.read(tmp_path / "a.json.part.1")["complete"] is False


def test_a_full_disk_is_one_line_and_earlier_files_are_intact(tmp_path, monkeypatch):
    path = run(tmp_path / "a.json").finish()
    before = path.read_text()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=r"cannot write .*a.json: No space left on device"):
        store.write(path, {"new": 1})
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_while_recording_is_one_line(tmp_path):
    made = run(tmp_path / "a.json")
    made._file = Path("/dev/full").open("w")  # noqa: SIM115  the run closes it
    with pytest.raises(UsageError, match="No space left on device"):
        made.add("conformance", entry(3))
    assert len(store.recover(made.journal)["conformance"]) == 2


def test_nan_becomes_null(tmp_path):
    store.write(tmp_path / "a.json", {"x": float("nan"), "y": [float("inf"), 1.5], "z": (1,)})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": None, "y": [None, 1.5], "z": [1]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: [], "no results file"),
        (lambda d: d | {"schema_version": 7}, "schema version 7; this rooftest reads version 1"),
        (lambda d: {k: v for k, v in d.items() if k != "benchmarks"}, "lacks benchmarks"),
        (lambda d: d | {"conformance": {}}, "conformance is not a list"),
        (lambda d: d | {"conformance": [{"id": 5}]}, "does not fit the schema at conformance/0"),
        (lambda d: d | {"conformance": [entry(0) | {"verdict": "MAYBE"}]}, "MAYBE"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path, change, message):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(change(store.empty({"gpu": None, "software": {}}, None))))
    with pytest.raises(UsageError, match=message):
        store.read(path)


@pytest.fixture
def bare(monkeypatch):
    """The core install, which lacks jsonschema."""
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "jsonschema":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)


BENCHMARK = {**entry(0), "stats": None, "extra_info": None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conformance": ["x"]}, "conformance/0: 'x' is no object"),
        ({"conformance": [{"id": 5}]}, "conformance/0: lacks op, kernel"),
        ({"conformance": [entry(0) | {"ratio": "big"}]}, "conformance/0/ratio: 'big' is no number or null"),
        ({"conformance": [entry(0) | {"ratio": True}]}, "conformance/0/ratio: 'True' is no number"),
        ({"conformance": [entry(0) | {"verdict": "MAYBE"}]}, "conformance/0/verdict: 'MAYBE' is none of"),
        ({"machine_info": None}, "machine_info: 'None' is no object"),
        ({"machine_info": {"gpu": 3, "software": {}}}, "machine_info/gpu: '3' is no object"),
        ({"machine_info": {"gpu": None, "software": {"torch": 2}}}, "machine_info/software/torch: '2' is no string"),
        ({"created": 3}, "created: '3' is no string"),
        ({"benchmarks": [BENCHMARK | {"stats": {"min": 1}}]}, "benchmarks/0/stats: lacks max"),
        ({"complete": "yes"}, "complete: 'yes' is no boolean"),
    ],
)
@pytest.mark.parametrize("command", ["show", "validate"])
def test_without_jsonschema_the_schema_is_checked_all_the_same(tmp_path, capsys, bare, command, change, message):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(store.empty({"gpu": None, "software": {}}, None) | change))
    assert cli.main([command, str(path)]) == 4
    error = capsys.readouterr().err
    assert f"ERROR: {path} does not fit the schema at {message}" in error
    assert error.count("\n") == 1


def test_without_jsonschema_what_we_write_is_valid(bare, tmp_path):
    store.read(run(tmp_path / "a.json").finish())
    for path in sorted((Path(__file__).parents[1] / "results" / "runs").rglob("*.json")):
        store.read(path)


@pytest.mark.parametrize("text", ["3", '{"head": 3}', '{"head": {}}\n3', "[" * 100_000, "1" * 5000])
def test_a_journal_of_something_else_is_one_line(tmp_path, capsys, text):
    path = tmp_path / "a.json.part"
    path.write_text(text)
    assert cli.main(["show", str(path)]) == 4
    assert capsys.readouterr().err.count("\n") == 1


def test_records_that_the_tables_can_not_show_are_one_line(tmp_path, capsys):
    assert cli.main(["show", str(run(tmp_path / "a.json").finish())]) == 4
    assert "a record lacks what is shown: 'kind'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show", "validate"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "is no run's results: it has no schema_version"),
        ('{"what": "device times"}', "is no run's results but 'device times'"),
        ('{"schema_version": 1, "ratio": NaN}', "is not JSON: NaN is no number there"),
        ('{"schema_version": 1, "ratio": -Infinity}', "is not JSON: -Infinity is no number there"),
        ('{"schema_version": true}', "schema version True"),
        ('{"schema_version": ' + "1" * 5000 + "}", "is not JSON: Exceeds the limit"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"schema_version": 1, "a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    ],
)
def test_what_is_no_run_is_one_line(tmp_path, capsys, command, text, message):
    path = tmp_path / "a.json"
    path.write_text(text)
    assert cli.main([command, str(path)]) == 4
    error = capsys.readouterr().err
    assert error.startswith(f"ERROR: {path} ")
    assert message in error
    assert error.count("\n") == 1


def test_a_report_is_told_from_results(tmp_path):
    (tmp_path / "report.json").write_text('{"report_version": 1}')
    with pytest.raises(UsageError, match="is a report, no run's results: `rooftest report` prints it"):
        store.read(tmp_path / "report.json")


def test_files_that_cannot_be_read_are_one_line(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        store.read(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text('{"a": ')
    with pytest.raises(UsageError, match=r"not JSON.* line 1"):
        store.read(tmp_path / "cut.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        store.read(tmp_path / "bytes.json")
    (tmp_path / "x.part").write_text("")
    with pytest.raises(UsageError, match="no journal"):
        store.read(tmp_path / "x.part")


def test_the_schema_is_a_schema():
    jsonschema = pytest.importorskip("jsonschema", reason="the dev extra brings it")
    jsonschema.Draft202012Validator.check_schema(store.schema())
