"""Rows: what is wrong with one is said in a line that names the file, the row and the key."""

import pytest

from rooftest import rows, silence
from rooftest.domain import share
from rooftest.errors import UsageError
from rooftest.process import Signature

GOOD = {"op": "gemm", "call": "mylib:matmul"}
OWN = {"op": "none", "call": "mylib:launch", "compiled": {"sm_90": {"spills": 0}}}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"call": "m:f"}, 'needs op = "..."'),
        ({"op": "gemm"}, 'needs call = "..."'),
        (GOOD | {"op": "gem"}, "no op 'gem'"),
        (GOOD | {"call": "mylib.matmul"}, 'must read "module:function"'),
        (GOOD | {"dtype": ["bfloat16"]}, "key 'dtype'.*did you mean 'dtypes'"),
        (GOOD | {"dtypes": ["bf16"]}, "dtype 'bf16'.*did you mean 'bfloat16'"),
        (GOOD | {"claims": ["determinstic"]}, "claim 'determinstic'.*did you mean 'deterministic'"),
        (GOOD | {"layouts": ["xy"]}, "layout 'xy'"),
        (GOOD | {"devices": ["tpu"]}, "device 'tpu'"),
        (GOOD | {"multiple": {"Q": 8}}, "multiple axis 'Q'"),
        (GOOD | {"multiple": 8}, "multiple must be a table"),
        (GOOD | {"claims": 3}, "claims must be a list"),
        (GOOD | {"args": {"x": "a"}}, "renamed tensor 'x'"),
        (GOOD | {"contract": "bf16"}, "contract 'bf16'"),
        (GOOD | {"outside": "crashes"}, "outside 'crashes'"),
        (OWN | {"dtypes": ["bfloat16"]}, "of op 'none' only machine code is judged, dtypes says nothing: remove it"),
        (OWN | {"claims": ["deterministic"]}, "only machine code is judged, claims says nothing"),
        (OWN | {"compiled": {}}, "op 'none' needs compiled = "),
        ({"op": "none", "call": "mylib:launch"}, "op 'none' needs compiled = "),
        ("mylib:matmul", "a row is a table"),
        (GOOD | {"multiple": {"K": "64"}}, "multiple.K must be a whole number from 1 up, not '64'"),
        (GOOD | {"multiple": {"K": 0}}, "multiple.K must be a whole number from 1 up, not 0"),
        (GOOD | {"tile": {"M": 0}}, "tile.M must be a whole number"),
        (GOOD | {"at_least": {"M": -1}}, "at_least.M must be a whole number from 0 up"),
        (GOOD | {"vector": "8"}, "vector must be a whole number from 1 up"),
        (GOOD | {"vector": True}, "vector must be a whole number from 1 up"),
        (GOOD | {"arch": ["sm_90"]}, "arch must be a whole number from 1 up, not 'sm_90'"),
        (GOOD | {"peer": 1}, "peer must be true or false"),
        (GOOD | {"configs": 3}, "configs must be a string"),
        (GOOD | {"args": {"c": 1}}, "args.c must be a string"),
        (GOOD | {"dtypes": [16]}, "dtypes must be a string"),
        *(
            (GOOD | {k: []}, f"{k} = .* leaves nothing")
            for k in ("dtypes", "layouts", "strides", "devices", "workloads")
        ),
        (GOOD | {"at_least": {"M": 65}, "at_most": {"M": 64}}, "at_least and at_most leave no size of M: 65 to 64"),
        (GOOD | {"at_least": {"M": 10**9}}, "leave no size of M"),
        (GOOD | {"efficiency": {"h200": 80}}, "efficiency.h200 must be above 0 and up to 1.5, not 80"),
        (GOOD | {"efficiency": {"h200": "fast"}}, "efficiency.h200 must be above 0"),
        (GOOD | {"efficiency": {"h200": float("nan")}}, "efficiency.h200 must be above 0"),
        (GOOD | {"workloads": ["no-such-*"]}, "workloads 'no-such-.*' matches none of gemm's: square-1024"),
    ],
)
def test_what_is_wrong_is_named(table, says):
    with pytest.raises(UsageError, match=f'pyproject.toml: kernel "acme".*{says}'):
        rows.parse_row("acme", table, "pyproject.toml")


@pytest.mark.parametrize("name", ["acme mm", "a=b", "a/b", 'a"b', "a$b", "a*", ""])
def test_a_name_that_a_printed_case_could_not_hold_is_refused(name):
    with pytest.raises(UsageError, match="a kernel's name is one word without"):
        rows.parse_row(name, GOOD, "pyproject.toml")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("tool = 3", "tool must be a table"),
        ("[tool]\nrooftest = 3", "rooftest must be a table"),
        ("[tool.rooftest]\nkernels = 3", "kernels must be tables"),
        ("[tool.rooftest.kernel.k]\nop = 'gemm'", "key 'kernel' is none of kernels, xfail; did you mean 'kernels'"),
    ],
)
def test_a_section_that_is_wrong_is_named(tmp_path, content, says):
    file = tmp_path / "rows.toml"
    file.write_text(content)
    with pytest.raises(UsageError, match=f"rows.toml: .*{says}"):
        rows.read_rows(file)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("tool = 3", "tool must be a table"),
        ("[tool.rooftest]\nxfails = []", "key 'xfails' is none of kernels, xfail; did you mean 'xfail'"),
        ("[tool.rooftest]\nxfail = 3", "xfail is a list of tables"),
        ("[tool.rooftest]\nxfail = ['gemm/*']", "number 1: an entry is a table of keys"),
    ],
)
def test_known_failures_that_are_wrong_are_named(tmp_path, content, says):
    file = tmp_path / "rows.toml"
    file.write_text(content)
    with pytest.raises(UsageError, match=f"rows.toml: .*{says}"):
        silence.read(file)


def test_defaults_are_the_whole_contract_of_the_op():
    row = rows.parse_row("acme", GOOD, "pyproject.toml")
    assert row.dtypes == row.spec.precisions
    assert row.layouts == row.spec.layouts
    assert row.claims == ()


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"[tool", "is no TOML"), (b"\xff\xfe", "is no TOML"), (None, "cannot be read")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, says):
    file = tmp_path / "rows.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=f"rows.toml: {says}"):
        rows.read_rows(file)


def test_one_off():
    assert rows.one_off("gemm=mylib.ops:matmul", "").name == "mylib.ops.matmul"
    assert rows.one_off("gemm=/home/me/ops.py:matmul", "").name == "ops.matmul"
    with pytest.raises(UsageError, match="must read OP=MODULE:FUNCTION"):
        rows.one_off("mylib.ops.matmul", "")


def test_share_of_the_contract():
    """Half the dtypes, one layout of four, one stride kind of seven, every eighth K; no batch, c0, bias or beta."""
    table = GOOD | {"dtypes": ["float16", "bfloat16"], "layouts": ["nt"], "multiple": {"K": 8}, "without": ["B"]}
    row = rows.parse_row("acme", table, "pyproject.toml")
    signature = Signature(parameters=("a", "b", "alpha"), required=("a", "b"), configs=(), returns=True)
    assert share(row, signature) == 2 / 4 / 4 / 7 / 8 / 2**4


def test_an_optional_axis_that_must_be_there_or_must_not():
    batched = rows.parse_row("acme", GOOD | {"at_least": {"B": 1}}, "pyproject.toml")
    flat = rows.parse_row("acme", GOOD | {"without": ["B"]}, "pyproject.toml")
    matrix = {"M": 1, "N": 1, "K": 1}
    assert batched.admits("float32", "nn", {"B": 1, **matrix})
    assert not batched.admits("float32", "nn", matrix)
    assert flat.admits("float32", "nn", matrix)
    assert not flat.admits("float32", "nn", {"B": 1, **matrix})
