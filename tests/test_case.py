"""A case reads back as the line it prints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftest.case import Case, parse
from rooftest.errors import UsageError

NAMES = st.text("abcdefgh.-_0123456789", min_size=1, max_size=12)


@given(
    st.builds(
        Case,
        op=NAMES,
        kernel=NAMES,
        dtype=st.sampled_from(["float32", "bfloat16"]),
        layout=st.sampled_from(["nn", "nt"]),
        sizes=st.dictionaries(st.sampled_from("BMNK"), st.integers(0, 10**6), min_size=1),
        params=st.dictionaries(st.sampled_from(["alpha", "beta"]), st.floats(allow_nan=False)),
        given=st.sampled_from([(), ("c0",), ("c0", "bias")]),
        stride=st.sampled_from(["dense", "ragged", "a:padded,c0:stepped"]),
        config=st.sampled_from([None, "64x64x32"]),
        fill=st.sampled_from(["normal", "onehot"]),
        seed=st.integers(0, 2**31 - 1),
    )
)
def test_round_trip(case):
    assert parse(str(case)) == case


def test_parameters_are_exact_and_short():
    case = Case("gemm", "k", "float32", "nn", {"M": 1}, {"alpha": 1.0, "beta": 0.1234567891})
    assert " alpha=1 beta=0.1234567891 " in str(case)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gemm k bfloat16 nt", "does not read as"),
        ("gemm k bfloat16 nt M", "'M' does not read"),
        ("gemm k bfloat16 nt M=x", "'M=x' does not read"),
        ("gemm k bfloat16 M=1 N=1", "does not read as"),
        ("gemm k bfloat16 nt M=1 seed=now", "'seed=now' does not read"),
        ("gemm k bfloat16 nt M=1 stride=a:padded,b", "'stride=a:padded,b' does not read"),
    ],
)
def test_what_does_not_read_is_named(text, says):
    with pytest.raises(UsageError, match=says):
        parse(text)
