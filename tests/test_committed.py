import json
from pathlib import Path

import pytest

from rooftest import store

RESULTS = Path(__file__).parents[1] / "results"
# A run has a schema version of its own; what was measured of a GPU has other forms, tested elsewhere.
OTHERS = {"ceilings", "mutation", "timers", "engines", "transcendentals", "reports"}


def test_every_committed_run_fits_the_schema():
    for path in sorted(RESULTS.rglob("*.json")):
        if path.parent.name not in OTHERS:
            store.read(path)


@pytest.mark.parametrize("path", sorted((RESULTS / "timers").glob("*.json")), ids=lambda path: path.stem)
def test_a_committed_comparison_with_ncu_meets_its_targets(path):
    data = json.loads(path.read_text())
    targets, long, short = data["targets"], 0, 0
    for name, row in data["gemms"].items():
        if row["cupti_s"] >= targets["from_s"]:
            long += 1
            assert abs(row["ncu"]["none"]["ours_over_ncu_cycles"] - 1) <= targets["cycles_within"], name
        else:
            short += 1
            assert abs(row["time_s"] - row["cupti_s"]) <= targets["cupti_within_s"], name
    assert long >= 3
    assert short >= 2
    assert 0.5e-6 < data["offset"]["none"]["empty"] < 1.8e-6
