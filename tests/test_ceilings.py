import json

import pytest

from rooftest import ceilings
from rooftest.errors import UsageError
from rooftest.roofline import Work, bound
from rooftest.simulated import Knobs, Simulated

DATA = {
    "version": 1, "uuid": "GPU-simulated", "driver": "0", "measured": "2026-01-01T00:00:00+00:00", "l2_bytes": 6e7,
    "bytes_per_s": {
        "copy": {"value": 4.2e12, "kernel": "torch copy_"}, "read": {"value": 4.7e12, "kernel": "triton read"},
        "write": {"value": 4.6e12, "kernel": "torch fill_"},
    },
    "flop_per_s": {"bfloat16": {"value": 9e14, "kernel": "triton resident"}, "float8": None},
}  # fmt: skip


def test_the_best_candidate_wins_and_is_named():
    device = Simulated(Knobs())
    found = ceilings.best(
        {
            "slow": ceilings.Candidate(device.kernel("slow", 2e-3), 1e9),
            "fast": ceilings.Candidate(device.kernel("fast", 1e-3), 1e9),
        },
        device,
    )
    assert found["kernel"] == "fast"
    assert found["value"] == pytest.approx(1e12, rel=0.005)
    assert found["all"]["slow"] == pytest.approx(5e11, rel=0.005)
    assert found["clock_hz"] == pytest.approx(1.98e9)


def test_the_ceiling_keeps_the_mix_and_leaves_out_what_could_not_be_measured():
    roof = ceilings.attainable(DATA)
    assert roof.bytes_per_s == 4.7e12
    assert roof.bandwidth(0.5) == pytest.approx(4.2e12)
    assert "GPU-simulated" in roof.provenance
    assert "float8" not in roof.flop_per_s
    assert bound(Work(1, 1, 1, "float8"), roof).least_s is None


def test_the_cache_is_kept_by_uuid_and_driver(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device = Simulated()
    measured = []
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda *_: measured.append(1) or DATA)
    assert ceilings.ceilings(device, device, {}) == DATA
    assert ceilings.ceilings(device, device, {}) == DATA
    assert len(measured) == 1
    assert (tmp_path / "rooftest" / "ceilings" / "GPU-simulated-0.json").exists()
    ceilings.ceilings(device, device, {}, again=True)
    assert len(measured) == 2


def test_a_broken_cache_is_measured_again_and_an_unwritable_one_said(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device = Simulated()
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda *_: dict(DATA))
    path = ceilings.cache_path(device.identity())
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert ceilings.ceilings(device, device, {}) == DATA
    assert json.loads(path.read_text()) == DATA
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "cannot write" in ceilings.ceilings(device, device, {})["not_cached"]


def test_a_file_of_another_version_is_refused(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(DATA | {"version": 0}))
    with pytest.raises(UsageError, match="no ceilings of version 1"):
        ceilings.load(path)
