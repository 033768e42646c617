"""One mutant before the judge: the rows, rungs and examples that the suite has for its kernel, until one kills it.

The examples of a derandomised profile depend on no outcome, so they are drawn once for a kernel and serve all of its
mutants, in an order that finds much early: the richest examples of each dtype and layout, then the others; in each the
rungs in turn.
"""

import math
import os
import pickle
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, islice, zip_longest
from pathlib import Path
from zlib import crc32

import processes
from delays import delayed
from hypothesis import given, seed
from operators import Mutant

from rooftest import domain, profiles, rungs, strategies
from rooftest.arena import Arena
from rooftest.bench import ARENA_BYTES, Bench
from rooftest.case import Case
from rooftest.kernel import Kernel
from rooftest.process import KernelError, KernelProcess, Signature
from rooftest.rows import read_rows

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels" / "gemm"
PACKAGE = "rooftest_kernels"
# Whose rows judge a module that has none, or of which another kernel uses parts in ways of its own.
JUDGES = {
    "operands": ("step4_dot", "step3_register"),
    "descriptors": ("step6_specialised", "step8_overlapped"),
    "step6_specialised": ("step6_specialised", "step8_overlapped"),
    "step7_persistent": ("step7_persistent", "step8_overlapped"),
}
# The rungs with the fewest calls an example first.
RUNGS = ("bound", "exact", "contract", "law", "determinism")
# Eight of the richest examples of each rung have seen two tiles, a batch, both addends and most strides: those of the
# first pair of dtype and layout, then those of the others, then the rest. Nine in ten die in the first of these stages.
RICHEST = 8
# A call takes milliseconds on a GPU; compiling one under a full load of workers seconds. An interpreter hangs rarely,
# and where a GPU does, watch.py ends the process.
TIME_LIMIT_S = {"cuda": 6.0, "interpreter": 20.0}
DRAWN = "ROOFTEST_MUTATION_DRAWN"  # the environment's name for the folder in which workers share what they have drawn
STILLBORN = 10  # cases without an empty axis, from the first on, in which nothing but an exception was seen


@dataclass(frozen=True)
class Score:
    """What became of a mutant: killed, survived, stillborn or cut (the time was over); by what and after how many."""

    fate: str
    examples: int = 0
    rung: str | None = None
    pair: str | None = None
    said: str = ""


@cache
def rows():
    """The rows of our kernels."""
    return read_rows(ROOT / "pyproject.toml")


@contextmanager
def planted(module: str, text: str, name: str = "mutated"):
    """A folder with a package `name` like ours, with `text` in place of one module."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, name, "gemm")
        home.mkdir(parents=True)
        for path in KERNELS.glob("*.py"):
            source = text if path.stem == module else path.read_text()
            home.joinpath(path.name).write_text(source.replace(f"{PACKAGE}.", f"{name}."))
        yield folder


@cache
def arena(device: str) -> Arena:
    """One for all mutants of this process."""
    place = device if device.startswith("cuda") else "cpu"
    return Arena(place, ARENA_BYTES[place.split(":")[0]])


@contextmanager
def opened(row, device: str):
    """A bench on this process's arena, with a short time limit."""
    bench = processes.Brief(row, device)
    bench._arena = arena(device)
    kind = processes.Handed if device.startswith("cuda") else KernelProcess
    bench._process = kind(row, device, bench._arena, TIME_LIMIT_S[device.split(":", maxsplit=1)[0]])
    try:
        yield bench
    finally:
        bench._process.close()


@cache
def pairs(name: str) -> tuple[tuple[str, str], ...]:
    """All pairs of dtype and layout; the first few show every dtype and every layout."""
    dtypes, layouts = rows()[name].dtypes, rows()[name].layouts
    turn = math.lcm(len(dtypes), len(layouts))  # after which the two would pair up as before
    numbers = range(len(dtypes) * len(layouts))
    return tuple((dtypes[k % len(dtypes)], layouts[(k + k // turn) % len(layouts)]) for k in numbers)


@cache
def signature(name: str) -> Signature:
    """What the kernel's process would say of our own kernel, which may as well be imported here."""
    row = rows()[name]
    found = Kernel(vars(row), row.args, tuple(row.spec.outputs), row.spec.laid_out).describe()
    return Signature(found["parameters"], found["required"], found["configs"], found["returns"])


@cache
def drawn(name: str, device: str, rung: str, dtype: str, layout: str) -> tuple:
    """The examples of one test of the suite at the ci profile; the workers of a run share a folder of them."""
    if DRAWN not in os.environ:
        return _drawn(name, device, rung, dtype, layout)
    path = Path(os.environ[DRAWN], f"{name}-{rung}-{dtype}-{layout}")
    if not path.exists():
        half = path.with_suffix(f".{os.getpid()}")
        half.write_bytes(pickle.dumps(_drawn(name, device, rung, dtype, layout)))
        half.replace(path)
    return pickle.loads(path.read_bytes())  # noqa: S301 - written a moment ago by a worker of this run


def _drawn(name: str, device: str, rung: str, dtype: str, layout: str) -> tuple:
    profiles.register()
    found = []
    bench = Bench(rows()[name], device)
    bench.signature = signature(name)  # and so no process is started
    if rungs.RUNGS[rung].applies(bench.row):
        return ()

    def example(case):
        found.append(case)

    cases = given(strategies.cases(bench, rung, dtype, layout))(example)
    seed(crc32(f"gemm/{name}/{rung}/{dtype}-{layout}".encode()))(
        profiles.chosen("ci", Path(tempfile.gettempdir()), shrink=False)(cases)
    )()
    found.sort(key=richness, reverse=True)
    # In turn what a fast path takes and what not, and an empty case early: a slip in one path shows in no other.
    kinds = [[c for c in found if richness(c)[0] and smooth(c) is kind] for kind in (True, False)]
    whole = [case for both in zip_longest(*kinds) for case in both if case is not None]
    empty = [case for case in found if not richness(case)[0]]
    return (*whole[:4], *empty[:1], *whole[4:], *empty[1:])


def smooth(case: Case) -> bool:
    """Whether bulk copies and wide loads can take a case: 16 bytes at a time along every axis."""
    kinds = {word.rpartition(":")[2] for word in case.stride.split(",")}
    return kinds <= {"dense", "padded"} and all(n % 8 == 0 for axis, n in case.sizes.items() if axis != "B")


def richness(case: Case) -> tuple[bool, int]:
    """How much of a kernel a case uses: no axis is empty; then how much else is there to go wrong."""
    sizes = case.sizes.values()
    parts = [len(case.given), sum(v not in {0, 1} for v in case.params.values()), case.stride != "dense"]
    parts += [min(sizes) > 1, any(n % 16 for n in sizes), len(case.sizes) > 3, case.seed % rungs.FENCED_EVERY == 0]
    return 0 not in sizes, sum(parts)


def examples(name: str, device: str, most: int | None, stage: int | None = None):
    """Rung, pair and case, in the order of judging; of the first `most` pairs (see `score`), of one stage or all."""
    most = max(len(rows()[name].dtypes), len(rows()[name].layouts)) if most == 0 else most
    chosen = pairs(name)[:most]
    stages = ((chosen[:1], 0, RICHEST), (chosen[1:], 0, RICHEST), (chosen, RICHEST, None))
    for those, begin, end in stages if stage is None else stages[stage : stage + 1]:
        for dtype, layout in those:
            tests = [(rung, drawn(name, device, rung, dtype, layout)[begin:end]) for rung in RUNGS]
            for number in range(max(len(cases) for _, cases in tests)):
                yield from ((r, f"{dtype}-{layout}", cases[number]) for r, cases in tests if number < len(cases))


def judges(module: str, device: str) -> tuple[str, ...]:
    """The rows that judge a module on a device, of those whose packages are installed."""
    kind, judging = device.split(":", maxsplit=1)[0], (rows().get(n) for n in JUDGES.get(module, (module,)))
    return tuple(r.name for r in judging if r is not None and kind in r.devices and domain.absent(r) is None)


_planted = count()


def score(
    mutant: Mutant,
    device: str,
    most: int | None = None,
    deadline: float = math.inf,
    first: int = 0,
    stage: int | None = None,
) -> Score:
    """Judge a mutant until it is killed, on the first `most` pairs (0: every dtype and layout once; None: all).

    With `first`, at most so many examples of each row that judges it; with `stage`, those of one stage of three.
    """
    if time.time() > deadline:
        return Score("cut")
    text = delayed(mutant.text) if mutant.group == "racing" else mutant.text
    found = Score("survived")
    package = f"mutated{next(_planted)}"  # a process that served another mutant has imported that one's
    with planted(mutant.module, text, package) as folder:
        for name in judges(mutant.module, device):
            configs = rows()[name].configs and f"{package}.gemm.{name}:CONFIGS"
            call = processes.call(folder, package, name, device)
            row = replace(rows()[name], call=call, configs=configs, root=folder)
            cases = examples(name, device, most, stage)
            with opened(row, device) as bench:
                more = _judged(bench, islice(cases, first or None), deadline, ran=bool(stage))
            found = replace(more, examples=found.examples + more.examples)
            if found.fate != "survived":
                break
    return found


def _judged(bench: Bench, cases, deadline: float, *, ran: bool) -> Score:
    number, first = 0, None
    for rung, pair, case in cases:
        if time.time() > deadline:
            return Score("cut", number)
        number += 1
        whole = 0 not in case.sizes.values()  # else nothing of the kernel may have been run
        try:
            rungs.check(bench, rung, case)
        except rungs.Failure as failure:
            return first or Score("killed", number, rung, pair, str(failure).splitlines()[1].strip())
        except KernelError as error:
            found = Score("killed", number, rung, pair, str(error))
            if error.kind in ("import", "signature"):
                return replace(found, fate="stillborn")
            if error.kind != "exception" or ran:
                return first or found
            first = first or found
            if number - first.examples >= STILLBORN:
                return replace(first, fate="stillborn")
            continue
        if first and whole:
            return first
        ran = ran or whole
    return first or Score("survived", number)
