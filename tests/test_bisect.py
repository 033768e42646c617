"""The commands of docs/gate.md that let `git bisect run` ask the gate, with a pytest that only ends as it is told."""

import re
import subprocess
from pathlib import Path

import pytest

GATE = Path(__file__).parents[1] / "docs/gate.md"
COMMANDS = re.findall(r"(?m)^    (git bisect run sh -c '.*')$", GATE.read_text())
GOOD, BAD, SKIP = 0, 1, 125  # git's words: what is from 1 to 127, but not 125, is bad
# Ends with the code that the revision at hand holds in the file `code`, and writes down how it was called.
PYTEST = '#!/bin/sh\necho "$*" >> "$CALLS"\nexit "$(cat code)"\n'


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Run a command in a repository of its own, with that pytest in front of the real one."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/pytest").write_text(PYTEST)
    (tmp_path / "bin/pytest").chmod(0o755)
    (tmp_path / "repo").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin:/usr/local/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("KERNEL", "step4_dot")
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.com")

    def run(command):
        return subprocess.run(
            ["sh", "-c", command], cwd=tmp_path / "repo", capture_output=True, text=True, check=False, timeout=60
        )

    return run


def history(shell, folder, codes):
    """Commit one revision a code; return their hashes."""
    shell("git init -q .")
    made = []
    for n, code in enumerate(codes):
        (folder / "repo/code").write_text(f"{code}\n")
        shell(f"git add code && git commit -q --allow-empty -m {n}")
        made.append(shell("git rev-parse HEAD").stdout.strip())
    return made


def test_there_is_a_command_for_a_gpu_and_one_for_none():
    assert ["-m compiled" in command for command in COMMANDS] == [False, True]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("code", "told"),
    [(0, GOOD), (1, BAD), (2, SKIP), (3, SKIP), (4, SKIP), (5, SKIP), (10, SKIP), (137, SKIP)],
)
def test_what_pytest_ends_with_is_told_to_git_in_its_own_codes(shell, tmp_path, monkeypatch, command, code, told):
    monkeypatch.setenv("GOOD", "abc")
    (tmp_path / "repo/code").write_text(str(code))
    assert shell(command.removeprefix("git bisect run ")).returncode == told
    [call] = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith("suites/ ")
    assert call.endswith("--roof-against=abc -k step4_dot")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_planted_commit_is_found_past_one_that_cannot_be_decided(shell, tmp_path, monkeypatch, command):
    made = history(shell, tmp_path, [0, 0, 0, 1, 10, 1, 1, 1, 1])
    monkeypatch.setenv("GOOD", made[0])
    assert shell("git bisect start HEAD $GOOD").returncode == 0
    done = shell(command)
    assert f"{made[3]} is the first bad commit" in done.stdout, done.stdout + done.stderr
    calls = (tmp_path / "calls").read_text()
    assert calls.count(f"--roof-against={made[0]} ") == calls.count("\n")
    assert shell("git bisect log").stdout.count("git bisect skip") == 1
