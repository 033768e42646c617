"""Runs over time: nothing is lost, nothing is rewritten, nothing is compared across what cuts a series."""

import json
import subprocess
import sys
import threading
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rooftest import cli, store
from rooftest.history import base, flat, lines, place, series, side
from rooftest.history.cause import causes

sys.path.insert(0, str(Path(__file__).parent))  # history_scale.py, a script beside it, takes it too
import history_made as made
from history_made import nights, run, save

NAME = "gemm/acme/square-4096/bfloat16/nt/burst/cold/nograph/v1"
QUIET = 1e-4 * np.exp(0.002 * np.random.default_rng(7).normal(size=200))
"""Seconds of a kernel that does not change, night by night."""
DAY = timedelta(days=1)


def files(root):
    """Every file of a store, and what it holds."""
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(Path(root).rglob("*")) if p.is_file()}


def counted(root):
    """How many runs a store answers from, and how many times."""
    history = base.History(str(root))
    return history.ask("SELECT count(*) FROM runs")[0][0], history.ask("SELECT count(*) FROM times")[0][0]


def said(root, *more):
    return lines.overview(history := base.History(str(root)), series.segments(history, *more), *more)


# --- runs are the truth ---------------------------------------------------------------------------------------------


def test_compacting_changes_no_answer_and_no_file(tmp_path):
    nights(tmp_path, QUIET[:40])
    before, told = files(tmp_path), said(tmp_path)
    runs, new, notes = base.compact(str(tmp_path))
    assert (runs, len(new), notes) == (40, 2, [])  # June and July
    after = files(tmp_path)
    assert {name: after[name] for name in before} == before
    assert said(tmp_path) == told
    assert base.compact(str(tmp_path)) == (0, [], [])
    assert files(tmp_path) == after


def test_a_late_run_of_an_old_month_adds_a_file(tmp_path):
    nights(tmp_path, QUIET[:40])
    base.compact(str(tmp_path))
    before = files(tmp_path)
    save(tmp_path, run(made.START + timedelta(hours=5), {"acme": 1e-4}))
    assert counted(tmp_path) == (41, 41)
    runs, (new,), _ = base.compact(str(tmp_path))
    assert (runs, new[:7]) == (1, "2023-06")
    after = files(tmp_path)
    assert {name: after[name] for name in before} == before
    assert counted(tmp_path) == (41, 41)


def test_a_run_that_two_nodes_filed_counts_once(tmp_path):
    nights(tmp_path, QUIET[:3])
    base.compact(str(tmp_path))
    (first,) = tmp_path.glob("history/v1/*/*.parquet")
    first = first.rename(tmp_path / "first")  # as if the other node had not seen it yet
    nights(tmp_path, QUIET[3:5], made.START + 3 * DAY)
    base.compact(str(tmp_path))
    first.rename(tmp_path / "history" / "v1" / "2023-06" / "first.parquet")
    history = base.History(str(tmp_path))
    assert history.ask("SELECT count(*) FROM parquet WHERE kind = 'benchmark'") == [(8,)]
    assert counted(tmp_path) == (5, 5)
    assert history.notes == []


def test_the_same_run_under_two_names_counts_once(tmp_path):
    path = save(tmp_path, run(made.START, {"acme": 1e-4}), "a.json")
    (tmp_path / "runs" / "b.json").write_bytes(path.read_bytes())
    assert counted(tmp_path) == (1, 1)
    assert base.compact(str(tmp_path))[0] == 1
    assert counted(tmp_path) == (1, 1)


def test_a_run_that_was_changed_after_it_was_filed_counts_as_it_is_now_and_is_named(tmp_path):
    save(tmp_path, run(made.START, {"acme": 1e-4}), "a.json")
    base.compact(str(tmp_path))
    save(tmp_path, run(made.START, {"acme": 1e-4, "other": 1e-4}), "a.json")
    assert counted(tmp_path) == (1, 2)
    assert base.History(str(tmp_path)).notes == ["a.json: changed after it was compacted; what it says now counts"]
    base.compact(str(tmp_path))
    assert counted(tmp_path) == (1, 2)
    assert base.History(str(tmp_path)).notes == []


# --- many nodes, one place ------------------------------------------------------------------------------------------


def pushed_by_four_nodes(tmp_path, where):
    """Four nodes push five runs each, of the same seconds, and compact meanwhile."""
    faults = []

    def node(n):
        try:
            for i in range(5):
                data = run(made.START + i * DAY, {"acme": 1e-4 + n * 1e-6}, gpu=n)
                path = save(tmp_path / f"node{n}", data, "run.json")
                place.push(where, path)
                place.push(where, path)  # a retry
                if i == 2 * (n % 2):
                    base.compact(where)
        except Exception as error:  # noqa: BLE001 - told by the test
            faults.append(error)

    threads = [threading.Thread(target=node, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    return counted(where)


@pytest.mark.parametrize("where", ["{}/shared", "file://{}/shared", "memory://{}/shared"])
def test_nodes_that_write_to_one_place_at_once_lose_no_run(tmp_path, where):
    assert pushed_by_four_nodes(tmp_path, where.format(tmp_path)) == (20, 20)


def test_names_that_nodes_share_would_lose_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "digest", lambda content: "run")
    assert pushed_by_four_nodes(tmp_path, str(tmp_path / "shared"))[0] < 20


def test_a_results_file_of_its_own_is_begun_in_each_process_even_in_the_same_second():
    from types import SimpleNamespace

    from rooftest import results

    session = SimpleNamespace(roof=SimpleNamespace(key="h200"), root=Path())
    assert len({results._usual(session) for _ in range(20)}) == 20


def test_what_another_node_is_just_writing_is_not_read(tmp_path):
    save(tmp_path, run(made.START, {"acme": 1e-4}), "a.json")
    (tmp_path / "runs" / ".b.json.1f").write_text("{")
    (tmp_path / "runs" / ".c.json").write_text("{")
    history = base.History(str(tmp_path))
    assert (history.ask("SELECT count(*) FROM runs"), history.notes) == ([(1,)], [])


def test_a_journal_of_a_killed_run_is_named_and_can_be_pushed(tmp_path):
    data = run(made.START, {"acme": 1e-4})
    killed = store.Run(tmp_path / "runs" / "a.json", data["machine_info"])
    killed.add("benchmarks", data["benchmarks"][0])
    history = base.History(str(tmp_path))
    assert history.notes == [
        "a.json.part: never finished (running, or killed); `rooftest push STORE FILE.part` keeps it"
    ]
    assert cli.main(["push", str(tmp_path), str(killed.journal)]) == 0
    assert counted(tmp_path) == (1, 1)


# --- bad input ------------------------------------------------------------------------------------------------------


def spoil(root):
    """A store of two good runs and every kind of bad one; what must be said of each."""
    nights(root, QUIET[:2])
    text = (root / "runs" / "n20230601-0000.json").read_text()
    good = json.loads(text)
    bad = {
        "half.json": (text[: len(text) // 2], "is not JSON"),
        "empty.json": ("", "is not JSON"),
        "binary.json": (b"\xff\xfe\x00", "is not text in UTF-8"),
        "list.json": ("[]", "its top level is list"),
        "next.json": (json.dumps(good | {"schema_version": 2}), "has schema version 2; this rooftest reads version 1"),
        "other.json": ('{"what": "x"}', "it has no schema_version"),
        "when.json": (json.dumps(good | {"created": "yesterday"}), "created is 'yesterday', which is no time"),
        "odd.json": (json.dumps(good | {"benchmarks": [1, None]}), "2 of its records are no objects"),
    }
    for name, (content, _) in bad.items():
        path = root / "runs" / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return {name: told for name, (_, told) in bad.items()}


def test_a_run_that_cannot_be_read_is_a_line_and_all_others_count(tmp_path, capsys):
    told = spoil(tmp_path)
    before = files(tmp_path)
    assert cli.main(["history", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert counted(tmp_path) == (2, 2)
    for name, why in told.items():
        (line,) = (line for line in out if name in line)
        assert line.startswith("left out: ")
        assert why in line
    assert base.compact(str(tmp_path))[0] == 2  # what can't be read is filed when it can be
    assert {name: content for name, content in files(tmp_path).items() if name in before} == before
    (tmp_path / "runs" / "half.json").write_text(json.dumps(run(made.START + 9 * DAY, {"acme": 1e-4})))
    assert counted(tmp_path) == (3, 3)


def test_records_that_hold_nonsense_are_rows_without_a_number(tmp_path):
    data = run(made.START, {"acme": 1e-4, "b": 1e-4, "c": 1e-4, "d": 1e-4})
    for record, bad in zip(data["benchmarks"], ("fast", True, 10**400, [1]), strict=True):
        record["extra_info"]["timing"]["median_s"] = bad
        record["extra_info"]["health"] = record["extra_info"]["covariates"] = "x"
    data["machine_info"]["software"] = data["machine_info"]["gpu"] = None
    path = tmp_path / "runs" / "a.json"
    path.parent.mkdir()
    path.write_text(json.dumps(data))
    assert counted(tmp_path) == (1, 0)
    assert base.compact(str(tmp_path))[0] == 1


def test_a_clock_that_went_backwards_gives_the_same_series_as_one_that_did_not(tmp_path):
    for folder, hours in (("right", range(0, 240, 24)), ("wrong", [*range(0, 120, 24), *range(60, 180, 24)])):
        for n, hour in enumerate(hours):
            save(tmp_path / folder, run(made.START + timedelta(hours=hour), {"acme": 1e-4 + n * 1e-7}))
    (right,), (wrong,) = (series.segments(base.History(str(tmp_path / f))) for f in ("right", "wrong"))
    assert (right.points, wrong.points) == (10, 10)
    assert np.all(np.diff(wrong.days) > 0)
    assert wrong.last == made.START + timedelta(hours=156)  # the latest date, not what was written last
    assert right.cut == wrong.cut


def test_a_run_dated_in_the_future_is_named_kept_and_in_no_series(tmp_path):
    nights(tmp_path, QUIET[:3])
    save(tmp_path, run("2099-01-01T00:00:00+00:00", {"acme": 1e-3}), "ahead.json")
    save(tmp_path, run("1900-01-01T00:00:00", {"acme": 1e-4}), "old.json")  # before the clock's zero
    history = base.History(str(tmp_path))
    assert history.notes == [
        "ahead.json (2099-01-01): dated in the future: a clock was wrong; it is kept, and counts in no series"
    ]
    (segment,) = series.segments(history)
    assert (segment.points, segment.last_s) == (4, pytest.approx(QUIET[2]))
    assert history.ask("SELECT count(*) FROM records WHERE kind = 'benchmark'") == [(5,)]


def test_an_empty_store_is_a_line_and_a_missing_one_a_mistake(tmp_path, capsys):
    assert cli.main(["history", str(tmp_path)]) == 0
    assert "no times yet; `pytest suites/` on a GPU records some" in capsys.readouterr().out
    assert cli.main(["compact", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 0 runs filed\n"
    assert cli.main(["history", str(tmp_path), "--alarms=7"]) == 4  # else a wrong folder is a quiet night
    assert "holds no run, so no alarm could be in it" in capsys.readouterr().err
    (tmp_path / "run.json").write_text(json.dumps(run(made.START, {"acme": 1.5e-4})))
    for command in (["history", ""], ["push", "", str(tmp_path / "run.json")], ["compact", ""]):
        assert cli.main(command) == 4
        assert "the store's name is empty" in capsys.readouterr().err
    for days in ("-1", "x", "99999999999"):
        assert cli.main(["history", str(tmp_path), f"--alarms={days}"]) == 4
        assert "is no number of days" in capsys.readouterr().err
    assert cli.main(["history", str(tmp_path / "none")]) == 4
    assert "there is no store" in capsys.readouterr().err
    assert cli.main(["history", "nosuch://bucket"]) == 4
    assert capsys.readouterr().err.count("\n") == 1


def test_a_series_of_one_point_says_that_it_is_not_watched_yet(tmp_path):
    save(tmp_path, run(made.START, {"acme": 1.5e-4}))
    (line,) = (line for line in said(tmp_path) if "last 150 us" in line)
    assert "+0.0% since 2023-06-01 ▁ not watched before 30 nights (has 1)" in line


def test_a_series_of_a_million_points_is_a_line_too(tmp_path):
    n, cut = 10**6, f"{made.UUID.format(0)}|580.1|13.0|unlocked|cupti|0.1.0"
    created = np.datetime64(made.START, "us") + np.arange(n) * np.timedelta64(60, "s")
    text = lambda value: made.coded([value], np.zeros(n, int))  # noqa: E731
    times = {"kind": text("benchmark"), "series": text(NAME), "cut": text(cut), "verdict": text("PASS"),
             "run": text("a"), "key": pa.array(np.full(n, flat.key(NAME, cut))), "created": pa.array(created),
             "time_s": pa.array(np.tile(QUIET, n // 200))}  # fmt: skip
    told = {"kind": ["run"], "run": ["a"], "created": created[:1], "name": ["a.json"], "uuid": [made.UUID.format(0)]}
    whole = pa.concat_tables([made.table(times, n), made.table({k: pa.array(v) for k, v in told.items()}, 1)])
    place.Place(str(tmp_path)).write(f"{place.FILED}/2023-06/a.parquet", flat.parquet(whole))
    (segment,) = series.segments(base.History(str(tmp_path)))
    assert (segment.points, len(segment.days)) == (n, 695)
    assert segment.level_s == pytest.approx(1e-4, rel=1e-3)
    assert any("last 99.9" in line or "last 100" in line for line in said(tmp_path))


def test_a_broken_parquet_file_is_named_and_its_runs_are_read_anew(tmp_path):
    nights(tmp_path, QUIET[:40])
    base.compact(str(tmp_path))
    broken, sound = sorted(tmp_path.glob("history/v1/*/*.parquet"))
    content = broken.read_bytes()
    broken.write_bytes(content[: len(content) // 2])
    assert counted(tmp_path) == (40, 40)
    (note,) = base.History(str(tmp_path)).notes
    assert broken.name in note
    assert sound.name not in note
    assert base.compact(str(tmp_path))[0] == 30  # June's
    assert broken.read_bytes() == content  # what is made of the same runs has the same name
    assert base.History(str(tmp_path)).notes == []


# --- series ---------------------------------------------------------------------------------------------------------


def test_a_renamed_kernel_goes_on_under_its_new_name(tmp_path):
    for n, name in enumerate(("a", "a", "b", "c", "c")):
        earlier = {"b": ["a"], "c": ["b"]}.get(name)
        save(tmp_path, run(made.START + n * DAY, {name: 1e-4}, **({"renamed_from": earlier} if earlier else {})))
    (segment,) = series.segments(base.History(str(tmp_path)))
    assert (segment.series.split("/")[1], segment.points) == ("c", 5)
    for pattern in ("*/c/*", "*/a/*"):  # by its earlier name too
        assert any("/c/" in line for line in said(tmp_path, pattern))


def test_another_kernel_that_takes_a_name_given_up_is_a_series_of_its_own(tmp_path):
    save(tmp_path, run(made.START, {"old": 1e-4}))
    save(tmp_path, run(made.START + DAY, {"new": 1e-4}, renamed_from=["old"]))
    save(tmp_path, run(made.START + 2 * DAY, {"old": 3e-4}))
    found = {s.series.split("/")[1]: s for s in series.segments(base.History(str(tmp_path)))}
    assert (found["new"].points, found["old"].points) == (2, 1)
    assert found["old"].last_s == pytest.approx(3e-4)


def test_two_kernels_that_say_they_were_each_other_are_two_series(tmp_path):
    data = run(made.START, {"a": 1e-4, "b": 2e-4})
    for record, other in zip(data["benchmarks"], "ba", strict=True):
        record["renamed_from"] = [other]
    save(tmp_path, data)
    assert sum(s.points for s in series.segments(base.History(str(tmp_path)))) == 2


CHANGES = {
    "uuid": {"gpu": 1}, "driver": {"driver": "590.48.01"}, "timer": {"timer": "events"},
}  # fmt: skip


@pytest.mark.parametrize("covariate", CHANGES)
def test_what_changes_with_a_covariate_is_no_slow_down_but_that_covariate(tmp_path, monkeypatch, covariate):
    nights(tmp_path, QUIET[:60])
    nights(tmp_path, 1.05 * QUIET[60:120], made.START + 60 * DAY, **CHANGES[covariate])
    found = series.segments(base.History(str(tmp_path)))
    assert [(s.points, s.watch.changes) for s in found] == [(60, ()), (60, ())]
    cuts = series.cuts(found)
    if covariate == "uuid":  # another GPU has a history of its own
        assert cuts == []
    else:
        (cut,) = cuts
        assert series.latest(found) == [found[1]]
        assert list(cut.differ) == [covariate]
        assert (cut.day, cut.ratio) == ((made.START + 60 * DAY).date(), pytest.approx(1.05, abs=0.005))
        (line,) = (line for line in said(tmp_path) if f"{covariate} " in line and "->" in line)
        assert line.endswith("1 series, times +5.0%") or "times +" in line
    assert "nothing became slower, as far as it is watched" in said(tmp_path)
    # The same store, were the covariate not to cut: it would be called a slow-down.
    monkeypatch.setattr(flat, "CUTS", tuple(word for word in flat.CUTS if word != covariate))
    if covariate != "uuid":
        (whole,) = series.segments(base.History(str(tmp_path)))
        assert [c.slower for c in whole.watch.changes] == [True]


def test_going_back_to_a_driver_goes_on_with_its_segment(tmp_path):
    nights(tmp_path, QUIET[:10])
    nights(tmp_path, QUIET[10:15], made.START + 10 * DAY, driver="590.48.01")
    nights(tmp_path, QUIET[15:25], made.START + 15 * DAY)
    found = series.segments(base.History(str(tmp_path)))
    assert [s.points for s in found] == [20, 5]
    assert len(series.cuts(found)) == 1
    assert [s.covariates["driver"] for s in series.latest(found)] == ["580.159.04"]


@pytest.fixture
def slower(tmp_path):
    """A store in which a kernel became 5 % slower at revision `bad`, when torch changed too."""
    for n in range(80):
        late = n >= 60
        more = {"revision": "bad0bad0bad0" if late else f"{n:012x}", "torch": "2.12.0" if late else "2.11.0"}
        data = run(made.START + n * DAY, {"acme": QUIET[n] * (1.05 if late else 1), "calm": QUIET[n + 80]}, **more)
        save(tmp_path, data, f"{n:03d}.json")
    return tmp_path


def test_an_alarm_names_the_revisions_what_changed_with_it_and_how_to_measure_again(slower, capsys):
    history = base.History(str(slower))
    found = series.segments(history)
    [(segment, change)] = series.standing(found)
    assert segment.series == NAME
    assert segment.day(change.dated) == (made.START + 60 * DAY).date()
    [cause] = causes(history, [(segment, change)])
    assert cause.revisions == (f"{59:012x}", "bad0bad0bad0")
    assert cause.differ == {"torch": ("2.11.0", "2.12.0")}
    assert cause.command == (
        f"pytest suites/ --roof-against={59:012x} --roof-workloads=square-4096/bfloat16-nt "
        "-k gemm/acme/square-4096/bfloat16-nt"
    )
    base.compact(str(slower))
    assert cli.main(["history", str(slower)]) == 0
    out = capsys.readouterr().out
    for part in ("1 alarm,", "+5.", "since 2023-07-31", cause.command, "torch 2.11.0 -> 2.12.0"):
        assert part in out


def test_of_several_runs_a_night_the_last_before_and_the_first_after_a_change_count(tmp_path):
    for n in range(60):
        for hour in range(3):
            at = made.START + n * DAY + timedelta(hours=hour)
            save(tmp_path, run(at, {"acme": QUIET[n] * (1.05 if n >= 50 else 1)}, revision=f"{n}-{hour}"))
    history = base.History(str(tmp_path))
    [cause] = causes(history, series.standing(series.segments(history)))
    assert cause.revisions == ("49-2", "50-0")


def test_an_alarm_of_the_last_days_gives_exit_code_1(slower, monkeypatch):
    now = made.START + 70 * DAY
    monkeypatch.setattr(
        base, "datetime", type("Fixed", (datetime,), {"now": classmethod(lambda _, tz: now.replace(tzinfo=tz))})
    )
    ask = lambda days: cli.main(["history", str(slower), f"--alarms={days}"])  # noqa: E731
    assert (ask(3), ask(30)) == (0, 1)


def test_a_revision_that_did_not_change_is_said_and_one_that_is_unknown_gives_no_command(tmp_path):
    nights(tmp_path / "same", [*QUIET[:50], *(1.05 * QUIET[50:70])], revision="0123456789ab+changed")
    nights(tmp_path / "none", [*QUIET[:50], *(1.05 * QUIET[50:70])])
    same, none = ("\n".join(said(tmp_path / f)) for f in ("same", "none"))
    assert "revision 0123456789ab+changed on both sides: the kernel's repository did not change" in same
    assert "--roof-against=0123456789ab " in same
    assert "no revision is recorded to compare with" in none


def test_energy_that_was_not_valid_and_times_that_were_invalid_are_no_numbers(tmp_path):
    save(tmp_path, run(made.START, {"acme": 1e-4}, joules=0.5), "a.json")
    save(tmp_path, run(made.START + DAY, {"acme": 1e-4}), "b.json")
    save(tmp_path, run(made.START + 2 * DAY, {"acme": 1e-5}, verdict="INVALID"), "c.json")
    history = base.History(str(tmp_path))
    assert history.ask("SELECT call_j FROM times ORDER BY created") == [(0.5,), (None,)]
    assert counted(tmp_path) == (3, 2)


def test_the_committed_runs_are_answered_as_they_were_written():
    root = Path(__file__).parents[1] / "results"
    wrote = {}
    for path in (root / "runs").glob("*.json"):
        for record in store.read(path)["benchmarks"]:
            if record["verdict"] != "INVALID" and record.get("extra_info"):
                wrote[path.name, record["series"]] = record["extra_info"]["timing"]["median_s"]
    history = base.History(str(root))
    got = history.ask("SELECT r.name, t.series, t.time_s FROM times t JOIN runs r USING (run)")
    assert {(name, each): time_s for name, each, time_s in got} == wrote
    assert [note for note in history.notes if note.startswith("left out")] == []


def test_a_history_of_300_series_names_the_kernel_that_became_slower(tmp_path):
    made.fill(tmp_path, 800, 300, nodes=4, steps=((7, 60, 5),))  # tests/history_scale.py times the full size
    history = base.History(str(tmp_path))
    found = series.segments(history)
    assert len(found) == 300 * 4 * 2
    assert {s.points for s in found} == {120, 80}
    dated = [(s, c) for s in found for c in s.watch.alarms if c.dated is not None and c.ratio > 1.035]
    assert {s.series for s, _ in dated} == {made.name(7)}
    assert {str(s.day(c.dated)) for s, c in dated} <= {"2023-07-30", "2023-07-31", "2023-08-01"}
    assert len(dated) == 4
    assert len({cut.day for cut in series.cuts(found)}) == 1


# --- side by side ---------------------------------------------------------------------------------------------------


def test_two_runs_stand_side_by_side_without_a_verdict(tmp_path, capsys):
    a = save(tmp_path, run(made.START, {"acme": 2e-4, "gone": 1e-4}, joules=0.5), "a.json")
    b = save(tmp_path, run(made.START + DAY, {"acme": 1e-4}, driver="590.48.01", moved=1.25), "b.json")
    assert cli.main(["compare", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if line.startswith(NAME))
    assert line.split()[1:] == ["200", "us", "100", "us", "0.500x", "50.0%", "100.0%", "2.00", "1.25", "0.5", "-"]
    assert "A and B differ in driver 580.159.04 | 590.48.01: what follows describes, it does not judge" in out
    assert "only in A: 1 series, such as gemm/gone/" in out
    assert not {"PASS", "FAIL", "slower", "faster", "regression"} & set(out.split())


def test_two_gpus_stand_side_by_side_by_their_latest_times(tmp_path, capsys):
    for n, gpu in enumerate((0, 1, 1)):
        save(tmp_path, run(made.START + n * DAY, {"acme": (n + 1) * 1e-4}, gpu=gpu))
    assert cli.main(["compare", "00000000", "GPU-00000001", "--store", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "A: H200 00000000, 2023-06-01, 1 series" in out
    assert "3.000x" in out
    assert cli.main(["compare", "00000000", "f", "--store", str(tmp_path)]) == 4
    assert "'f' is neither a results file nor a GPU of" in capsys.readouterr().err
    assert cli.main(["compare", "0", "1", "--store", str(tmp_path)]) == 4
    assert "'0' is several GPUs of" in capsys.readouterr().err


def test_a_kernel_that_was_renamed_between_two_runs_is_compared_with_itself(tmp_path):
    a = save(tmp_path, run(made.START, {"old": 1e-4}), "a.json")
    b = save(tmp_path, run(made.START + DAY, {"new": 2e-4}, renamed_from=["old"]), "b.json")
    assert any("2.000x" in line for line in side.render(*side.sides(str(a), str(b), "none")))


def test_a_file_that_does_not_fit_the_schema_is_not_compared(tmp_path, capsys):
    a, b = (save(tmp_path, run(made.START, {"a": 1e-4}), name) for name in ("a.json", "b.json"))
    data = json.loads(b.read_text())
    data["benchmarks"][0]["verdict"] = "FINE"
    b.write_text(json.dumps(data))
    assert cli.main(["compare", str(a), str(b)]) == 4
    assert capsys.readouterr().err.startswith(f"ERROR: {b} does not fit the schema at benchmarks/0/verdict")


def test_what_a_killed_run_left_is_compared(tmp_path):
    data = run(made.START, {"a": 1e-4})
    a = save(tmp_path, data, "a.json")
    killed = store.Run(tmp_path / "b.json", data["machine_info"])
    killed.add("benchmarks", data["benchmarks"][0])
    assert any("1.000x" in line for line in side.render(*side.sides(str(a), str(killed.journal), "none")))


def test_sides_that_share_nothing_say_so(tmp_path):
    a = save(tmp_path, run(made.START, {"a": 1e-4}), "a.json")
    b = save(tmp_path, run(made.START, {}), "b.json")
    assert side.render(*side.sides(str(a), str(b), "none"))[-1] == "no series was timed on both sides"


# --- without the extra ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["duckdb", "pyarrow", "fsspec"])
def test_without_a_library_a_history_says_what_to_install(tmp_path, monkeypatch, capsys, missing):
    from rooftest.history import parts

    real = parts.import_module

    def without(name):
        if name.partition(".")[0] == missing:
            raise ImportError(f"No module named {missing!r}")
        return real(name)

    monkeypatch.setattr(parts, "import_module", without)
    for command in (
        ["history", str(tmp_path)],
        ["compact", str(tmp_path)],
        ["compare", "a", "b", "--store", str(tmp_path)],
    ):
        assert cli.main(command) == 4
        error = capsys.readouterr().err
        assert f"a history needs {missing}" in error
        assert "pip install 'rooftest[report]'" in error
        assert error.count("\n") == 1


def test_nothing_of_the_extra_is_imported_by_what_measures_and_gates():
    code = (
        "import sys, rooftest.cli, rooftest.plugin, rooftest.results, rooftest.speed, rooftest.gate.trial;"
        "print([m for m in ('duckdb', 'pyarrow', 'fsspec', 'jinja2', 'jsonschema') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_history_imports_no_library_that_takes_longer_than_its_answer(slower):
    code = (
        "import sys; from rooftest.cli import main; main(['history', sys.argv[1]]);"
        "print([m for m in ('scipy', 'torch', 'ruptures', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(slower)], capture_output=True, text=True, check=True)
    out = done.stdout.splitlines()
    assert any("1 alarm" in line for line in out)
    assert out[-1] == "[]"
