"""The spread of A/A pairs: nothing is lost or pooled that should not be, and a wild pair widens sigma."""

import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from rooftest import cli, store
from rooftest.errors import UsageError
from rooftest.gate import rule, spread
from rooftest.simulated import Knobs

sys.path.insert(0, str(Path(__file__).parent))

from gate_pairs import drawn, measured, plain

GPU = "h200-GPU-1"
SERIES = "gemm/acme.matmul/square-4096/bfloat16/nn/burst/cold/nograph/v1"
SAME = {"driver": "580.1", "timer": "events", "regime": "burst", "harness": "abc"}


@pytest.fixture
def kept(tmp_path):
    return spread.Store(tmp_path, GPU)


def aa(n, sigma=0.003, seed=0):
    return plain(np.random.default_rng(seed).normal(0, sigma, n), "calibrate")


# --- the store ------------------------------------------------------------------------------------------------------


def test_pairs_come_back_and_the_file_fits_its_schema(tmp_path, kept):
    pairs = measured(3, Knobs(process_noise=0.002))
    kept.add(SERIES, SAME, pairs)
    again = spread.Store(tmp_path, GPU)
    assert rule.log_ratios(again.pairs(SERIES, SAME)) == rule.log_ratios(pairs)
    for name in rule.ESTIMATORS:
        assert again.sigma(SERIES, SAME, name) == kept.sigma(SERIES, SAME, name)
        assert again.sigma(SERIES, SAME, name).sigma > 0
    jsonschema = pytest.importorskip("jsonschema", reason="checks the schema itself; pip install jsonschema")
    jsonschema.validate(json.loads(kept.path.read_text()), store.schema(1, "spread"))


def test_two_runs_at_the_same_time_lose_nothing(tmp_path):
    """Both open the store before either writes; a store that wrote one file whole would keep only the later's pairs."""
    first, second = spread.Store(tmp_path, GPU), spread.Store(tmp_path, GPU)
    for index in range(3):
        first.add(SERIES, SAME, aa(3, seed=index))
        second.add(SERIES, SAME, aa(3, seed=10 + index))
    assert len(spread.Store(tmp_path, GPU).pairs(SERIES, SAME)) == 18


def test_many_that_write_at_once_lose_nothing(tmp_path):
    def run(index):
        mine = spread.Store(tmp_path, GPU)
        for _ in range(5):
            mine.add(SERIES, SAME, aa(1, seed=index))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(16)))
    assert len(spread.Store(tmp_path, GPU).pairs(SERIES, SAME)) == 80


def test_a_run_that_cannot_write_keeps_what_was_there(tmp_path, kept):
    kept.add(SERIES, SAME, aa(3))
    before = kept.path.read_text()
    kept.path.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(UsageError, match="No space left"):
            kept.add(SERIES, SAME, aa(3))
    assert kept.path.read_text() == before


@pytest.mark.parametrize("timer", [math.nan, math.inf])
def test_what_is_not_finite_is_null_in_the_file_and_no_pair(tmp_path, kept, timer):
    pairs = aa(2)
    pairs[0]["head"]["time_s"] = timer
    kept.add(SERIES, SAME, pairs)
    assert "NaN" not in kept.path.read_text()
    assert kept.sigma(SERIES, SAME).reason == "1 A/A pair of this series on this GPU"
    assert spread.Store(tmp_path, GPU).sigma(SERIES, SAME) == kept.sigma(SERIES, SAME)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "is not JSON"),
        (lambda text: text.replace('"spread_version": 1', '"spread_version": 2'), "its version is 2"),
        (lambda text: text.replace(GPU, "h200-GPU-2"), "of h200-GPU-2, not of h200-GPU-1"),
        (lambda text: text.replace('"order": "AB"', '"order": "BB"'), "order"),
        (lambda _: "[]", "its version is None"),
    ],
)
def test_a_file_that_is_damaged_is_named_and_not_left_out(tmp_path, kept, change, message):
    kept.add(SERIES, SAME, aa(3))
    kept.path.write_text(change(kept.path.read_text()))
    with pytest.raises(UsageError, match=message) as told:
        spread.Store(tmp_path, GPU)
    assert kept.path.name in str(told.value)


def test_every_committed_file_is_read():
    results = Path(__file__).parents[1] / "results" / "spread"
    for folder in results.glob("*"):
        assert len(spread.Store(results, folder.name).lines()) > 1


# --- segments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", SAME)
def test_a_covariate_cuts_the_series_and_is_told(kept, key):
    kept.add(SERIES, SAME, aa(40))
    assert not kept.sigma(SERIES, SAME).reason
    got = kept.sigma(SERIES, SAME | {key: "other"})
    assert got.sigma is None
    assert got.reason == f"no A/A pairs of this series on this GPU; 40 more with {key} {SAME[key]}, now other"


def test_other_series_other_gpus_and_invalid_pairs_are_not_pooled(tmp_path, kept):
    kept.add(SERIES, SAME, [pair | {"valid": index > 0} for index, pair in enumerate(aa(31))])
    kept.add(SERIES + "x", SAME, aa(31))
    assert kept.sigma(SERIES, SAME).nu == 29
    assert spread.Store(tmp_path, "h200-GPU-2").sigma(SERIES, SAME).sigma is None


def test_a_covariate_that_nobody_knows_arms_nothing(kept):
    unknown = SAME | {"driver": None}
    kept.add(SERIES, unknown, aa(40))
    assert "driver not known" in kept.sigma(SERIES, unknown).reason


def test_the_harness_is_what_the_measuring_code_does_not_how_it_is_commented(tmp_path, monkeypatch):
    folder = tmp_path / "rooftest" / "gate"
    folder.mkdir(parents=True)
    monkeypatch.setattr(spread, "__file__", str(folder / "spread.py"))
    monkeypatch.setattr(spread, "MEASURES", ("timer.py",))
    timer, seen = folder.parent / "timer.py", []
    for text in ('"""A."""\nX = 1\n', '"""B."""\nX  =  1  # c\n', "X = 2\n"):
        timer.write_text(text)
        spread.harness.cache_clear()
        seen.append(spread.harness())
    spread.harness.cache_clear()
    assert seen[0] == seen[1] != seen[2]


def test_the_harness_of_this_version_is_known():
    assert len(spread.harness()) == 12
    assert spread.covariates("580.1", "cupti", "burst") == {
        "driver": "580.1", "timer": "cupti", "regime": "burst", "harness": spread.harness(),
    }  # fmt: skip


# --- sigma ----------------------------------------------------------------------------------------------------------


def test_sigma_and_its_upper_bound_cover_the_truth():
    trials, n = 600, 30
    found = [spread.spread(row) for row in np.random.default_rng(1).normal(0, 0.003, (trials, n))]
    assert np.mean([got.sigma**2 for got in found]) == pytest.approx(0.003**2, rel=0.05)
    missed = sum(got.upper < 0.003 for got in found)
    # One degree of freedom is given up: below 5 % by a little.
    assert missed <= binom.isf(5e-7, trials, 0.05)
    assert missed >= binom.ppf(5e-7, trials, 0.035)
    biased = sum("biased" in got.reason for got in found)
    assert biased <= binom.isf(5e-7, trials, spread.BIASED)


def test_thirty_pairs_arm_and_fewer_do_not():
    assert spread.spread([0.001, -0.001] * 15).reason == ""
    few = spread.spread([0.001, -0.001] * 14 + [0.001])
    assert few.reason == "29 A/A pairs of this series on this GPU, 30 are needed"
    assert few.sigma == pytest.approx(0.001)
    assert spread.spread([0.001]).sigma is None


def test_a_mean_that_is_not_zero_widens_and_then_arms_nothing():
    """About their mean these pairs spread by 0.1 %, and every comparison would be 1 % wrong."""
    moved = 0.01 + np.random.default_rng(2).normal(0, 0.001, 40)
    got = spread.spread(list(moved))
    assert got.sigma > 0.0099
    assert got.reason.startswith("the A/A pairs are biased: their mean is +1.0")


def test_a_wild_pair_widens_and_is_counted():
    calm = list(drawn((40,), Knobs(process_noise=0.002), seed=3))
    got, wild = spread.spread(calm), spread.spread([*calm, 0.2])
    assert (got.wild, wild.wild) == (0, 1)
    assert wild.sigma > 5 * got.sigma
    assert wild.upper > wild.sigma
    assert not rule.limits(0.02, wild.sigma, wild.nu, why=wild.reason).armed


def test_a_sigma_that_does_not_see_wild_pairs_alarms_by_them():
    """One pair in ten is ten times as wide as the others, which no normal law knows."""
    rng, trials = np.random.default_rng(4), 20_000
    draw = lambda n: rng.normal(0, 0.002, (trials, n)) * np.where(rng.random((trials, n)) < 0.1, 10, 1)  # noqa: E731
    known, pairs = draw(40), draw(8)
    rms = np.sqrt(np.mean(known**2, 1))
    robust = 1.4826 * np.median(np.abs(known - np.median(known, 1)[:, None]), 1)

    def alarms(sigma, budget=0.0):
        log_delta = np.maximum(0, math.log1p(budget) - rule.factor(39, rule.AIM) * sigma)
        first = pairs[:, :3].mean(1) > rule.stage_limit(log_delta, sigma, 39, 3)
        return int(np.sum(first & (pairs[:, 3:].mean(1) > rule.stage_limit(log_delta, sigma, 39, 5))))

    # With delta = 0 the rms alarms at 2.5 in a thousand and a robust sigma at 12. A budget of 2 % leaves neither much
    # to alarm about, but with the robust sigma its power is a fiction.
    assert alarms(robust) > 3 * alarms(rms)
    assert alarms(rms, 0.02) <= binom.isf(5e-7, trials, rule.power(0.0, 0.0, 1.0, 29))


def test_the_table_says_the_smallest_change_that_is_seen(kept):
    assert kept.lines() == [f"{GPU}: no A/A pairs"]
    kept.add(SERIES, SAME, aa(40))
    kept.add("short", SAME, aa(5))
    kept.add("single", SAME, aa(1))
    header, *rows = kept.lines()
    assert header.split() == ["series", "pairs", "sigma", "95%", "below", "detects", "wild"]
    known = kept.sigma(SERIES, SAME)
    assert rows[0].split() == [SERIES, "40", f"{known.sigma:.2%}", f"{known.upper:.2%}", f"{known.detectable:.2%}", "0"]
    assert known.detectable == pytest.approx(math.expm1(rule.factor(39) * known.sigma))
    assert rows[1].endswith("5 A/A pairs of this series on this GPU, 30 are needed")
    assert rows[2].endswith("1 A/A pair of this series on this GPU")


def test_the_command_prints_the_table_and_refuses_what_is_no_folder(kept, capsys):
    kept.add(SERIES, SAME, aa(40))
    assert cli.main(["spread", str(kept.folder.parent)]) == 4
    assert f"name a folder in it: {kept.folder.name}" in capsys.readouterr().err
    assert cli.main(["spread", str(kept.folder)]) == 0
    assert capsys.readouterr().out.splitlines() == kept.lines()
    assert cli.main(["spread", str(kept.path)]) == cli.USAGE
    assert "no folder of A/A pairs" in capsys.readouterr().err
