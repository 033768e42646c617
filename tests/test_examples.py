"""The examples of docs/ci.md: they parse, every option and command in them exists, and they do what they say."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from rooftest import cli, options, store

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs/examples"
SCRIPTS = sorted(EXAMPLES.glob("*.sh"))
UUID = "GPU-7a83c607-3a4d-9c92-985a-881af537acf6"
# Writes down how it was called; ends with the code named in $CODES for what was asked.
PYTEST = r"""
echo "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-} $*" >> calls
case "$*" in *profile=nightly*) exit ${RIGHT:-0};; *against*) exit ${SPREAD:-0};; esac
exit ${FAST:-0}
"""
WORDS = """printf '%s|' "$@" >> calls; echo >> calls"""


class Declared:
    """Stands for pytest's parser."""

    def __init__(self):
        self.choices = {}

    def getgroup(self, *_):
        return self

    def addoption(self, name, **more):
        self.choices[name] = more.get("choices")


@pytest.fixture(scope="module")
def declared():
    parser = Declared()
    options.add(parser)
    return parser.choices


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Run a script in an empty folder, with stubs in front of what is installed."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()

    def run(script, stubs=None, *arguments, **environment):
        for name, text in ({"pytest": PYTEST} | (stubs or {})).items():
            path = tmp_path / "bin" / name
            path.write_text(f"#!/usr/bin/env bash\n{text}\n")
            path.chmod(0o755)
        told = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "SLURM_SUBMIT_DIR")}
        told["HOME"] = str(tmp_path / "home")
        command = ["bash", "-e", str(script), *arguments]  # as GitHub's runner
        return subprocess.run(
            command, cwd=tmp_path, env=told | environment, capture_output=True, text=True, check=False, timeout=60
        )

    return run


def calls(tmp_path):
    return (tmp_path / "calls").read_text().splitlines()


def words_of(tmp_path):
    """How pytest was called, word by word."""
    return [line.split("|")[:-1] for line in calls(tmp_path)]


def said(words):
    """What follows -k."""
    return [after for word, after in pairwise(words) if word == "-k"]


def workflow():
    yaml = pytest.importorskip("yaml", reason="PyYAML reads the workflow")
    return yaml.safe_load((EXAMPLES / "gate.yml").read_text())


def steps():
    return {step.get("name", step.get("uses")): step for step in workflow()["jobs"]["gate"]["steps"]}


PAGES = [ROOT / "docs" / name for name in ("ci.md", "gate.md", "history.md")]


@pytest.mark.parametrize("path", [*sorted(EXAMPLES.iterdir()), *PAGES], ids=lambda path: path.name)
def test_every_option_and_command_in_an_example_exists(path, declared):
    text = path.read_text()
    for option, value in re.findall(r"(--roof-[a-z-]+)(?:=(\S+))?", text):
        assert option in declared, f"{path.name}: {option}"
        if option == "--roof-profile":
            assert value in options.PROFILES
        if option == "--roof-report":
            assert value.strip('"').endswith(options.REPORTS)
    for command in re.findall(r"(?m)^\s*rooftest (\w+)", text):
        assert command in cli.COMMANDS


def test_each_example_stands_in_the_page_that_explains_it():
    linked = re.findall(r"\(examples/(\S+?)\)", (ROOT / "docs/ci.md").read_text())
    assert sorted(linked) == sorted(path.name for path in EXAMPLES.iterdir())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_parses_and_can_be_started(path):
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(path)], check=True)


# --- GitHub Actions ---------------------------------------------------------------------------------------------------


def test_the_workflow_asks_for_no_more_than_it_needs_and_runs_no_strangers_code():
    made = workflow()
    assert made["permissions"] == {"contents": "read", "pull-requests": "write"}
    gate = made["jobs"]["gate"]
    assert "head.repo.full_name == github.repository" in gate["if"]
    assert "self-hosted" in gate["runs-on"]
    assert steps()["actions/checkout@v4"]["with"]["fetch-depth"] == 2
    for step in steps().values():
        script = step.get("run", "")
        assert "${{" not in script  # what a pull request may choose goes through the environment, not into a script
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("old", ["", r"41\n42\n"])
def test_the_comment_of_the_push_before_is_written_over(start, tmp_path, old):
    (tmp_path / "out").mkdir()
    shutil.copy(ROOT / "results/runs/h200-2026-12-01-speed.json", tmp_path / "out/fast.json")
    (tmp_path / "spread.sh").write_text(steps()["known spread"]["run"])
    assert start(tmp_path / "spread.sh").returncode == 0
    assert (tmp_path / "results/spread").resolve() == tmp_path / "home/rooftest-spread"
    (tmp_path / "comment.sh").write_text(steps()["comment"]["run"])
    gh = f'echo "$* marker=$MARKER" >> gh\ncase "$*" in *paginate*) printf "{old}";; esac'
    done = start(tmp_path / "comment.sh", {"gh": gh}, GITHUB_REPOSITORY="acme/kernels", PULL="7")
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "gh").read_text().splitlines()
    assert "marker=<!-- rooftest: NVIDIA H200 -->" in asked[0]
    assert "repos/acme/kernels/issues/7/comments" in asked[0]
    place = "-X PATCH repos/acme/kernels/issues/comments/41" if old else "repos/acme/kernels/issues/7/comments"
    assert asked[1].startswith(f"api {place} -F body=@out/comment.md")
    assert (tmp_path / "out/comment.md").read_text().startswith("<!-- rooftest: NVIDIA H200 -->\n### rooftest: 20 PASS")


# --- cron -------------------------------------------------------------------------------------------------------------


def test_a_night_is_three_runs_with_files_of_their_own(start, tmp_path):
    done = start(EXAMPLES / "nightly.sh", None, "--roof-device=cuda:1")
    assert done.returncode == 0, done.stderr
    right, fast, spread = calls(tmp_path)
    assert "--roof-profile=nightly" in right
    assert "--roof-against=HEAD" in spread
    assert "--roof-workloads=*" in fast
    files = [word for line in (right, fast, spread) for word in shlex.split(line) if "results=" in word]
    assert len(set(files)) == 3
    assert all(line.endswith("--roof-device=cuda:1") for line in (right, fast, spread))
    assert (tmp_path / "results/spread").resolve() == tmp_path / "home/rooftest-spread"
    assert re.search(r"nightly/\d{4}-\d{2}-\d{2}/right\.json", right)


@pytest.mark.parametrize("words", [["-k", "step8 or step7"], ["-kstep8 or step7"], ["-k=step8 or step7"]])
def test_a_word_of_the_caller_narrows_each_run_and_replaces_none(start, tmp_path, words):
    assert start(EXAMPLES / "nightly.sh", {"pytest": WORDS}, *words, "--roof-device=cuda:1").returncode == 0
    right, fast, spread = words_of(tmp_path)
    assert said(right) == ["not speed and (step8 or step7)"]
    assert said(fast) == said(spread) == ["speed and (step8 or step7)"]
    assert {each[-1] for each in (right, fast, spread)} == {"--roof-device=cuda:1"}
    smi = {"nvidia-smi": f"echo {UUID}", "pytest": WORDS}
    assert start(EXAMPLES / "array.sh", smi, *words, CUDA_VISIBLE_DEVICES="3").returncode == 0
    assert said(words_of(tmp_path)[-1]) == ["speed and (step8 or step7)"]


def test_a_word_that_the_caller_forgot_is_said_before_anything_runs(start, tmp_path):
    done = start(EXAMPLES / "nightly.sh", None, "-k")
    assert done.returncode != 0
    assert "-k needs an expression" in done.stderr
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize(
    ("codes", "whole"),
    [
        ({"RIGHT": "1"}, 1), ({"FAST": "10"}, 10), ({"RIGHT": "10", "FAST": "1"}, 1), ({"RIGHT": "1", "FAST": "10"}, 1),
        ({"SPREAD": "5"}, 0), ({"RIGHT": "4", "SPREAD": "10"}, 4),
    ],
)  # fmt: skip
def test_a_night_goes_on_after_a_failure_and_ends_with_the_worst(start, tmp_path, codes, whole):
    assert start(EXAMPLES / "nightly.sh", **codes).returncode == whole
    assert len(calls(tmp_path)) == 3


def test_a_night_is_left_out_while_the_one_before_is_going(start, tmp_path):
    with subprocess.Popen(
        ["flock", ".nightly.lock", "bash", "-c", "echo held; read"],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as held:  # fmt: skip
        held.stdout.readline()
        done = start(EXAMPLES / "nightly.sh")
        held.communicate("\n")
    assert done.returncode == 10
    assert "the run before is still going" in done.stderr
    assert not (tmp_path / "calls").exists()


def test_a_night_on_this_machine_leaves_results_that_can_be_read(start, tmp_path):
    """The real pytest, on one kernel without a GPU; what needs one says so. The third run is the gate's."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.rooftest.kernels."acme.matmul"]\nop = "gemm"\ncall = "ops.py:matmul"\nargs = { c = "out" }\n'
        'devices = ["cpu"]\ndtypes = ["float32"]\nlayouts = ["nn"]\nworkloads = ["square-1024"]\n'
    )
    (tmp_path / "ops.py").write_text(
        "def matmul(a, b, *, out):\n    out.copy_((a.double() @ b.double()).to(out.dtype))\n"
    )
    (tmp_path / "test_acme.py").write_text(
        "import rooftest\n\n\n@rooftest.checks('acme.matmul')\ndef test_right(check): check()\n\n\n"
        "@rooftest.measures('acme.matmul')\ndef test_speed(measurement): measurement()\n"
    )
    # Its own suite in place of that of all ops, which are the first two words.
    real = f'{sys.executable} -m pytest -p no:cacheprovider test_acme.py "${{@:3}}"'
    stub = f'case "$*" in *against*) exit 0;; esac; exec {real}'
    done = start(EXAMPLES / "nightly.sh", {"pytest": stub}, "--roof-device=cpu", "--roof-examples=1", WORKERS="0")
    out = next((tmp_path / "nightly").iterdir())
    assert {r["verdict"] for r in store.read(out / "right.json")["conformance"]} <= {"PASS", None}, done.stdout
    assert store.read(out / "fast.json")["benchmarks"][0]["status"] == "skipped"
    assert (out / "right.md").read_text().startswith("# Conformance")
    assert (out / "fast.csv").read_text().count("\n") == 2


# --- Slurm ------------------------------------------------------------------------------------------------------------


def test_a_job_of_the_array_measures_its_gpu_by_uuid(start, tmp_path):
    smi = f'echo "$*" >> smi; echo {UUID}'
    done = start(EXAMPLES / "array.sh", {"nvidia-smi": smi}, "--roof-energy", CUDA_VISIBLE_DEVICES="3")
    assert done.returncode == 0, done.stderr
    [call] = calls(tmp_path)
    assert call.startswith(f"CUDA_VISIBLE_DEVICES={UUID} --pyargs")
    assert re.search(rf"--roof-results=runs/[-\d]+/{UUID}\.json --roof-energy$", call)
    assert "--id=3" in (tmp_path / "smi").read_text()


@pytest.mark.parametrize(
    ("smi", "environment", "code", "said"),
    [
        (f"echo {UUID}", {}, 1, "no GPU: ask Slurm for --gres=gpu:1"),
        (f"echo {UUID}; echo GPU-2", {"CUDA_VISIBLE_DEVICES": "0,1"}, 4, "more than one GPU was given"),
        ("echo No devices were found", {"CUDA_VISIBLE_DEVICES": "0"}, 4, "gave no UUID but: No devices were found"),
    ],
)
def test_a_job_without_one_gpu_says_so_and_measures_nothing(start, tmp_path, smi, environment, code, said):
    done = start(EXAMPLES / "array.sh", {"nvidia-smi": smi}, **environment)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "calls").exists()


def test_a_gpu_that_was_measured_today_is_left(start, tmp_path):
    stubs = {"nvidia-smi": f"echo {UUID}", "pytest": f"echo called >> calls; touch runs/$(date -u +%F)/{UUID}.json"}
    assert start(EXAMPLES / "array.sh", stubs, CUDA_VISIBLE_DEVICES="0").returncode == 0
    done = start(EXAMPLES / "array.sh", stubs, CUDA_VISIBLE_DEVICES="0")
    assert done.returncode == 10
    assert "is there already" in done.stderr
    assert len(calls(tmp_path)) == 1
