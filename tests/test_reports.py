"""What an adopter keeps of a run: --roof-report, `rooftest report`, JUnit, from another repository and the wheel."""

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from rooftest import cli, digest, page, store, tables
from rooftest.case import parse
from rooftest.errors import UsageError
from rooftest.outputs import markdown

ROOT = Path(__file__).parents[1]
OPS = """
CONFIGS = {"narrow": 16, "wide": 64}

def right(a, b, *, out):
    out.copy_((a.double() @ b.double()).to(out.dtype))

def wrong(a, b, *, out):
    right(a, b, out=out)
    if out.numel():
        out[..., -1, -1] += 1

def tuned(a, b, *, out, config=None):
    (wrong if config == "wide" else right)(a, b, out=out)

def moody(a, b, *, out, count=[0]):
    count[0] += 1
    right(a, b, out=out)
    out.mul_(1 + 2.0**-23 * (count[0] % 2))
"""
ROW = """[tool.rooftest.kernels."{name}"]
op = "gemm"
call = "ops.py:{call}"
args = {{ c = "out" }}
devices = ["cpu"]
dtypes = ["float32"]
layouts = ["nn"]
{more}
"""
CLAIMS = 'claims = ["deterministic", "single-launch"]'
ROWS = (
    ROW.format(name="acme.right", call="right", more=CLAIMS)
    + ROW.format(name="acme.known", call="wrong", more="")
    + ROW.format(name="acme.wrong", call="wrong", more="")
    + ROW.format(name="acme.tuned", call="tuned", more='configs = "CONFIGS"')
    + ROW.format(name="acme.moody", call="moody", more=CLAIMS)
    + ROW.format(name="acme.cuda", call="right", more=CLAIMS).replace('["cpu"]', '["cuda"]')
)
XFAIL = """
[[tool.rooftest.xfail]]
id = "gemm/acme.known/*"
reason = "off by one in the corner | acme#12"
until = 2999-01-01
"""
SUITE = "".join(
    f'@rooftest.checks("acme.{k}")\ndef test_{k}(check):\n    check()\n\n'
    for k in ("right", "known", "wrong", "tuned", "moody", "cuda")
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folders as a wheel lays them out."""
    made = tmp_path_factory.mktemp("site")
    unused = shutil.ignore_patterns("__pycache__")
    for folder, name in (
        ("rooftest", "rooftest"), ("kernels", "rooftest_kernels"), ("specs", "rooftest/specs"),
        ("suites", "rooftest/suites"),
    ):  # fmt: skip
        shutil.copytree(ROOT / folder, made / name, ignore=unused)
    return made


@pytest.fixture(scope="module")
def start(site):
    def run(folder, *arguments):
        environment = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "120"}
        environment |= {"GITHUB_WORKSPACE": str(folder.parent), "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
        environment.pop("PYTEST_ADDOPTS", None)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--roof-device=cpu", *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="module")
def kept(tmp_path_factory, start):
    """A repository of six kernels, and the folder with what one run on two workers left."""
    folder = tmp_path_factory.mktemp("acme")
    (folder / "pyproject.toml").write_text(ROWS + XFAIL)
    (folder / "ops.py").write_text(OPS)
    (folder / "test_acme.py").write_text("import rooftest\n\n\n" + SUITE)
    # A file comes to lie where a report's folder was to be made: nothing was wrong with its name at the start.
    (folder / "conftest.py").write_text("def pytest_sessionfinish():\n    open('taken', 'w').close()\n")
    files = [
        "--roof-report=taken/r.md",
        "--roof-report=r.json",
        "--roof-report=r.md",
        "--roof-report=r.csv",
        "--roof-github",
        "--roof-results=run.json",
        "--junitxml=junit.xml",
    ]
    done = start(folder, "-n2", "--roof-configs=all", "--roof-examples=3", *files)
    assert done.returncode == 1, done.stdout + done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def report(kept):
    return digest.read(kept[0] / "r.json")


def kernel(report, name):
    return next(k for k in report["kernels"] if k["kernel"] == f"acme.{name}")


def status(report, name, what):
    entry = kernel(report, name)
    found = {r["rung"]: r for r in entry["rungs"]} | {c["claim"]: c for c in entry["claims"]}
    return found[what]["status"], found[what]["why"]


def test_the_report_is_said_and_is_whole_on_two_workers(kept, report):
    for name in ("r.json", "r.md", "r.csv"):
        assert f"report: {kept[0] / name}" in kept[1]
    assert report["complete"] is True
    assert {k["kernel"]: k["verdict"] for k in report["kernels"]} == {
        "acme.right": "PASS", "acme.known": "KNOWN", "acme.wrong": "FAIL", "acme.tuned": "FAIL", "acme.moody": "FAIL",
        "acme.cuda": "NOT DECIDED",
    }  # fmt: skip
    assert {r["tests"] for k in report["kernels"] for r in k["rungs"]} == {1}


def test_a_kernel_that_was_only_compiled_reads_the_same_in_the_terminal_and_in_a_report():
    data = store.read(ROOT / "results/runs/h200-2026-12-01-all-2.json")

    mine = [r for r in data["conformance"] if r["kernel"] == "blackwell"]

    def reads(verdict):
        records = [r | {"verdict": verdict} if r["what"] == "compiled" else r for r in mine]
        made = digest.of_results(data | {"conformance": records})
        digest.check(made, "made")
        [kernel] = made["kernels"]
        assert f"| {kernel['verdict']} |" in page.render(made)
        return tables.judged(records)[-1], kernel["verdict"]

    assert reads("PASS") == ("compiled only", "compiled only")
    assert reads("FAIL") == ("FAIL 1", "FAIL")
    assert reads("INVALID") == ("INVALID 1", "NOT DECIDED")
    assert reads(None) == ("left out", "NOT DECIDED")


@pytest.mark.parametrize(
    ("name", "what", "found"),
    [
        ("right", "bound", ("held", None)),
        ("right", "deterministic", ("held", None)),
        ("right", "single-launch", ("not decided", "is tested on a GPU only")),
        ("right", "capturable", ("not claimed", None)),
        ("wrong", "bound", ("broken", None)),
        ("wrong", "determinism", ("not claimed", "claims none of: deterministic, batch-invariant")),
        ("known", "bound", ("known failure", None)),
        ("moody", "deterministic", ("broken", None)),
        ("cuda", "bound", ("not decided", "runs on cuda only, this is cpu")),
        ("cuda", "deterministic", ("not decided", "no example put it to the test")),
    ],
)
def test_each_rung_and_claim_says_whether_it_held(report, name, what, found):
    assert status(report, name, what) == found


def test_the_worst_ratio_has_its_case_and_a_failure_its_command(report):
    bound = next(r for r in kernel(report, "right")["rungs"] if r["rung"] == "bound")
    assert 0 <= bound["worst"]["ratio"] <= 1
    assert bound["worst"]["case"].startswith("gemm acme.right float32 nn ")
    assert str(parse(bound["worst"]["case"])) == bound["worst"]["case"]  # so --roof-case takes it
    assert bound["examples"] == 3
    failure = next(f for f in kernel(report, "wrong")["failures"] if "/bound/" in f["id"])
    assert failure["message"].startswith("gemm: acme.wrong is wrong, rung bound")
    assert re.fullmatch(r'pytest --roof-device=cpu --roof-case="gemm acme.wrong .*"', failure["reproduce"])
    assert 0 < kernel(report, "right")["domain"]["share"] < 1


def test_each_configuration_is_reported(report):
    told = {c["config"]: c for c in kernel(report, "tuned")["configs"]}
    assert {name: c["status"] for name, c in told.items()} == {None: "held", "narrow": "held", "wide": "broken"}
    assert "gemm/acme.tuned/bound/float32-nn" in told["wide"]["wrong_in"]
    assert kernel(report, "right")["configs"] == []


def test_a_report_that_lacks_a_test_is_not_complete(tmp_path, start):
    """A fixture failed, or the test's worker of xdist was killed: pytest reports a failure, and nobody a record."""
    (tmp_path / "pyproject.toml").write_text(ROW.format(name="acme.cuda", call="right", more="").replace("cpu", "cuda"))
    (tmp_path / "test_acme.py").write_text(
        "import pytest, rooftest\n\n@pytest.fixture\ndef fails(check):\n    assert check.what != 'law'\n\n"
        "@rooftest.checks('acme.cuda')\ndef test_it(fails, check): check()\n"
    )
    start(tmp_path, "-k", "bound or law", "--roof-report=r.json")
    made = digest.read(tmp_path / "r.json")
    assert [r["rung"] for k in made["kernels"] for r in k["rungs"]] == ["bound"]
    assert made["complete"] is False


def test_what_was_silenced_is_reported(report):
    assert {s["id"] for s in report["silenced"]} >= {"gemm/acme.known/bound/float32-nn"}
    assert {(s["entry"], s["until"]) for s in report["silenced"]} == {("gemm/acme.known/*", "2999-01-01")}


def test_the_report_fits_its_schema_and_the_command_reads_it(kept, capsys):
    jsonschema = pytest.importorskip("jsonschema", reason="the dev extra brings it")
    jsonschema.Draft202012Validator.check_schema(store.schema(1, "report"))
    assert cli.main(["validate", str(kept[0] / "r.json")]) == 0
    assert capsys.readouterr().out.endswith("r.json: valid report\n")
    assert cli.main(["report", str(kept[0] / "r.json")]) == 0
    assert capsys.readouterr().out == (kept[0] / "r.md").read_text()


def test_a_results_file_gives_the_same_report(kept, report):
    made = digest.read(kept[0] / "run.json")
    assert made["kernels"] == report["kernels"]
    assert made["silenced"] == report["silenced"]


def test_a_results_file_of_before_there_were_claims_gives_a_page(capsys):
    path = ROOT / "results/runs/h200-2026-12-01-conformance.json"
    assert cli.main(["report", str(path)]) == 0
    text = capsys.readouterr().out
    assert "NVIDIA H200" in text
    assert "**interrupted**" in text
    assert re.search(r"\| `step4_dot` \| PASS \| 100% \| - \| 0\.", text)


def test_every_table_of_the_page_is_one(kept):
    text = (kept[0] / "r.md").read_text()
    assert re.search(r"\| `acme.right` \| PASS \| .* \| deterministic, single-launch \(not decided\) \| ", text)
    assert "**broken: deterministic**" in text
    assert "off by one in the corner \\| acme#12" in text
    assert "- runs on cuda only, this is cpu (`acme.cuda`: contract, exact, law, bound, determinism)" in text
    lines = [re.sub(r"\\\|", "", line) for line in text.splitlines()]
    tables = "\n".join(line if line.startswith("|") else "" for line in lines).split("\n\n")
    widths = [{line.count("|") for line in table.splitlines() if line} for table in tables]
    assert all(len(width) == 1 for width in widths if width)


def test_junit_says_the_same(kept):
    root = ET.parse(kept[0] / "junit.xml").getroot()  # noqa: S314 - our own file
    told = [{p.get("name"): p.get("value") for p in case.iter("property")} for case in root.iter("testcase")]
    found = {t["id"]: t for t in told}
    right = found["gemm/acme.right/bound/float32-nn"]
    assert {k: right[k] for k in ("rung", "examples", "device", "verdict")} == {
        "rung": "bound", "examples": "3", "device": "cpu", "verdict": "PASS",
    }  # fmt: skip
    assert float(right["ratio"]) <= 1
    assert right["worst"].startswith("gemm acme.right")
    assert {"reading", "domain"} <= set(right)
    assert found["gemm/acme.tuned/bound/float32-nn"]["wrong_configs"] == "wide"
    assert found["gemm/acme.moody/determinism/float32-nn"]["ratio"] == "inf"
    assert found["gemm/acme.known/bound/float32-nn"]["known"].startswith("off by one")
    assert found["gemm/acme.cuda/bound/float32-nn"]["reason"] == "runs on cuda only, this is cpu"


def test_junit_counts_what_is_wrong_as_failures(kept):
    root = ET.parse(kept[0] / "junit.xml").getroot()  # noqa: S314 - our own file
    for case in root.iter("testcase"):
        told = {p.get("name"): p.get("value") for p in case.iter("property")}
        failed = case.find("failure")
        assert (failed is not None) == (told.get("verdict") == "FAIL" and "known" not in told)
        assert failed is None or "acme." in failed.get("message")


def test_github_is_told_of_each_kernel_that_fails_beside_its_function(kept):
    lines = [line for line in kept[1].splitlines() if line.startswith("::")]
    assert [re.search(r"file=(\S+?),line=(\d+),title=gemm/(\S+?)/", line).groups() for line in lines] == [
        (f"{kept[0].name}/ops.py", str(OPS.splitlines().index(head) + 1), name)
        for name, head in (
            ("acme.moody", "def moody(a, b, *, out, count=[0]):"),
            ("acme.tuned", "def tuned(a, b, *, out, config=None):"),
            ("acme.wrong", "def wrong(a, b, *, out):"),
        )
    ]
    assert f"step summary: {kept[0] / 'summary.md'}" in kept[1]
    assert (kept[0] / "summary.md").read_text().startswith("### rooftest: ")


def test_the_command_tells_what_the_run_told(kept, capsys, monkeypatch):
    monkeypatch.chdir(kept[0])
    monkeypatch.setenv("GITHUB_WORKSPACE", str(kept[0].parent))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(kept[0] / "again.md"))
    assert cli.main(["github", "run.json"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert told == [line for line in kept[1].splitlines() if line.startswith("::")]
    dated = re.compile(r"\d{4}-\d{2}-\d{2}T\S+")
    again, first = (dated.sub("", (kept[0] / name).read_text()) for name in ("again.md", "summary.md"))
    assert again == first
    assert cli.main(["csv", "run.json"]) == 0
    assert capsys.readouterr().out == (kept[0] / "r.csv").read_text()


def test_a_report_that_can_not_be_written_is_said_and_the_others_are_written(kept):
    assert f"not decided: cannot write {kept[0] / 'taken' / 'r.md'}: " in kept[1]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("r.html", "--roof-report=r.html: a report is .json, .md, .csv, by the end of its name"),
        (".", "--roof-report=. is a folder; name a file in it"),
    ],
)
def test_a_report_of_no_kind_is_one_line_before_anything_runs(kept, start, name, line):
    done = start(kept[0], f"--roof-report={name}")
    assert done.returncode == 4
    assert line in done.stderr


def test_two_files_of_one_name_and_a_workload_that_is_none_are_one_line_before_anything_runs(kept, start):
    done = start(kept[0], "--roof-report=r.json", "--roof-results=r.json")
    assert done.returncode == 4
    assert "r.json is named twice by --roof-results and --roof-report: one would be lost" in done.stderr
    done = start(kept[0], "--roof-workloads=nosuch")
    assert done.returncode == 4
    assert "--roof-workloads 'nosuch' matches none that a row takes; there are square-1024, " in done.stderr


def test_without_a_test_of_ours_no_report_is_written_and_that_is_said(tmp_path, start):
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    done = start(tmp_path, "--roof-report=r.md")
    assert "no report was written: no test of rooftest ran" in done.stdout
    assert not (tmp_path / "r.md").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"report_version": 2}, "is a report of version 2; this rooftest reads version 1"),
        ({"report_version": 1}, "does not fit the schema at the top level: lacks created"),
        ({"kernels": []}, "is no run's results: it has no schema_version"),
    ],
)
def test_what_is_no_report_is_one_line(tmp_path, data, message):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=re.escape(message)):
        digest.read(path)


def test_a_message_with_backticks_stays_in_its_block():
    assert markdown.code("a ``` b").splitlines() == ["````", "a ``` b", "````"]
