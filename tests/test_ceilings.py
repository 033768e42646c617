import json
from pathlib import Path

import pytest

from rooftest import ceilings, devices
from rooftest.errors import UsageError
from rooftest.nvml import Identity
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


@pytest.mark.parametrize(
    ("measured", "kept"), [("2026-01-01T00:00:00+00:00", False), ("2999-01-01T00:00:00+00:00", True)]
)
def test_ceilings_that_a_kernel_beat_are_dropped_once_a_day(monkeypatch, tmp_path, measured, kept):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    identity = Simulated().identity()
    ceilings.beaten(identity)  # nothing there
    path = ceilings.cache_path(identity)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**DATA, "measured": measured}))
    ceilings.beaten(identity)
    assert path.exists() == kept
    path.write_text("{")
    ceilings.beaten(identity)


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


RESULTS = sorted((Path(__file__).parents[1] / "results" / "ceilings").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_committed_ceilings_are_the_best_of_what_was_measured_and_below_the_physical_ones(path):
    data = ceilings.load(path)
    top = devices.physical(devices.device(path.stem), Identity(mem_bus_bits=6016, mem_max_hz=3.201e9, sm_max_hz=1.98e9))
    assert data["name"] == "NVIDIA H200"  # whose clocks and bus these are
    for precision, entry in data["flop_per_s"].items():
        assert entry["value"] == max(entry["all"].values()) == entry["all"][entry["kernel"]]
        assert 0.5 * top.flop_per_s[precision] < entry["value"] < top.flop_per_s[precision]
    for entry in data["bytes_per_s"].values():
        assert 0.5 * top.bytes_per_s < entry["value"] < top.bytes_per_s


def test_a_resident_product_runs_at_the_width_times_the_clock_held():
    # Ties three things that were measured apart: FLOPs counted, time from events, clock from the SM's own counter.
    data = ceilings.load(RESULTS[0])
    for precision in ("bfloat16", "float16", "tf32", "float8"):
        entry = data["flop_per_s"][precision]
        assert entry["kernel"].startswith("triton resident")
        peak = 132 * devices.device("h200").flop_per_sm_clock[precision] * entry["clock_hz"]
        assert 0.98 < entry["value"] / peak < 1.0
