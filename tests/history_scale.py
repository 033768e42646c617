"""How long questions to a history of 10,000 runs of 300 series take: `python tests/history_scale.py`.

Each is asked by a fresh process, as a person would: imports, opening the store and printing included. The history is
made up (seeded; 34 MB, in a temporary folder): 8 GPUs that each ran nightly for three and a half years, a change of the
driver, one kernel that became slower. The suite of tests asks the same of a smaller one, without a clock.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import history_made

QUESTIONS = {
    "rooftest history": ["history", "{}"],
    "rooftest history --series (one)": ["history", "{}", "--series", "gemm/kernel_00/square-8192/*"],
    "rooftest compare (two GPUs)": ["compare", "00000000", "00000001", "--store", "{}"],
}

RUN = "import sys; from rooftest.cli import main; sys.exit(main(sys.argv[1:]))"


def timed(command):
    """Seconds of a fresh process, on the clock and of processors."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", RUN, *command], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return time.perf_counter() - start, used, done.stdout.count("\n")


def main():
    """Make a history and print a line for each question: the best of five, and the worst."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--series", type=int, default=300)
    parser.add_argument("--gpus", type=int, default=8)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        history_made.fill(folder, asked.runs, asked.series, asked.gpus, steps=((7, 900, 3),))
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet"))
        made = time.perf_counter() - start
        print(
            f"{asked.runs} runs x {asked.series} series, {asked.gpus} GPUs: {size / 1e6:.0f} MB, made in {made:.0f} s"
        )
        for name, words in QUESTIONS.items():
            runs = [timed([word.format(folder) for word in words]) for _ in range(5)]
            best, worst = min(runs), max(runs)
            told = f"{best[1]:.2f} s of processors, {best[2]} lines, load {os.getloadavg()[0]:.1f}"
            print(f"{name:34} {best[0]:.2f} to {worst[0]:.2f} s ({told})")


if __name__ == "__main__":
    main()
