"""Errors of transcendental units: the sweep sees a wrong function, the cache and the table read what it found."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from rooftest import primitives, transcendentals
from rooftest.errors import UsageError
from rooftest.simulated import Simulated
from rooftest.transcendentals import FUNCTIONS, sweep
from rooftest.units import SPELLED, UNITS, measured

torch.set_num_threads(1)

HALVES = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16).float()  # all 2**16 of them
CHUNKS = HALVES.split(2**12)
EXP = torch.tensor([-90.0, -87.5, -1.0, 0.0, 1.0, 88.0, 89.0, 1e-40, math.inf, -math.inf, math.nan])
STAND_INS = {name: getattr(torch, name) for name in ("exp", "exp2", "log", "log2", "rsqrt", "sqrt", "reciprocal",
                                                      "sigmoid", "erf", "tanh")}  # fmt: skip


@pytest.mark.parametrize("name", STAND_INS)
def test_every_half_through_a_right_function(name):
    found = sweep(STAND_INS[name], FUNCTIONS[name], CHUNKS)
    assert found["special"]["wrong"] == 0
    assert found["inputs_subnormal"]["count"] == 0  # the smallest fp16 is a normal fp32
    assert sum(found[part]["count"] for part in ("normal", "subnormal", "special")) == 2**16
    assert 0.2 < found["normal"]["ulp"]["value"] < 3
    assert found["charged_u"]["value"] <= found["normal"]["relative_u"]["value"] < 6


def test_a_right_rounding_is_half_an_ulp():
    found = sweep(lambda x: x.double().exp().float(), FUNCTIONS["exp"], CHUNKS)
    assert 0.49 < found["normal"]["ulp"]["value"] <= 0.5
    assert 0.9 < found["normal"]["relative_u"]["value"] <= 1


@pytest.mark.parametrize("ulps", [3, 100])
def test_one_wrong_result_among_all_is_seen_and_named(ulps):
    where = float(HALVES[20000])

    def wrong(x):
        y = x.exp()
        return torch.where(x == where, (y.view(torch.int32) + ulps).view(torch.float32), y)

    found = sweep(wrong, FUNCTIONS["exp"], CHUNKS)
    assert ulps - 1 < found["normal"]["ulp"]["value"] < ulps + 1
    assert float.fromhex(found["normal"]["ulp"]["x"]) == where


def test_an_argument_rounded_on_the_way_is_charged_to_the_reference():
    found = sweep(lambda x: (x * 1.44269504).exp2(), FUNCTIONS["exp"], [torch.linspace(-87, 87, 10001)])
    assert found["normal"]["relative_u"]["value"] > 20
    assert found["charged_u"]["value"] < 4


def test_near_one_a_logarithm_is_asked_for_an_absolute_error():
    found = sweep(lambda x: x.log() + 2.0**-23, FUNCTIONS["log"], [torch.linspace(0.9, 1.1, 1001)])
    assert 2 < found["charged_u"]["value"] < 3.2
    assert found["normal"]["relative_u"]["value"] > 20


def test_infinities_nan_and_zeros_are_compared():
    right = sweep(torch.exp, FUNCTIONS["exp"], [EXP])
    assert right["special"] == {"count": 4, "wrong": 0, "x": None}  # 89, the two infinities, NaN
    for broken in (
        lambda x: x.exp().clamp(max=3e38),
        lambda x: x.exp().nan_to_num(nan=0.0),
        lambda x: torch.where(x == -math.inf, 1e-30, x.exp()),
    ):
        assert sweep(broken, FUNCTIONS["exp"], [EXP])["special"]["wrong"] > 0
    early = sweep(lambda x: torch.where(x > 87.9, math.inf, x.exp()), FUNCTIONS["exp"], [EXP])
    assert early["special"] == {"count": 5, "wrong": 1, "x": (88.0).hex()}


def test_what_is_flushed_is_counted_apart():
    smallest = 2.0**-126
    flush = lambda x: torch.where(x.abs() < smallest, x * 0, x)  # noqa: E731
    x = torch.tensor([-90.0, -100.0, 1e-40, 1e-45, -1e-40, 2.0])
    kept = sweep(torch.exp, FUNCTIONS["exp"], [x])
    assert kept["subnormal"]["as_zero"] == 0 < kept["subnormal"]["count"] == 2
    assert kept["subnormal"]["smallest_numbers"]["value"] <= 0.5
    lost = sweep(lambda x: flush(x.exp()), FUNCTIONS["exp"], [x])
    assert lost["subnormal"]["as_zero"] == 2
    assert lost["normal"]["ulp"]["value"] < 1
    logs = sweep(torch.log, FUNCTIONS["log"], [x])
    assert logs["inputs_subnormal"]["flushed"] == 0 < logs["inputs_subnormal"]["count"] == 3
    logs = sweep(lambda x: flush(x).log(), FUNCTIONS["log"], [x])
    assert logs["inputs_subnormal"]["flushed"] == 3  # -1e-40 gave NaN before, -inf now
    assert logs["special"]["wrong"] == 0


def test_every_float_is_every_one():
    chunks = list(itertools.islice(transcendentals.every_float("cpu", 2**12), 2))
    assert chunks[0][:2].view(torch.int32).tolist() == [-(2**31), -(2**31) + 1]
    assert int(chunks[1][0].view(torch.int32)) == int(chunks[0][-1].view(torch.int32)) + 1
    assert sum(chunk.numel() for chunk in transcendentals.every_float("meta")) == 2**32


# --- the table ---


def rows(**charged):
    functions = {name: {"charged_u": {"value": 1.0}} for names in SPELLED.values() for name in names}
    functions |= {name: {"charged_u": {"value": value}} for name, value in charged.items()}
    software = {"torch": "2", "triton": "3"}
    return {"version": 1, "uuid": "GPU-x", "name": "GPU", "driver": "1", "software": software, "functions": functions}


def test_the_primitives_take_the_table():
    assert UNITS["exp"].error == primitives.EXP
    assert UNITS["log"].error == primitives.LOG
    assert UNITS["rsqrt"].error == primitives.RSQRT
    assert all(unit.source for unit in UNITS.values())


def test_the_worst_spelling_of_a_unit_counts_whichever_way_it_differs_from_the_documents():
    found = measured(rows(exp2=1.5, log2=9.0))
    assert found["exp"].error == 1.5 * 2.0**-24 < UNITS["exp"].error
    assert found["log"].error == 9 * 2.0**-24 > UNITS["log"].error
    assert "GPU, driver 1, triton 3" in found["exp"].source


def test_a_unit_of_which_one_spelling_was_not_measured_stays_as_documented():
    data = rows()
    data["functions"]["exp2"] = {"failed": "no"}
    del data["functions"]["rsqrt"]
    found = measured(data)
    assert found["exp"] == UNITS["exp"]
    assert found["rsqrt"] == UNITS["rsqrt"]
    assert found["log"] != UNITS["log"]


def test_the_cache_is_kept_by_gpu_driver_and_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device, made = Simulated(), []
    monkeypatch.setattr(transcendentals, "measure", lambda *_: made.append(1) or rows())
    assert transcendentals.transcendentals(device, device) == rows()
    assert transcendentals.transcendentals(device, device) == rows()
    assert len(made) == 1
    path = transcendentals.cache_path(device.identity())
    assert path.name.startswith("GPU-simulated-0-")
    monkeypatch.setattr(transcendentals.triton, "__version__", "other")
    transcendentals.transcendentals(device, device)
    assert len(made) == 2
    path.write_text("{")
    monkeypatch.undo()
    with pytest.raises(UsageError):
        transcendentals.load(path)


def test_a_file_of_another_version_is_refused(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(rows() | {"version": 0}))
    with pytest.raises(UsageError, match="no errors of version 1"):
        transcendentals.load(path)


def test_committed_measurements_hold_every_function_over_every_number():
    for path in sorted((Path(__file__).parents[1] / "results" / "transcendentals").glob("*.json")):
        data = transcendentals.load(path)
        assert set(data["functions"]) == set(FUNCTIONS)
        for name, row in data["functions"].items():
            parts = ("normal", "subnormal", "special", "inputs_subnormal")
            assert sum(row[part]["count"] for part in parts) == 2**32, name
        assert all(unit != UNITS[name] for name, unit in measured(data).items())
