import json
from pathlib import Path

import pytest

from rooftest import store

RESULTS = Path(__file__).parents[1] / "results"
# A run has a schema version of its own; what was measured of a GPU has other forms, tested elsewhere.
OTHERS = {"ceilings", "mutation", "timers", "engines", "transcendentals", "reports", "spread", "gate"}


def test_every_committed_run_fits_the_schema():
    for path in sorted(RESULTS.rglob("*.json")):
        if path.relative_to(RESULTS).parts[0] not in OTHERS:
            store.read(path)


@pytest.mark.parametrize("path", sorted((RESULTS / "timers").glob("*-ncu.json")), ids=lambda path: path.stem)
def test_a_committed_comparison_with_ncu_says_of_each_reading_whether_it_met_its_target(path):
    data = json.loads(path.read_text())
    targets = data["targets"]
    assert len(data["rows"]) >= 12
    assert 0.5e-6 < data["offset"]["none"]["used_s"] < 1.8e-6
    missed = [f"{name}: {why}" for name, why in data["failed"].items()]
    for name, row in data["rows"].items():
        for l2, told in row["l2"].items():
            assert (told["cupti_s"] < targets["from_s"]) == (told["ncu"]["none"]["by"] == "cupti")
            for control, got in told["ncu"].items():
                if got["by"] == "cupti":
                    met = abs(told["time_s"] - told["cupti_s"]) <= targets["cupti_within_s"]
                else:
                    met = abs(got[f"{got['by']}_ratio"] - 1) <= targets["within"]
                assert got["met"] == met
                missed += [] if met else [f"{name} {l2} {control}"]
    for name, got in data["bytes"].items():
        assert got["met"] == (got["ratio"] is not None and abs(got["ratio"] - 1) <= targets["bytes_within"])
        missed += [] if got["met"] else [f"{name} bytes"]
    assert sorted(data["missed"]) == sorted(missed)
