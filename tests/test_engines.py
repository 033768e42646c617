"""The engine table: every row is whole, contracts admit both ways of accumulating, mistakes get a clear line."""

import pytest
import torch

from rooftest.engines import CHAIN, ENGINES, INPUTS, Row, Sums, accumulator, contract, engine_of
from rooftest.errors import UsageError
from rooftest.formats import BF16, F64, FP32, TF32


def sums(k, v=1.0, g=1.0, s2=1.0):
    one = torch.ones((), dtype=F64)
    return Sums(v * one, g * one, s2 * one, k * one, k * one, k)


def test_every_accumulator_admits_a_plain_fp32_chain():
    for engine in ENGINES:
        for inputs in INPUTS:
            rows = accumulator(engine, inputs)
            assert rows[0] is CHAIN
            assert len(rows) == 1 + (engine != "cpu" and inputs != "float32" and (engine, inputs[:2]) not in NO_FP8)
            for row in rows:
                assert row.source
                assert row.bits in (14, 24)


NO_FP8 = [("sm_80", "e4"), ("sm_80", "e5")]  # Ampere has none


def test_the_published_constants():
    """Error coefficients at K = 4096 by hand: steps (2 u + (group + 1) align)."""
    k = 4096
    wgmma = accumulator("sm_90", "bfloat16")[1]
    steps = k // 16 + 1 + k // 128
    assert float(wgmma.bound(sums(k))) == steps * (2**-23 + 17 * 2**-25)
    assert float(CHAIN.bound(sums(k))) == k * 2**-24
    fp8 = accumulator("sm_90", "e4m3")[1]
    assert float(fp8.bound(sums(k))) == (k // 32 + 1 + k // 128) * (2**-13 + 33 * 2**-13)
    ampere = accumulator("sm_80", "float16")[1]
    assert float(ampere.bound(sums(k))) == (k // 8 + 1 + k // 128) * (2**-23 + 9 * 2**-24)


def test_a_step_needs_a_product():
    """One product in a long row of zeros can round once at most."""
    row = accumulator("sm_90", "bfloat16")[1]
    one = torch.ones((), dtype=F64)
    assert float(row.steps(Sums(one, one, one, one, one, 4096))) == 1


def test_only_truncating_rows_drift():
    assert float(CHAIN.drift(sums(100))) == 0
    assert float(accumulator("sm_100", "tf32")[1].drift(sums(100))) > 0
    assert float(Row("rounding", "test", group=16).drift(sums(100))) == 0


def test_contracts_by_name():
    assert contract("fp32", "cpu", "float32").accumulator == (CHAIN,)
    assert contract("partials", "sm_90", "bfloat16").partials is BF16
    assert contract("partials", "sm_90", "tf32").partials is FP32
    assert contract("fp32", "sm_90", "tf32").reads is TF32
    assert contract("fp32", "sm_90", "bfloat16").reads is None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: contract("fp16", "cpu", "float32"), "fp32, partials"),
        (lambda: accumulator("sm_70", "float16"), "sm_90"),
        (lambda: accumulator("sm_90", "int8"), "bfloat16"),
    ],
)
def test_mistakes_name_what_exists(call, said):
    with pytest.raises(UsageError, match=said):
        call()


def test_the_engine_of_a_device(monkeypatch):
    assert engine_of("cpu") == "cpu"
    for capability, name in {
        (8, 0): "sm_80",
        (8, 6): "sm_80",
        (8, 9): "sm_89",
        (9, 0): "sm_90",
        (12, 1): "sm_120",
    }.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert engine_of("cuda:0") == name
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    with pytest.raises(UsageError, match="sm_70"):
        engine_of("cuda:0")
