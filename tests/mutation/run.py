"""The suite's own score: mutants of our kernels, and how many of them the judge kills at the ci profile.

`python tests/mutation/run.py` judges a sample that a CI affords, `--all` every mutant on every dtype and layout;
`--sites` only counts. `--known FILE` takes over what an earlier run, perhaps on another device, has settled about the
same source, so that a run that was cut off goes on where it ended; `--settle` lets the compiler alone decide about the
survivors of that file, which needs no GPU. Ends with 1 where a mutant survives that is not shown to be equivalent, or
where one that is said to be equivalent was killed.
"""

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from zlib import crc32

import torch
import triton
from equivalence import LIMIT_S, SM90, argued, compared
from operators import OPERATORS, Mutant, mutants
from score import DRAWN, JUDGES, KERNELS, PACKAGE, Score, examples, judges, planted, rows, score

from rooftest.domain import undecidable

FATES = ("killed", "survived", "equivalent", "stillborn", "cut")
UNJUDGED = {"huge": "needs tensors past 2^31 elements, which only -m large has", "racing": "needs a GPU"}
SAMPLE = 240  # mutants that a CI affords: about a second each, on each of two cores
SAID = {"identical": "equivalent", "does not compile": "stillborn"}  # what the compiler says, and what that makes of it
SETTLED = ("killed", "stillborn", "equivalent")
COMPILER = "compiler"
# The stages of score.py. Where the interpreter judges, the compiler is quicker than the many examples of the last one
# to find that a program is the same; beside a GPU it would keep that waiting, and can be asked afterwards (--settle).
STEPS = {"interpreter": (0, 1, COMPILER, 2), "cuda": (0, 1, 2)}


def judged_modules(device: str) -> list[str]:
    """Modules of the ladder that have a row here, and those that such a row uses."""
    kind = device.split(":", maxsplit=1)[0]
    if kind == "cuda" and not torch.cuda.is_available():  # --settle compiles for one that is not here
        here = {n: r for n, r in rows().items() if not r.arch or SM90 in r.arch}
    else:
        here = {n: r for n, r in rows().items() if undecidable(r, device) is None}  # not one for another generation
    own = {n for n, r in here.items() if r.call.startswith(f"{PACKAGE}.gemm.{n}:")}
    # Most of what the helpers decide is how wide a load may be, and under the interpreter all loads are right.
    return sorted(own | (set(JUDGES) if kind == "cuda" else set()))


@cache
def source(module: str) -> str:
    """A name for what a module's mutants are made from."""
    return sha256((KERNELS / f"{module}.py").read_bytes()).hexdigest()[:12]


def record(mutant: Mutant, device: str, found: Score, seconds: float = 0.0) -> dict:
    """What is known of a mutant."""
    place = {k: getattr(mutant, k) for k in ("module", "function", "operator", "group", "line", "key")}
    place |= {"source": source(mutant.module), "device": device}
    return place | vars(found) | {"mistaken": False, "seconds": round(seconds, 2)}


def judge(mutant: Mutant, device: str, most: int | None, stage: int, deadline: float) -> dict:
    """One stage of the judging of a mutant; the record of it."""
    begun = time.time()
    try:
        found = score(mutant, device, most, deadline, stage=stage)
    except Exception as error:  # noqa: BLE001 - a harness that fails on a mutant must not lose the others
        found = Score("cut", said=f"the harness failed: {error!r}")
    return record(mutant, device, found, time.time() - begun)


def ask(mutant: Mutant, device: str, deadline: float) -> dict:
    """What the compiler says of a mutant, if the slip is on the device."""
    begun = time.time()
    if mutant.group == "host":
        return record(mutant, device, Score("survived"))
    said = _program(mutant, device, deadline)
    found = Score(SAID.get(said, "survived"), said=f"machine code: {said}")
    return record(mutant, device, found, time.time() - begun)


def joined(old: dict, new: dict) -> dict:
    """The record of a mutant after one more step."""
    sums = {k: old[k] + new[k] for k in ("examples", "seconds")}
    return new | sums | {"said": new["said"] or old["said"], "seconds": round(sums["seconds"], 2)}


def _program(mutant: Mutant, device: str, deadline: float) -> str:
    """What the compiler says of a mutant, over all cases of the rows that judge it, in every dtype and layout."""
    with planted(mutant.module, mutant.text) as folder:
        for name in judges(mutant.module, device):
            cases = dict.fromkeys(str(case) for _, _, case in examples(name, device, None))
            said = compared(folder, name, cases, max(min(LIMIT_S, deadline - time.time()), 1.0))
            if said != "identical":
                return said
    return "identical"


def chosen(modules: list[str], only: str) -> list[Mutant]:
    """The mutants in the order of judging, which is the same everywhere: each module's operators in turn."""
    found = [m for n in modules for m in mutants(n, (KERNELS / f"{n}.py").read_text()) if only in m.key]
    turns: Counter = Counter()
    places = {}
    for m in sorted(found, key=lambda m: crc32(m.key.encode())):
        turns[m.module, m.operator] += 1
        places[m.key] = turns[m.module, m.operator], crc32(m.key.encode())
    return sorted(found, key=lambda m: places[m.key])


def known(paths: Iterable[Path], todo: list[Mutant], device: str) -> dict[str, dict]:
    """The records of earlier runs that hold for these mutants, by key: of the same source, and settled.

    What does not compile under the interpreter may on a GPU; what is equivalent by argument is looked up anew.
    """
    asked, found = {m.key: m for m in todo}, {}
    for path in paths:
        for r in json.loads(path.read_text())["mutants"]:
            mutant = asked.get(r["key"])
            if mutant is None or r.get("source") != source(mutant.module) or r["mistaken"]:
                continue
            fates = SETTLED if r["device"] == device else ("killed",)
            if r["fate"] in fates and (r["fate"] != "equivalent" or r["said"].startswith("machine code")):
                found[r["key"]] = r
    return found


def controls(modules: list[str]) -> list[Mutant]:
    """Each module unchanged, with delays where it has barriers: nothing may be found."""
    texts = {n: (KERNELS / f"{n}.py").read_text() for n in modules}
    groups = {n: "racing" if "mbarrier" in text else "device" for n, text in texts.items()}
    return [Mutant(n, "none", "", 0, "", "", groups[n], text) for n, text in texts.items()]


def sites(found: list[Mutant]) -> str:
    """How many mutants of each operator there are in each module."""
    names = sorted({m.module for m in found})
    count = Counter((m.operator, m.module) for m in found)
    rows_ = [["mutants of", *names, "all"]]
    for operator in [o.name for o in OPERATORS]:
        numbers = [count[operator, n] for n in names]
        rows_.append([operator, *map(str, numbers), str(sum(numbers))])
    rows_.append(["all", *(str(sum(m.module == n for m in found)) for n in names), str(len(found))])
    return table(rows_)


def table(lines: list[list[str]]) -> str:
    """Columns as wide as their widest word, the first to the left."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join([c[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(c[1:], widths[1:], strict=True))])
                     for c in lines)  # fmt: skip


def shown(records: list[dict]) -> str:
    """A line a module and group, then what each rung killed first there."""
    lines = [["", "killed", "of", *FATES[1:], "median examples"]]
    for title in sorted({(r["module"], r["group"]) for r in records}):
        mine = [r for r in records if (r["module"], r["group"]) == title]
        count = Counter(r["fate"] for r in mine)
        killed = [r for r in mine if r["fate"] == "killed"]
        scored = count["killed"] + count["survived"]
        lines.append(
            [" ".join(title), str(len(killed)), str(scored), *(str(count[f]) for f in FATES[1:]), _median(killed)]
        )
        for rung in sorted({r["rung"] for r in killed}):
            first = [r for r in killed if r["rung"] == rung]
            lines.append([f"  {rung}", str(len(first)), "", "", "", "", "", _median(first)])
    return table(lines)


def _median(killed: list[dict]) -> str:
    return f"{statistics.median(r['examples'] for r in killed):g}" if killed else "-"


def written(path: Path | None, records: list[dict], about: dict) -> None:
    """Write what is known so far; a run that is cut off leaves the last whole file."""
    if path is None:
        return
    totals = dict(Counter(f"{r['group']} {r['fate']}" for r in records))
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".part")
    half.write_text(
        json.dumps({**about, "totals": totals, "mutants": sorted(records, key=lambda r: r["key"])}, indent=1)
    )
    half.replace(path)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser("python tests/mutation/run.py", description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="files of kernels/gemm without .py; all that can be judged here")
    parser.add_argument("--all", action="store_true", help="every mutant, every dtype and layout")
    parser.add_argument("--control", action="store_true", help="the kernels as they are, which must all survive")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "interpreter")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose key holds this text")
    parser.add_argument("--known", type=Path, nargs="+", default=[], metavar="FILE", help="results to take over")
    parser.add_argument("--pairs", type=int, help="pairs of dtype and layout; each once, or all with --all")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write every mutant's fate there as JSON")
    parser.add_argument("--sample", type=int, help=f"how many mutants; {SAMPLE}, or all with --all")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop judging after so long")
    parser.add_argument("--settle", action="store_true", help="ask the compiler about the survivors of --known")
    parser.add_argument("--sites", action="store_true", help="count the mutants of each operator and stop")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    started, deadline = time.time(), time.time() + asked.seconds
    modules = asked.modules or judged_modules(asked.device)
    everything = chosen(modules, asked.only)
    if asked.control:
        everything = controls(modules)
    print(sites(everything))
    racing = asked.device.startswith("cuda")
    able = [m for m in everything if m.group not in UNJUDGED or (m.group == "racing" and racing)]
    for group, reason in UNJUDGED.items():
        left = sum(m.group == group for m in everything) - sum(m.group == group for m in able)
        print(f"{left} {group}, not judged: {reason}" if left else "", end="\n" if left else "")
    if asked.sites:
        return 0
    todo = able[: asked.sample or (None if asked.all or asked.only or asked.settle else SAMPLE)]
    old = known(asked.known, todo, asked.device)
    print(f"judging {len(todo) - len(old)} of {len(able)} on {asked.device}, {asked.workers} at a time")
    about = {
        "schema": "mutation.v1",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": asked.device,
    }
    about |= {"gpu": torch.cuda.get_device_name() if racing and not asked.settle else None}
    about |= {"torch": torch.__version__, "triton": triton.__version__}
    if asked.settle:  # who judged says what on
        about |= {k: json.loads(asked.known[0].read_text())[k] for k in ("created", "gpu", "torch", "triton")}
    about |= {"profile": "ci", "sites": len(everything), "able": len(able), "chosen": len(todo)}
    records = judged(todo, old, asked, deadline, about)
    print(shown(records))
    bad = [r for r in records if r["fate"] == "survived" or r["mistaken"] or r["said"].startswith("the harness")]
    for r in sorted(bad, key=lambda r: (r["module"], r["line"])):
        what = "said to be equivalent, but " if r["mistaken"] else ""
        place = f"kernels/gemm/{r['module']}.py:{r['line']}"
        print(f"{place}: {what}{r['fate']} ({r['group']}) {r['key']} [{r['said'][:120]}]")
    count = Counter(r["fate"] for r in records)
    if asked.control:
        bad = [r for r in records if r["fate"] in ("killed", "stillborn") or r["said"].startswith("the harness")]
        print("\n".join(f"{r['key']} was {r['fate']}: {r['said']}" for r in bad) or "nothing is found in any")
    print(", ".join(f"{count[f]} {f}" for f in FATES), f"in {time.time() - started:.0f} s")
    return 1 if bad else 0


def judged(todo: list[Mutant], old: dict[str, dict], asked: argparse.Namespace, deadline: float, about: dict) -> list:
    """The records of all mutants; the file grows with them."""
    records = {m.key: old.get(m.key) or record(m, asked.device, Score("cut")) for m in todo}
    saved = time.time()
    # Read by every interpreter that is started from here: a mutant's file changes within the second that a .pyc knows,
    # and what is compiled for mutants shall not fill the cache of the user.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as cache_, tempfile.TemporaryDirectory() as drawn:
        os.environ |= {"TRITON_CACHE_DIR": cache_, DRAWN: drawn}
        with ProcessPoolExecutor(asked.workers, mp_context=context) as pool:
            plan = _settled if asked.settle else _staged
            for made in plan(pool, [m for m in todo if m.key not in old], asked, deadline):
                records[made["key"]] = made
                if time.time() - saved > 2:
                    written(asked.results, list(records.values()), about)
                    saved = time.time()
    written(asked.results, list(records.values()), about)
    return list(records.values())


def _staged(pool: ProcessPoolExecutor, todo: list[Mutant], asked: argparse.Namespace, deadline: float):
    """Step after step: what survives one queues up for the next. What is equivalent by argument comes last."""
    most = asked.pairs or (None if asked.all else 0)
    steps = STEPS[asked.device.split(":", maxsplit=1)[0]]
    reasons = {m.key: argued(m, asked.device) for m in todo}
    for m in todo:
        if reasons[m.key]:
            yield record(m, asked.device, Score("equivalent", said=reasons[m.key]))

    def send(mutant: Mutant, number: int) -> Future:
        if steps[number] == COMPILER:
            return pool.submit(ask, mutant, asked.device, deadline)
        return pool.submit(judge, mutant, asked.device, most, steps[number], deadline)

    running = {send(m, 0): (m, 0, None) for m in todo if not reasons[m.key]}
    while running:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            mutant, number, before = running.pop(future)
            found = joined(before, future.result()) if before else future.result()
            yield found
            if found["fate"] == "survived" and number + 1 < len(steps):
                running[send(mutant, number + 1)] = (mutant, number + 1, found)
    last = [m for m in todo if asked.all and reasons[m.key]]
    for future in [pool.submit(judge, m, asked.device, 0, 0, deadline) for m in last]:
        found = future.result()
        if found["fate"] in {"killed", "stillborn"}:
            yield found | {"mistaken": True}
        else:
            yield found | {"fate": "equivalent", "said": reasons[found["key"]]}


def _settled(pool: ProcessPoolExecutor, todo: list[Mutant], asked: argparse.Namespace, deadline: float):
    """What the compiler says of those that survived what they were judged by, in full or in part."""
    held = {r["key"]: r for path in asked.known for r in json.loads(path.read_text())["mutants"]}
    rest = {}
    for m in todo:
        because, before = argued(m, asked.device), held.get(m.key)
        if because:
            yield record(m, asked.device, Score("equivalent", said=because))
        elif before and before["source"] == source(m.module):
            yield before
            if m.group != "host" and before["examples"]:
                rest[pool.submit(ask, m, asked.device, deadline)] = before
    while rest:
        for future in wait(rest, return_when=FIRST_COMPLETED).done:
            before, found = rest.pop(future), future.result()
            yield joined(before, found) | ({} if found["fate"] in SETTLED else {"fate": before["fate"]})


if __name__ == "__main__":
    sys.exit(main())
