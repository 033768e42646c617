"""The HTML page of runs and the one for a wall: what they hold, what they never hold, how a browser shows them."""

import copy
import json
import math
import re
import sys
import tomllib
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rooftest import cli, store
from rooftest.errors import UsageError
from rooftest.gate import spread
from rooftest.web import armed, ladder, marks, past, render, roofs, runs, scale, trace, wall

sys.path.insert(0, str(Path(__file__).parent))
import browser
import history_made as made

ROOT = Path(__file__).parents[1]
RUNS = sorted((ROOT / "results" / "runs").glob("*.json"))
SPEED = ROOT / "results" / "runs" / "h200-2026-12-01-speed.json"
LLAMA = SPEED.with_name("h200-2026-12-01-llama.json")
FOUND = SPEED.with_name("h200-2026-12-01-found.json")
REPORT = ROOT / "results" / "reports" / "h200-2026-12-01-large.json"
MOST = 5_000_000
EVIL = "<script>alert(1)</script><img src=https://x.example/y onerror=alert(2)>\"'></svg>{{ 7 * 7 }}"
VOID = ("meta", "line", "rect", "circle", "path", "br", "img", "link", "wbr")


class Page(HTMLParser):
    """A page's elements, and what is wrong with it."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.found, self.open, self.wrong, self.text = [], [], [], text
        self.feed(text)
        self.wrong += [f"never closed: {tag}" for tag in self.open]
        ids = [given["id"] for _, given in self.found if "id" in given]
        self.wrong += [f"twice: id {i}" for i in {i for i in ids if ids.count(i) > 1}]
        for tag, given in self.found:
            for key, value in given.items():
                if key in ("href", "src", "srcset", "data", "action", "poster") and value[:1] != "#":
                    self.wrong.append(f"goes elsewhere: {tag} {key}={value}")
                if key in ("href", "aria-labelledby") and value.lstrip("#") not in ids:
                    self.wrong.append(f"points nowhere: {value}")
                if key.startswith("on"):
                    self.wrong.append(f"runs script: {tag} {key}")
        scripts, styles = (sum(tag == word for tag, _ in self.found) for word in ("script", "style"))
        if scripts != 1 or styles != 1:
            self.wrong.append(f"{scripts} scripts, {styles} styles")
        if re.search(r"url\((?!#)|@import|<(link|iframe|object|embed|base)\b", text):
            self.wrong.append("loads something")
        if len(text.encode()) > MOST:
            self.wrong.append(f"{len(text.encode())} bytes")

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()
        elif tag not in VOID:
            self.wrong.append(f"closed out of order: {tag} in {self.open[-3:]}")

    def all(self, name):
        """Elements of a class."""
        return [given for _, given in self.found if name in given.get("class", "").split()]


def page(*paths, store=None):
    return Page(render.full(runs.read(paths), store))


def timed(path):
    return [r for r in store.read(path)["benchmarks"] if r["extra_info"]["timing"]]


@pytest.mark.parametrize("path", [*RUNS, REPORT], ids=lambda p: p.stem)
def test_each_committed_run_gives_one_sound_file_that_loads_nothing(path):
    shown = page(path)
    assert shown.wrong == []
    assert shown.all("skip")
    assert "</h3>" in shown.text


def test_all_committed_runs_in_one_page_stay_apart_by_gpu_and_below_5_mb():
    shown = page(*RUNS)
    assert shown.wrong == []
    gpus = {json.loads(p.read_text())["machine_info"]["gpu"]["uuid"] for p in RUNS}
    assert len(shown.all("card")) == len(gpus)


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ('<img src="https://x.example/y">', "goes elsewhere"),
        ("<script>1</script>", "2 scripts"),
        ('<p onclick="x()"></p>', "runs script"),
        ('<a href="#nowhere">x</a>', "points nowhere"),
        ("<section>", "never closed"),
        ('<p id="main"></p>', "twice"),
        ("<style>@import 'x'</style>", "loads something"),
        ("x" * MOST, "bytes"),
    ],
)
def test_what_is_looked_for_in_a_page_is_found(planted, told):
    text = render.full(runs.read([LLAMA]), None)
    assert any(told in one for one in Page(text.replace("</main>", f"{planted}</main>")).wrong)


def test_every_timing_is_a_point_that_says_workload_time_efficiency_and_moved_over_min():
    shown = page(SPEED)
    points = [p for p in shown.all("point") if "data-of" in p]
    assert len(points) == len(timed(SPEED))
    [said] = [p["aria-label"] for p in points if "step8_overlapped, square-8192" in p["aria-label"]]
    for word in ("1.343 ms", "818.5 TFLOP/s", "86% math of attainable", "76% of physical", "moved / min 3.37", "PASS"):
        assert word in said
    assert len(shown.all("moved")) == len(points)


def test_a_point_lies_under_its_roof_by_its_efficiency_and_its_arrow_ends_at_the_moved_bytes():
    [card] = runs.read([LLAMA])
    [chart] = roofs.charts(card.timed, card.ceilings, marks.marks(card.timed))
    attainable = next(r for r in chart.roofs if r.kind == "attainable")
    assert [r.kind for r in chart.roofs] == ["physical", "attainable"]
    assert len(attainable.corners) == 3
    (x0, y0), (x1, y1) = attainable.corners[:2]
    decades = math.log10(card.ceilings["attainable"]["flop_per_s"]["bfloat16"]) - math.log10(3.5e12)
    assert decades > 2  # the slope spans what a decode step and a large product need
    slope_y = lambda x: y0 + (y1 - y0) * (x - x0) / (x1 - x0)  # noqa: E731
    record = next(r for r in card.timed if r["what"] == "llama-3.1-8b-down-1")
    point = next(p for p in chart.points if "llama-3.1-8b-down-1 " in p.tip[0])
    # The vertical distance in decades, by the chart's own marks, is log10 of the efficiency: writes hardly count here.
    (ya, ta), (yb, tb) = chart.ys[0], chart.ys[1]
    assert (ta, tb) == ("10 TFLOP/s", "100 TFLOP/s")
    missing = (slope_y(point.x) - point.y) / (yb - ya)
    assert 10 ** -abs(missing) == pytest.approx(record["extra_info"]["bound"]["efficiency"], rel=0.01)
    qkv = next(p for p in chart.points if "llama-3.1-8b-qkv-1 " in p.tip[0])
    (xa, _), (xb, _) = chart.xs[:2]  # a decade
    assert 10 ** ((qkv.moved - qkv.x) / (xb - xa)) == pytest.approx(1 / 0.6888346, rel=1e-3)


def test_an_arrow_whose_bytes_l2_held_is_dashed_and_ends_within_the_chart():
    [card] = runs.read([LLAMA])
    [chart] = roofs.charts(card.timed, card.ceilings, marks.marks(card.timed))
    held = [p for p in chart.points if p.beyond]
    assert len(held) == 2
    assert all(0 < p.moved < 100 for p in held)
    assert all("L2 held the rest" in " ".join(p.tip) for p in held)
    assert len(page(LLAMA).all("beyond")) == 2


def test_a_file_without_attainable_ceilings_shows_the_one_it_was_judged_by():
    [card] = runs.read([SPEED])
    [chart] = roofs.charts(card.timed, card.ceilings, marks.marks(card.timed))
    roof = chart.roofs[1]
    assert roof.label == "attainable: 956 TFLOP/s"  # 1.0995e12 FLOP in 1.1497 ms
    assert "keeps no measurement" in roof.provenance


def test_a_run_without_any_ceiling_says_so(tmp_path):
    data = store.read(LLAMA) | {"ceilings": None}
    for r in data["benchmarks"]:
        r["extra_info"]["bound"] |= {"efficiency": None, "least_attainable_s": None, "limiter": "no ceiling"}
    store.write(tmp_path / "run.json", data)
    shown = page(tmp_path / "run.json")
    assert shown.wrong == []
    assert "No physical ceiling for bfloat16 is recorded." in shown.text
    assert len([p for p in shown.all("point") if "data-of" in p]) == 8


def test_the_ladder_stands_in_the_order_of_its_steps_with_the_peer_last():
    [card] = runs.read([SPEED])
    first = ladder.ladders(card.timed)[0]
    assert first.title == "gemm square-4096 bf16-nn"
    names = [s.kernel for s in first.steps]
    assert names == [*sorted(names[:-1], key=marks.natural), "torch.matmul"]
    assert [n.partition("_")[0] for n in names[:4]] == ["step1", "step2", "step3", "step4"]
    shares = {s.kernel: s.share for s in first.steps}
    assert shares["step8_overlapped"] == pytest.approx(0.845, abs=0.01)
    assert shares["torch.matmul"] == pytest.approx(shares["step8_overlapped"] / 0.995, rel=0.01)


def test_kernels_differ_in_shape_and_not_in_colour_alone():
    every = [marks.Mark(n, str(n)) for n in range(42)]
    assert len({(m.colour, m.shape) for m in every}) == 42
    assert len({m.shape for m in every[:7]}) == 7
    assert sorted(["step10", "step9_x", "step1"], key=marks.natural) == ["step1", "step9_x", "step10"]


def test_clock_and_power_are_drawn_as_recorded_and_their_absence_is_told(tmp_path):
    [card] = runs.read([SPEED])
    clock, power = trace.traces(card.timed, card.gpu)
    assert (len(clock.readings), clock.missing) == (20, 0)
    assert clock.limit[1].endswith("1.98 GHz")
    assert power.limit[1].endswith("700 W")
    last = clock.readings[-1]
    assert last.top < last.y < last.bottom
    assert last.held_down
    data = store.read(SPEED)
    for r in data["benchmarks"]:
        r["extra_info"] |= {"clocks": {}, "power_w": None}
    store.write(tmp_path / "run.json", data)
    shown = page(tmp_path / "run.json")
    assert "This run holds no trace" in shown.text
    assert shown.wrong == []


def test_names_and_messages_of_a_run_are_text_and_nothing_else(tmp_path):
    data = store.read(LLAMA)
    data["machine_info"]["gpu"]["name"] = EVIL
    data["machine_info"]["software"]["torch"] = EVIL
    for r in data["benchmarks"]:
        r |= {"kernel": EVIL, "what": EVIL, "reason": EVIL, "verdict": "INVALID", "peer": EVIL, "id": r["id"] + EVIL}
        r["extra_info"]["health"]["tags"] = [EVIL]
    wrong = next(r for r in store.read(FOUND)["conformance"] if r["verdict"] == "FAIL")
    data["conformance"] = [wrong | {"kernel": EVIL, "message": f"x\n{EVIL}", "id": EVIL, "rung": EVIL, "reason": EVIL}]
    store.write(tmp_path / "run.json", data)
    for shown in (page(tmp_path / "run.json"), Page(render.on_wall(runs.read([tmp_path / "run.json"]), None))):
        assert shown.wrong == []
        assert "img" not in [tag for tag, _ in shown.found]
        assert EVIL not in shown.text
        assert "49" not in re.findall(r"&#39;&gt;&lt;/svg&gt;(.{4})", shown.text)
        assert "{{ 7 * 7 }}" in shown.text
    assert EVIL in next(p["aria-label"] for p in page(tmp_path / "run.json").all("point"))


def test_the_failures_stand_first_with_their_messages_and_commands_below():
    shown = page(FOUND)
    assert "12 to look at first" in shown.text
    assert len(shown.all("failure")) == 12
    assert shown.text.count("--roof-case") >= 12


def test_of_two_runs_of_a_gpu_the_later_record_counts(tmp_path):
    first, second = store.read(LLAMA), store.read(LLAMA)
    second["created"] = "2026-12-02T00:00:00+00:00"
    second["benchmarks"] = second["benchmarks"][:1]
    second["benchmarks"][0]["verdict"] = "FAIL"
    for n, data in enumerate((second, first)):
        store.write(tmp_path / f"{n}.json", data)
    [card] = runs.read([tmp_path / "0.json", tmp_path / "1.json"])
    assert [r["verdict"] for r in card.records("benchmarks")].count("FAIL") == 1
    assert len(card.timed) == 8


@pytest.fixture(scope="module")
def nightly(tmp_path_factory):
    """95 nights of one GPU: a kernel slower from night 80, a new driver on night 40, a test wrong from night 90."""
    root = tmp_path_factory.mktemp("store")
    wrong = next(r for r in store.read(FOUND)["conformance"] if r["verdict"] == "FAIL")
    wrong |= {"kernel": "acme", "what": "bound", "rung": "bound"}
    for n in range(95):
        noise = 1 + 0.004 * math.sin(2.4 * n)
        times = {"acme": 1e-4 * noise * (1.04 if n >= 80 else 1), "other": 2e-4 * noise}
        times |= {"young": 3e-4 * noise} if n >= 90 else {}
        data = made.run(made.START + timedelta(days=n), times, driver="580" if n < 40 else "590", revision=f"r{n}")
        tests = {"float16-nn": n >= 90, "float16-nt": n < 50, "float16-tt": True}
        data["conformance"] = [
            wrong | {"id": f"gemm/acme/bound/{kind}", "verdict": "FAIL" if bad else "PASS"}
            for kind, bad in tests.items()
        ]
        path = made.save(root, data, f"{n:03d}.json")
    return root, path


@pytest.fixture(scope="module")
def with_history(nightly):
    root, path = nightly
    return render.full(runs.read([path]), str(root))


def test_history_shows_change_points_and_cuts_those_that_became_slower_first(with_history):
    shown = Page(with_history)
    assert shown.wrong == []
    assert len(shown.all("series")) == 3
    assert [("open" in given) for given in shown.all("series")] == [True, False, False]
    change = re.search(r"▲ slower: (.+?)<", with_history)[1]
    day = (made.START + timedelta(days=80)).date()
    assert change.startswith(f"+3.9% since {day}")
    assert "cut 2023-07-11: driver 580 to 590" in with_history
    assert "measure again: pytest suites/ --roof-against=r79" in with_history
    assert "5 of 30 nights of a baseline" in with_history


def test_a_wall_says_what_is_red_slower_and_unarmed_and_since_when(nightly):
    root, path = nightly
    cards = runs.read([path])
    known = past.read(past.opened(str(root)), cards[0].uuid)
    red, slower, unarmed = wall.columns(cards[0], known)
    since = {name.rpartition("/")[2]: ((when - made.START).days, right) for name, (when, right) in known.red.items()}
    assert since == {"float16-nn": (90, True), "float16-tt": (0, False)}  # float16-nt is right again
    assert (red.number, slower.number, unarmed.number) == (1, 1, 2)
    # The oldest of the two that fail now has failed since the first run that is kept.
    assert [(i.name, i.told) for i in red.items] == [("gemm/acme bound", "2 tests, since 2023-06-01 or before")]
    assert [(i.name, i.told) for i in slower.items] == [("gemm/acme square-4096 bfloat16-nt", "+3.9% since 2023-08-20")]
    assert [i.name for i in unarmed.items] == [
        "gemm/acme square-4096 bfloat16-nt",
        "gemm/young square-4096 bfloat16-nt",
    ]
    assert [i.told for i in unarmed.items] == ["15 of 30 nights, since 2023-08-20", "5 of 30 nights, since 2023-08-30"]


def test_what_nobody_watches_is_no_zero_on_a_wall(tmp_path):
    [card] = runs.read([FOUND])
    red, slower, unarmed = wall.columns(card, None)
    assert (red.number, red.more, slower.number, unarmed.number) == (6, 2, None, None)
    made.save(tmp_path, made.run("2026-11-30T00:00:00+00:00", {"acme": 1e-4}, gpu=5))
    text = render.on_wall([card], str(tmp_path))
    assert text.count("the store holds no times of this GPU") == 2
    assert Page(text).wrong == []


def test_unarmed_comparisons_of_the_gate_stand_on_the_wall(tmp_path):
    named = {"kind": "gate", "op": "gemm", "kernel": "acme", "what": "square-64", "dtype": "bfloat16", "layout": "nn"}
    gate = named | {
        "id": "gemm/acme/square-64/bfloat16-nn", "device": "cuda:0", "status": "passed", "verdict": "UNARMED",
        "reason": "3 A/A pairs of this series on this GPU, 30 are needed", "pairs_known": 3, "series": None,
        "pairs": [], "change": None, "ci95": None, "mde": None,
    }  # fmt: skip
    store.write(tmp_path / "run.json", store.read(LLAMA) | {"gate": [gate]})
    [card] = runs.read([tmp_path / "run.json"])
    _, _, unarmed = wall.columns(card, None)
    assert unarmed.number == 1
    assert unarmed.items[0].told == "gate 2026-12-01: 3 A/A pairs"
    assert "UNARMED" in page(tmp_path / "run.json").text


def test_series_that_the_merge_gate_could_not_fail_stand_on_the_wall(tmp_path):
    [card] = runs.read([LLAMA])
    assert armed.unarmed(str(tmp_path), card) == {}  # nobody compares there
    pairs = spread.Store(tmp_path / "spread", f"h200-{card.uuid}")
    few, wide, enough = card.timed[:3]
    for record, n, size in ((few, 4, 0.001), (wide, 40, 0.02), (enough, 40, 0.001)):
        told = record["extra_info"]
        covariates = spread.covariates(told["covariates"]["driver"], told["timing"]["timer"], "burst")
        ratios = [size * (-1) ** i for i in range(n)]
        kept = {"stage": "calibrate", "order": "AB", "valid": True, "reasons": []}
        sides = [[dict.fromkeys(spread.ARM) | {"time_s": 1e-4 * math.exp(x)} for x in (0, ratio)] for ratio in ratios]
        pairs.add(record["series"], covariates, [
            kept | {"log_ratio": ratio, "base": base, "head": head}
            for ratio, (base, head) in zip(ratios, sides, strict=True)
        ])  # fmt: skip
    few, wide, enough = (r["series"] for r in card.timed[:3])
    why = armed.unarmed(str(tmp_path), card)
    assert (len(why), enough in why) == (7, False)
    assert why[few] == "gate: 4 of 30 A/A pairs"
    assert why[wide].startswith("gate: the smallest slow-down it can see is ")
    assert {why[r["series"]] for r in card.timed[3:]} == {"gate: 0 of 30 A/A pairs"}
    _, _, unarmed = wall.columns(card, None, why)
    assert unarmed.number == 7
    made.save(tmp_path, made.run("2026-11-30T00:00:00+00:00", {"acme": 1e-4}))
    assert "gate: 0 of 30 A/A pairs" in render.on_wall([card], str(tmp_path))


def test_a_full_run_with_300_series_of_400_nights_stays_below_5_mb(tmp_path):
    made.fill(tmp_path / "store", runs=400, series=300, nodes=1)
    data = store.read(SPEED)
    data["machine_info"]["gpu"]["uuid"] = made.UUID.format(0)
    first, judged = data["benchmarks"][-1], store.read(FOUND)["conformance"]
    data["benchmarks"] = [
        copy.deepcopy(first) | {"id": f"{first['id']}-{n}", "kernel": f"k{n // 10}"} for n in range(300)
    ]
    data["conformance"] = [
        r | {"id": f"{r['id']}-{n}", "kernel": f"{r['kernel']}{n}"} for n in range(2) for r in judged
    ]
    store.write(tmp_path / "run.json", data)
    shown = page(tmp_path / "run.json", store=str(tmp_path / "store"))
    assert shown.wrong == []
    assert len(shown.all("series")) == 300
    assert len([p for p in shown.all("point") if "data-of" in p]) == 300


def test_an_empty_store_one_night_and_a_store_that_another_gpu_filled_give_a_sensible_page(tmp_path):
    (tmp_path / "runs").mkdir()
    path = made.save(tmp_path / "elsewhere", made.run("2026-11-30T00:00:00+00:00", {"acme": 1e-4}))
    assert "The store holds no times of this GPU." in page(path, store=str(tmp_path)).text
    made.save(tmp_path, made.run("2026-11-30T00:00:00+00:00", {"acme": 1e-4}, gpu=5))
    (tmp_path / "runs" / "broken.json").write_text('{"half')
    shown = page(path, store=str(tmp_path))
    assert "The store holds no times of this GPU." in shown.text
    assert "left out: broken.json" in shown.text
    made.save(tmp_path, made.run("2026-11-30T00:00:00+00:00", {"acme": 1e-4}))
    shown = page(path, store=str(tmp_path))
    assert len(shown.all("series")) == 1
    assert "1 of 30 nights of a baseline" in shown.text
    assert shown.wrong == []


@pytest.mark.parametrize(
    ("low", "high", "log", "marked"),
    [
        (0, 700, False, [0, 200, 400, 600]),
        (1.5e9, 1.98e9, False, [1.5e9, 1.6e9, 1.7e9, 1.8e9, 1.9e9]),
        (0.7, 3000, True, [1, 10, 100, 1000]),
        (90, 450, True, [100, 200]),
    ],
)
def test_an_axis_marks_round_numbers(low, high, log, marked):
    axis = scale.Scale(low, high, log)
    assert axis.ticks() == pytest.approx(marked)
    assert (axis.at(low), axis.at(high)) == (0, 100)


@pytest.mark.parametrize("values", [[], [5.0], [0.0], [3.0, 3.0], [1e-9, 1e15]])
def test_an_axis_holds_one_value_or_none(values):
    for log in (False, True):
        axis = scale.around(values, log=log)
        assert all(0 <= axis.at(v) <= 100 for v in values if v > 0 or not log)
        assert axis.ticks() or len(values) < 2


def test_the_command_writes_one_file(tmp_path, capsys):
    out = tmp_path / "deep" / "page.html"
    assert cli.main(["report", str(SPEED), "-o", str(out)]) == 0
    assert Page(out.read_text()).wrong == []
    assert cli.main(["report", str(FOUND), "-o", str(tmp_path / "wall.html"), "--wall"]) == 0
    assert 'class="wall"' in (tmp_path / "wall.html").read_text()
    assert cli.main(["report", str(FOUND), "-o", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text().startswith("# Conformance")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([str(SPEED), "-o", "page.pdf"], "FILE.html or FILE.md"),
        ([str(SPEED), "--wall"], "add -o FILE.html"),
        ([str(SPEED), "--store", "results", "-o", "page.md"], "--store is about an HTML file"),
        ([str(SPEED), str(LLAMA), "--wall", "-o", "w.html"], "a wall shows one GPU; these files are of 2: GPU-"),
        ([str(SPEED), "--store", "nowhere", "-o", "p.html"], "there is no store nowhere"),
        (["pyproject.toml", "-o", "p.html"], "pyproject.toml is not JSON"),
    ],
)
def test_a_mistake_is_one_line(arguments, told, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.main(["report", *arguments]) == 4
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (ROOT / "p.html").exists()


def test_a_record_that_lacks_what_is_shown_is_one_line(tmp_path, capsys):
    data = store.read(LLAMA)
    data["ceilings"]["measured"] = {"by": "hand"}
    store.write(tmp_path / "run.json", data)
    assert cli.main(["report", str(tmp_path / "run.json"), "-o", str(tmp_path / "p.html")]) == 4
    assert "a record lacks what is shown" in capsys.readouterr().err
    huge = json.loads(SPEED.read_text(), parse_float=lambda _: 1e308)
    store.write(tmp_path / "run.json", huge)
    assert cli.main(["report", str(tmp_path / "run.json"), "-o", str(tmp_path / "p.html")]) == 4
    assert "a number in it is too large to be shown" in capsys.readouterr().err


def test_without_jinja2_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match=r"pip install 'rooftest\[report\]'"):
        render.full(runs.read([LLAMA]), None)


def test_the_wheel_holds_every_template():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "rooftest.web" in data["packages"]
    suffixes = {p.suffix for p in (ROOT / "rooftest" / "web").iterdir() if p.is_file()} - {".py"}
    assert {f"*{s}" for s in suffixes} == set(data["package-data"]["rooftest.web"])


# In a browser.

needs_browser = pytest.mark.skipif(not browser.there(), reason=browser.MISSING)


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with browser.browser(tmp_path_factory.mktemp("profile")) as made_:
        yield made_


@pytest.fixture(scope="module")
def pages(tmp_path_factory, with_history, nightly):
    folder = tmp_path_factory.mktemp("pages")
    (folder / "speed.html").write_text(render.full(runs.read([SPEED]), None))
    (folder / "found.html").write_text(render.full(runs.read([FOUND]), None))
    (folder / "history.html").write_text(with_history)
    (folder / "wall.html").write_text(render.on_wall(runs.read([nightly[1]]), str(nightly[0])))
    return folder


WIDE = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
SHIFTS = """
return new Promise(done => { let sum = 0;
  new PerformanceObserver(list => list.getEntries().forEach(e => { sum += e.value; }))
    .observe({type: "layout-shift", buffered: true});
  setTimeout(() => done(sum), 50); });
"""
# WCAG 2.2's contrast ratio of every text that is shown, against the nearest ground behind it; 4.5 is asked for.
PALE = """
const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const out = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement;
  if (!walk.currentNode.data.trim() || e.closest("script, .skip") || !e.checkVisibility()) continue;
  const style = getComputedStyle(e), ink = parse(e.closest("svg") ? style.fill : style.color);
  let at = e, ground;
  do { ground = parse(getComputedStyle(at).backgroundColor); at = at.parentElement; } while (at && ground[3] === 0);
  if (ground[3] === 0) ground = parse(getComputedStyle(document.documentElement).backgroundColor);
  const [a, b] = [light(ink.slice(0, 3)), light(ground.slice(0, 3))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) out.push(`${ratio.toFixed(2)} ${walk.currentNode.data.trim().slice(0, 40)}`);
}
return out;
"""
SIZES = """
return [...document.querySelectorAll("main *")]
  .filter(e => [...e.childNodes].some(n => n.nodeType === Node.TEXT_NODE && n.data.trim()))
  .map(e => parseFloat(getComputedStyle(e).fontSize));
"""


# Charts that are too low, and points outside of theirs.
ASTRAY = """
return [...document.querySelectorAll(".plot")].filter(p => p.checkVisibility()).flatMap(p => {
  const box = p.firstElementChild.getBoundingClientRect();
  const out = [...p.querySelectorAll(".point")].filter(one => {
    const r = one.lastElementChild.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
    return x < box.left || x > box.right || y < box.top || y > box.bottom;
  });
  return box.height < 100 || box.width < 200 ? [`${box.width} x ${box.height}`] : out.map(one => one.dataset.tip);
});
"""


@needs_browser
@pytest.mark.parametrize("name", ["speed", "found", "history", "wall"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_it_whole_still_and_legible(window, pages, name, width):
    for scheme in ("light", "dark"):
        window.show(pages / f"{name}.html", width, 844, scheme)
        assert window.run(WIDE) == 0, scheme
        assert window.run(ASTRAY) == [], scheme
        assert window.run(SHIFTS) == 0, scheme
        assert window.run(PALE) == [], scheme
        assert window.log() == [], scheme


@needs_browser
def test_a_page_that_is_too_wide_pale_unstill_or_reaches_out_is_seen(window, pages, tmp_path):
    text = (pages / "speed.html").read_text()
    planted = '<div style="width: 3000px; color: #ccc">pale</div><img src="https://x.example/a.png">'
    broken = text.replace("</header>", f"</header>{planted}")
    (tmp_path / "broken.html").write_text(broken)
    window.show(tmp_path / "broken.html", 1280, 844)
    assert window.run(WIDE) > 1000
    assert "pale" in " ".join(window.run(PALE))
    assert any("Content Security Policy" in line for line in window.log())
    window.run("const p = document.createElement('p'); p.style.height = '300px'; document.body.prepend(p);")
    # A frame later, whenever a busy machine draws it.
    assert any(window.run(SHIFTS) > 0 for _ in range(100))


@needs_browser
def test_points_speak_to_the_pointer_and_to_the_keyboard(window, pages):
    window.show(pages / "speed.html", 1280, 900)
    tip = "const t = document.querySelector('.roofline .tip'); return t.hidden ? null : t.textContent"
    at = window.run("const r = document.querySelector('.roofline .point path').getBoundingClientRect();"
                    "return [r.x + r.width / 2, r.y + r.height / 2]")  # fmt: skip
    assert window.run(tip) is None
    window.hover(at[0] + 5, at[1])
    first = window.run("return document.querySelector('.roofline .point').dataset.tip")
    assert window.run(tip) is not None
    window.hover(5, 5)
    assert window.run(tip) is None
    window.key("Tab")
    assert window.run("return document.activeElement.className") == "skip"
    for _ in range(12):
        window.key("Tab")
        if window.run("return document.activeElement.matches('.point')"):
            break
    assert window.run(tip) == first
    window.key("ArrowRight")
    second = window.run(tip)
    assert second not in (None, first)
    window.key("End")
    assert window.run(tip) not in (None, first, second)
    assert window.run("return document.querySelectorAll('.roofline .point[tabindex=\"0\"]').length") == 1
    window.key("Escape")
    assert window.run(tip) is None
    window.key("Tab")  # a legend's button: one stop for all points
    assert window.run("return document.activeElement.dataset.kernel") == "0"
    window.key("Enter")
    assert window.run("return document.activeElement.getAttribute('aria-pressed')") == "true"
    same = "return [...document.querySelectorAll('.roofline .picked .point.same')].every(p => p.dataset.of === '0')"
    assert window.run(same) is True
    assert window.run("return document.querySelectorAll('.picked .point.same').length") > 0


@needs_browser
def test_a_tip_stays_within_a_narrow_window(window, pages):
    window.show(pages / "speed.html", 390, 844)
    boxes = window.run(
        "return [...document.querySelectorAll('.roofline .point')].map(p => { p.focus();"
        "const r = p.closest('.plot').querySelector('.tip').getBoundingClientRect(); return [r.left, r.right]; })"
    )
    assert len(boxes) == 20
    assert all(left >= 0 and right <= 390 for left, right in boxes)


@needs_browser
def test_tables_wider_than_the_window_are_reached_by_keyboard(window, pages):
    window.show(pages / "found.html", 390, 844)
    stuck = (
        "return [...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth && s.tabIndex < 0)"
    )
    assert window.run(stuck) == []
    assert window.run("return [...document.querySelectorAll('.scroll')].some(s => s.scrollWidth > s.clientWidth)")


@needs_browser
def test_paper_gets_light_colours_no_links_and_everything_unfolded(window, pages):
    window.show(pages / "found.html", 1280, 844, "dark", "print")
    assert window.run("return getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert window.run("return getComputedStyle(document.querySelector('nav')).display") == "none"
    window.run("dispatchEvent(new Event('beforeprint'))")
    assert window.run("return document.querySelectorAll('details:not([open])').length") == 0


@needs_browser
def test_a_wall_fits_a_screen_of_1080_lines_in_large_letters(window, pages, tmp_path):
    long = "gemm/a_kernel_of_a_very_long_name_indeed_and_more square-4096-and-then-some bfloat16-nt"
    columns = [wall.Column(w, s, 40, [wall.Item(long, long)] * wall.MOST, "") for w, s in
               (("red", "bad"), ("slower", "slow"), ("unarmed", "open"))]  # fmt: skip
    [card] = runs.read([FOUND])
    full = render._render("wall.html", card=card, run=card.runs[-1], columns=columns, about=[long])
    (tmp_path / "full.html").write_text(full)
    for path in (tmp_path / "full.html", pages / "wall.html"):
        window.show(path, 1920, 1080)
        assert window.run("return document.documentElement.scrollHeight") <= 1080
        sizes = window.run(SIZES)
        assert min(sizes) >= 32
    assert "no run for" in window.run("return document.querySelector('.age').textContent")  # it is of 2023
