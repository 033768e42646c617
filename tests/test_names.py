"""The plugin is inert elsewhere, and its names are the same from a checkout and from a wheel."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rooftest.spec import load

pytest_plugins = "pytester"
ROOT = Path(__file__).parents[1]
PEERS = set(load("gemm").peers)


def python(code, cwd=None):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, check=False)


def ids(lines):
    return sorted(found.group(1) for line in lines if (found := re.search(r"\[(gemm/.*)\]$", line)))


# --- inert where there is nothing of ours ---------------------------------------------------------------------------


def test_the_plugin_and_the_package_import_no_torch_and_no_hypothesis():
    code = (
        "import rooftest, rooftest.plugin, sys; print([m for m in ('torch', 'hypothesis', 'rich') if m in sys.modules])"
    )
    assert python(code).stdout.strip() == "[]"


def test_other_peoples_runs_import_no_torch_and_see_nothing_of_ours(pytester):
    pytester.makepyfile("import sys\ndef test_plain(): assert 'torch' not in sys.modules")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*roof-*")
    result.stdout.no_fnmatch_line("*= rooftest =*")


@pytest.mark.parametrize("name", ["suites", "specs", "kernels"])
def test_nothing_of_ours_is_importable_at_top_level(tmp_path, name):
    assert (
        "ModuleNotFoundError" in python(f"import {name}", cwd=tmp_path).stderr
        or "rooftest" not in python(f"import {name}; print({name}.__file__)", cwd=tmp_path).stdout
    )


def test_the_checkout_says_what_to_install():
    command = [sys.executable, "-m", "pytest", "-p", "no:rooftest", "--collect-only", "suites"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 4
    assert "pip install -e ." in result.stderr
    assert "Traceback" not in result.stderr


# --- ids ------------------------------------------------------------------------------------------------------------


def test_ids_are_the_same_from_the_checkout_and_by_package_name(tmp_path):
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    run = lambda *more, cwd: ids(  # noqa: E731
        subprocess.run([*command, *more], capture_output=True, text=True, cwd=cwd, check=False).stdout.splitlines()
    )
    elsewhere, here = run("--pyargs", "rooftest.suites", cwd=tmp_path), run("suites", cwd=ROOT)
    assert elsewhere
    assert set(elsewhere) <= set(here)
    assert {name.split("/")[1] for name in elsewhere} == PEERS  # a wheel's user has the op's peers
    assert "gemm/torch.matmul/bound/bfloat16-nt" in elsewhere
    assert "gemm/torch.matmul/square-4096/bfloat16-nn" in elsewhere
