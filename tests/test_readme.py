"""What the README shows of recorded runs is what the results files say, and its commands are those that CI runs."""

import json
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


def test_the_tables_of_the_documentation_are_what_their_results_files_say():
    shown = []
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text()
        assert readme.rewritten(text, ROOT) == text, f"{page.name}: run python tests/readme.py --write"
        shown += readme.TABLE.findall(text)
    assert sorted(what for _, what, *_ in shown) == ["mistakes", "moved", "truth"]


def test_a_table_says_that_it_is_missing_and_shows_what_was_missed(tmp_path):
    page = "before\n\n<!-- {} -->\nold\nold\n\nafter\n"
    for what in readme.MAKERS:
        text = page.format(f"{what}: none.json")
        assert readme.rewritten(text, tmp_path) == text.replace("old\nold", readme.UNMEASURED)
    told = {"time_s": 5e-6, "cupti_s": 4e-6, "ncu": {"none": {"ncu_less_offset_s": 4.1e-6, "by": "cupti"}}}
    told["ncu"]["none"] |= {"apart_s": 1e-6, "met": False}
    bytes_ = {"ncu_read": 2e6, "ncu_written": 1e6, "gpm": 2e6, "ratio": 2 / 3, "met": False, "reason": ""}
    rows = {"add": {"kind": "elementwise", "l2": {"cold": told}}}
    (tmp_path / "a.json").write_text(json.dumps({"rows": rows, "bytes": {"add": bytes_}}))
    row = "| add, elementwise | cold | 5.00 | 4.00 |  |  | 4.10 | +1.00 us CUPTI | MISSED |\n"
    assert row in readme.rewritten(page.format("truth: a.json"), tmp_path)
    row = "| add | 2.0 | 1.0 | 2.0 | 0.667 | MISSED |\n"
    assert row in readme.rewritten(page.format("moved: a.json"), tmp_path)
    ways = {"protocol": {"said": "ours", "time_s": 6e-6, "change": 0.0}, "raw": {"said": "raw", "change": 0.5}}
    (tmp_path / "b.json").write_text(json.dumps({"kernels": {"gemm": ways}}))
    assert "| ours | 6.00 us |\n| raw | +50.0% |\n" in readme.rewritten(page.format("mistakes: b.json"), tmp_path)


def test_both_commands_run_in_ci():
    ci = (ROOT / ".ci/run").read_text()
    for command in ("pytest suites/", "pytest tests/"):
        assert command in TEXT
        assert command in ci
