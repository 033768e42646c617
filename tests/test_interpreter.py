"""The interpreter shim: every replaced operation equals the format's own arithmetic, and is wrong without it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = Path(__file__).with_name("interpreter_probe.py")

# Right in some versions even without the shim; kept, because the shim must not break them. Every other check must be
# wrong there, or it could not fail.
RIGHT_ANYWAY = {
    "abs",
    "argmax",  # triton 3.6 promotes to float32 first
    "cast to float16",
    "cast to int32",
    "descriptor, zero padding",
    "mask of a vector and a scalar",  # right in triton 3.6, refused by 3.9
    "max",
    "min",
}


def python(*args, **env):
    done = subprocess.run([sys.executable, "-W", "ignore", *args], check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def env():
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


def test_every_operation_is_right_with_the_shim(env):
    seen = json.loads(python(str(PROBE), "shim", **env))
    assert seen["faults"] == {}
    assert {name: count for name, count in seen["wrong"].items() if count != 0} == {}


def test_every_operation_is_wrong_without_the_shim(env):
    seen = json.loads(python(str(PROBE), "bare", **env))
    assert {name for name, count in seen["wrong"].items() if count == 0} <= RIGHT_ANYWAY


ASK = """
import json, rooftest.interpreter as it
{fault}
first = it.install()
assert it.install() is first  # once a process
print(json.dumps({{p: it.decidable(p) for p in ("float32", "tf32", "float16", "bfloat16", "float8_e4m3fn", "int4")}}))
"""


def ask(env, fault="", **extra):
    return json.loads(python("-c", ASK.format(fault=fault), **env, **extra))


def test_all_but_float8_is_decidable_under_the_interpreter(env):
    seen = ask(env, TRITON_INTERPRET="1")
    assert [seen[p] for p in ("float32", "tf32", "float16", "bfloat16")] == [None] * 4
    assert seen["float8_e4m3fn"].startswith("float8_e4m3fn: not decidable")
    assert seen["int4"].startswith("int4: not decidable")


def test_nothing_is_decidable_when_triton_was_imported_without_the_interpreter(env):
    seen = ask(env)
    assert all("TRITON_INTERPRET=1 was not set" in seen[p] for p in ("float32", "tf32", "float16", "bfloat16"))


def test_a_missing_hook_makes_bfloat16_undecidable_and_nothing_else(env):
    seen = ask(env, "del it.host.InterpreterBuilder.create_fma", TRITON_INTERPRET="1")
    assert "has no InterpreterBuilder.create_fma" in seen["bfloat16"]
    assert seen["float32"] is None


@pytest.mark.parametrize("broken", ["narrow", "widen"])
def test_a_failed_self_check_makes_bfloat16_undecidable(env, broken):
    seen = ask(env, f"it.{broken} = lambda x, **_: x.astype('u2' if x.dtype == 'f4' else 'f4')", TRITON_INTERPRET="1")
    assert "self-check" in seen["bfloat16"] or "raises" in seen["bfloat16"]
    assert seen["float32"] is None
