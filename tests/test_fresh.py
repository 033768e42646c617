"""New contents for each timed call; one of the calls is kept, and which one nobody can foretell."""

import torch

from rooftest.fresh import Fresh, flat, turn


def made(constant=()):
    inputs = {"a": torch.arange(12.0).view(3, 4), "b": torch.arange(8.0).view(2, 4).t(), "s": torch.ones(1)}
    out = {"c": torch.zeros(2)}
    return inputs, out, Fresh(inputs, out, "kernel", lambda: out, constant)


def test_contents_change_at_their_addresses_and_their_distribution_does_not():
    inputs, _, fresh = made()
    where = {n: t.data_ptr() for n, t in inputs.items()}
    seen = set()
    for _ in range(200):
        fresh.renew("kernel")
        assert {n: t.data_ptr() for n, t in inputs.items()} == where
        assert sorted(inputs["a"].flatten().tolist()) == list(range(12))
        assert inputs["b"].stride() == (1, 4)
        seen.add(tuple(inputs["a"].flatten().tolist()))
    assert len(seen) == 11  # every shift but none


def test_shifts_of_large_tensors_keep_copies_aligned():
    x = torch.arange(1024.0)
    fresh = Fresh({"x": x}, {}, "kernel", dict)
    starts = set()
    for _ in range(300):
        fresh.renew("kernel")
        starts.add(int(x[0]))
    assert starts == set(range(64, 1024, 64))  # one is missed in a run of 10^7


def test_what_is_repacked_stays():
    inputs, _, fresh = made(constant=("b",))
    fresh.renew("kernel")
    assert flat(inputs["b"]).tolist() == list(range(8))
    assert flat(inputs["a"]).tolist() != list(range(12))


def test_the_kept_call_is_one_of_the_judged_ones_with_its_own_contents():
    kept = set()
    for _ in range(60):
        _, out, fresh = made()
        for call in range(1, 6):
            for name in ("kernel", "peer"):
                fresh.renew(name)
                out["c"].fill_(call)
                fresh.look(name)
        told = fresh.report()
        assert told["of"] == 5
        assert (fresh.kept["c"] == told["call"]).all()
        again = torch.empty(12)
        turn(again, torch.arange(12.0), told["shifts"]["a"])
        assert torch.equal(again, flat(fresh.kept["a"]))
        kept.add(told["call"])
    assert kept == {1, 2, 3, 4, 5}  # one is missed in a run of 10^5


def test_nothing_is_told_where_nothing_was_timed():
    assert made()[2].report() is None
