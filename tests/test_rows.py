"""Rows: what is wrong with one is said in a line that names the file, the row and the key."""

import pytest

from rooftest import rows
from rooftest.domain import share
from rooftest.errors import UsageError
from rooftest.process import Signature

GOOD = {"op": "gemm", "call": "mylib:matmul"}


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
        ("mylib:matmul", "a row is a table"),
    ],
)
def test_what_is_wrong_is_named(table, says):
    with pytest.raises(UsageError, match=f'pyproject.toml: kernel "acme".*{says}'):
        rows.parse_row("acme", table, "pyproject.toml")


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
    """Half the dtypes, one layout of four, one stride kind of five, every eighth K; no batch, c0, bias or beta."""
    table = GOOD | {"dtypes": ["float16", "bfloat16"], "layouts": ["nt"], "multiple": {"K": 8}, "without": ["B"]}
    row = rows.parse_row("acme", table, "pyproject.toml")
    signature = Signature(parameters=("a", "b", "alpha"), required=("a", "b"), configs=(), returns=True)
    assert share(row, signature) == 2 / 4 / 4 / 5 / 8 / 2**4


def test_an_optional_axis_that_must_be_there_or_must_not():
    batched = rows.parse_row("acme", GOOD | {"at_least": {"B": 1}}, "pyproject.toml")
    flat = rows.parse_row("acme", GOOD | {"without": ["B"]}, "pyproject.toml")
    matrix = {"M": 1, "N": 1, "K": 1}
    assert batched.admits("float32", "nn", {"B": 1, **matrix})
    assert not batched.admits("float32", "nn", matrix)
    assert flat.admits("float32", "nn", matrix)
    assert not flat.admits("float32", "nn", {"B": 1, **matrix})
