"""The recipe of CONTRIBUTING.md, followed to the letter: its op is judged right, and a slip in its kernel is caught."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"```(?:python|toml)\n# (\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def project(tmp_path):
    """The wheel's layout beside an empty project, with the recipe's files where the recipe says."""
    site = tmp_path / "site"
    for folder, name in (("rooftest", "rooftest"), ("kernels", "rooftest_kernels")):
        shutil.copytree(ROOT / folder, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("specs", "suites"):
        shutil.copytree(ROOT / folder, site / "rooftest" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    places = {
        "specs": site / "rooftest/specs",
        "kernels": site / "rooftest_kernels",
        "suites": site / "rooftest/suites",
    }
    for name, text in BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text()):
        folder, _, file = name.rpartition("/")
        (places.get(folder, tmp_path) / file).write_text(text)
    return tmp_path


def run(project, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(project / "site")}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "--pyargs", "rooftest.suites.test_scale", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *arguments], cwd=project, env=environment, capture_output=True, text=True, check=False
    )


def test_the_op_is_judged_right(project):
    done = run(project)
    assert done.returncode == 0, done.stdout
    assert "scale_rows" in done.stdout


def test_a_slip_in_its_kernel_is_caught(project):
    kernel = project / "site/rooftest_kernels/scale.py"
    kernel.write_text(kernel.read_text().replace("mask=columns < D).to", "mask=columns < D - 1).to"))
    done = run(project, "-k", "bound and float32")
    assert done.returncode == 1, done.stdout
    assert "scale: scale_rows is wrong" in done.stdout
