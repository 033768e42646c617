"""Occupancy held against NVIDIA's own calculator: vectors that tests/occupancy_vectors.cc prints, of CUDA 13.5.37."""

from pathlib import Path

import pytest

from rooftest.compiled import occupancy
from rooftest.compiled.occupancy import GENERATIONS, Generation

VECTORS = [line.split(",") for line in Path(__file__).with_name("occupancy_vectors.csv").read_text().splitlines()]
FACTORS = {"threads": 1, "registers": 2, "shared memory": 4, "blocks": 8}


def wrong():
    """The vectors of which this software says otherwise: other CTAs, or a limit that the calculator does not name."""
    found = []
    for generation, *numbers in VECTORS:
        threads, registers, shared, ctas, factors = map(int, numbers)
        held = occupancy.occupancy(generation, threads, registers, shared)
        if held.ctas_per_sm != ctas or not factors & FACTORS[held.limited_by]:
            found.append((generation, *numbers, held))
    return found


def test_every_generation_is_held_against_the_calculator():
    assert wrong() == []
    assert {generation for generation, *_ in VECTORS} == set(GENERATIONS)


@pytest.mark.parametrize(
    ("name", "value"),
    [("REGISTER_UNIT", 512), ("SCHEDULERS", 1), ("REGISTERS", 32768), ("SHARED_UNIT", 1024), ("RESERVED_SHARED", 512)],
)
def test_each_rule_that_is_wrong_is_seen(monkeypatch, name, value):
    monkeypatch.setattr(occupancy, name, value)
    assert wrong()


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("limit", ["warps", "ctas", "shared_bytes"])
def test_each_limit_of_a_generation_that_is_wrong_is_seen(monkeypatch, generation, limit):
    right = vars(GENERATIONS[generation])
    monkeypatch.setitem(GENERATIONS, generation, Generation(**right | {limit: right[limit] * 3 // 4}))
    assert {found[0] for found in wrong()} == {generation}
