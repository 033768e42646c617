"""What the README shows of recorded runs is what the results files say, and its commands are those that CI runs."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

readme = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("readme.py"))))
ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
SHOWN = re.findall(r"<!-- (\w+): (\S+) -->\n(?:```\n)?(.*?)\n(?:```|\n)", TEXT, re.DOTALL)


@pytest.mark.parametrize(("what", "path", "block"), SHOWN, ids=[what for what, *_ in SHOWN])
def test_a_table_is_what_its_results_file_says(what, path, block):
    made = readme.ladder(ROOT / path) if what == "ladder" else readme.printed(ROOT / path)
    assert block == made


def test_there_are_three_tables():
    assert [what for what, *_ in SHOWN] == ["conformance", "speed", "ladder"]


def test_both_commands_run_in_ci():
    ci = (ROOT / ".ci/run").read_text()
    for command in ("pytest suites/", "pytest tests/"):
        assert command in TEXT
        assert command in ci
