"""How many examples the suite needs to catch each broken kernel: python tests/broken_score.py [--seeds N] [NAME...].

Rung after rung (first the one that is there for the fault), each in every dtype and layout, as many examples as the
profile gives each of these tests; the first catch ends it. The seeds stand for the ids of different kernels: each
draws other examples. Prints a Markdown table.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import torch
from broken import BASES, CONTROLS, FAULTS, write
from hypothesis import errors, given, seed

from rooftest import profiles, rungs, strategies
from rooftest.bench import Bench
from rooftest.process import KernelError
from rooftest.rows import DEVICES, parse_row
from rooftest.spec import STRIDES

GPU = torch.cuda.is_available()
DEVICE = "cuda:0" if GPU else "interpreter"
PLACE = "gpu" if GPU else "cpu"
HANG_S = 1.0  # a call under the interpreter takes 0.1 s on a busy machine; the first has three times as long


@dataclass(frozen=True)
class Catch:
    """Where the suite found a fault: the rung, how many examples it took in all, and what a person reads."""

    rung: str
    examples: int
    text: str


def opened(name, folder):
    """A bench for the broken kernel `name`, whose file is written to `folder`."""
    fault = {**CONTROLS, **FAULTS}[name]
    base = BASES[fault.base]
    table = {
        "op": base.op, "call": f"{write(name, folder).name}:{base.entry}", "strides": STRIDES, "devices": DEVICES,
        **base.row, **fault.row,
    }  # fmt: skip
    bench = Bench(parse_row(f"broken.{name}", table, "tests/broken", str(folder)), DEVICE)
    if fault.kind == "hang":
        bench.process.time_limit_s = HANG_S
    return bench


def pairs(row):
    """Each dtype in one layout, then in the next: the first four pairs of a GEMM show every dtype and every layout."""
    layouts = row.layouts
    return [
        (dtype, layouts[(i + turn) % len(layouts)])
        for turn in range(len(layouts))
        for i, dtype in enumerate(row.dtypes)
    ]


def examine(bench, rung, dtype, layout, salt, profile):
    """Draw and judge as the suite does for this rung, dtype and layout; counts, and raises what it finds."""
    settings = profiles.chosen(profile, Path(tempfile.gettempdir()), shrink=False)

    @seed(crc32(f"{bench.row.op}/{bench.row.name}/{rung}/{dtype}-{layout}{salt}".encode()))
    @settings
    @given(strategies.cases(bench, rung, dtype, layout))
    def example(case):
        bench.examples += 1
        rungs.check(bench, rung, case)

    example()


def judged(name, folder, most=None, salt="", profile="smoke"):
    """What the ladder says of one kernel, rung after rung, in `most` pairs of dtype and layout; None if nothing."""
    bench = opened(name, folder)
    bench.examples, rung = 0, ""
    profiles.register()
    try:
        for rung in sorted(rungs.RUNGS, key=lambda r: r != {**CONTROLS, **FAULTS}[name].rung):
            if rungs.RUNGS[rung].applies(bench.row):
                continue
            for dtype, layout in pairs(bench.row)[:most]:
                examine(bench, rung, dtype, layout, salt, profile)
    except (rungs.Failure, KernelError, errors.Flaky) as error:  # a race may be right when it is run again
        return Catch(rung, bench.examples, str(error))
    finally:
        bench.close()
    return None


def main(arguments):
    """Print the table; exit code 1 if a fault that examples can catch was not caught by every seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--profile", default="smoke")
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args(arguments)
    missed = []
    print(f"| fault | kind | public lines | rung | examples ({DEVICE}) | s |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.names or FAULTS:
            fault, start = FAULTS[name], time.perf_counter()
            lines = ", ".join(map(str, fault.lines)) or "own"
            head = f"| {name} | {fault.kind} | {lines} |"
            if PLACE not in fault.places or fault.waits:
                print(head, f"waits for {fault.waits or fault.why} | | |", flush=True)
                continue
            salts = [f"#{i}" if i else "" for i in range(given.seeds)]
            found = [judged(name, Path(folder), salt=salt, profile=given.profile) for salt in salts]
            caught = [c for c in found if c]
            missed += [name] * (len(caught) < len(found) and not fault.missed)
            rung = statistics.mode(c.rung for c in caught) if caught else "MISSED"
            # A seed that missed it needed more than all examples: it counts as the largest.
            counts = sorted(c.examples if c else 10**6 for c in found)
            middle = counts[len(counts) // 2]
            took = (time.perf_counter() - start) / len(found)
            print(head, f"{rung} | {middle if middle < 10**6 else '-'} of {counts} | {took:.1f} |", flush=True)
    print(f"missed: {', '.join(missed) or 'none'}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
