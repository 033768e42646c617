"""Examples of a kernel under NVIDIA's compute-sanitizer: `--roof-sanitize`, one test a dtype and layout.

The sanitizer must start the process that it watches, and torch's allocator, which cuts tensors from larger blocks,
would hide from it what lies outside a tensor. So rooftest.alone runs the examples, with an allocation a tensor.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from rooftest.alone import CASE, DONE
from rooftest.conformance import Check, Tally
from rooftest.finding import Finding
from rooftest.session import kinds

if TYPE_CHECKING:
    from rooftest.bench import Bench
    from rooftest.case import Case
    from rooftest.rows import Row
    from rooftest.session import Session

SANITIZE = "sanitize"  # stands where a rung does in the tests' ids
EXAMPLES = 5  # most of the time goes into starting the process; more examples are --roof-examples
LIMIT_S = 600.0  # a tool slows a kernel down by up to a few hundred times
_USUAL = Path("/usr/local/cuda/bin")
# What each tool is told beside its name.
TOOLS = {
    # Without padding, what lies just behind a tensor is often the next one; it is as much as rooftest.problem's guards.
    # Failed calls of the driver are no news: libraries ask for what a device may not have.
    "memcheck": ("--padding", "16384", "--report-api-errors", "no"),
    "racecheck": ("--racecheck-detect-level", "error"),
    "synccheck": (),
    "initcheck": (),
}
# A compiler that the kernel starts is not its own; many tests may run at once, each needs a port.
_ALWAYS = ("--target-processes", "application-only", "--max-connections", "100")


@dataclass(frozen=True)
class Reading:
    """What a tool printed: how many errors, the first of them, and the number of the case that it belongs to.

    `trouble`: why the rest says nothing; None if every case ran, or an error was found.
    """

    errors: int = 0
    first: str = ""
    case: int = 0
    trouble: str | None = None


_PREFIX = re.compile(r"^=========( *)(.*)$")
_TOTAL = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: .*\((\d+) error)")
# Lines of the tools that are no finding about a kernel.
_NO_REPORT = ("COMPUTE-SANITIZER", "Target application", "Program hit", "Warning", "Internal", "Error:", "LEAK")
_RACE = "Error: Race"
# Addresses differ from run to run.
_ADDRESS = re.compile(r" (?:at|to) 0x[0-9a-f]{6,}")


def read(text: str) -> Reading:
    """What the output of a tool and of the process that it watched says.

    A report begins with a line that is indented by one space; what belongs to it is indented further, or begins with
    "and" in older versions.
    """
    errors, first, case, found_in = 0, [""], 0, 0
    done, summary, last, complaint = False, False, "", ""
    open_ = False  # whether the lines belong to the first report
    for line in text.splitlines():
        if line.startswith(CASE):
            case = int(line.removeprefix(CASE))
        done |= line == DONE
        match = _PREFIX.match(line)
        if match is None:
            last = line.strip() or last
            continue
        indent, words = len(match[1]), match[2].strip()
        total = _TOTAL.search(words)
        if total:
            errors, summary = max(errors, int(total[1] or total[2])), True
        elif words.startswith(_NO_REPORT) and not words.startswith(_RACE):
            complaint = complaint or (words if words.startswith(("Internal", "Error:")) else "")
        elif words and indent == 1 and "SUMMARY" not in words and not words.startswith("and "):
            open_ = not first[0]
            first, found_in = ([words], case) if open_ else (first, found_in)
        elif open_ and words.startswith(("at ", "by ", "and ")):
            first.append(_ADDRESS.sub("", words))
    if errors and first[0]:
        return Reading(errors, " ".join(first), found_in)
    if not summary:
        return Reading(trouble=f"no summary of errors: {complaint or last or 'nothing was printed'}")
    if errors or not done:
        return Reading(trouble=f"the examples did not all run: {complaint or last or 'nothing was printed'}")
    return Reading()


def tool() -> str | None:
    """Path of compute-sanitizer; None if there is none."""
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=str(_USUAL))


def watch(program: str, name: str, message: dict[str, Any], limit_s: float = LIMIT_S) -> Reading:
    """Run the examples of `message` (see rooftest.alone) under one tool."""
    with tempfile.TemporaryDirectory(prefix="rooftest-") as folder:
        file = Path(folder, "cases.json")
        file.write_text(json.dumps(message), encoding="utf-8")
        command = [program, "--tool", name, *_ALWAYS, *TOOLS[name], sys.executable, "-P", "-m", "rooftest.alone"]
        process = subprocess.Popen(
            [*command, str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_") and k != "TRITON_INTERPRET"}
            | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return Reading(trouble=f"not done after {limit_s:g} s")
        finally:
            if process.poll() is None:  # the sanitizer and all that it started
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return read(printed)


def unavailable(device: str) -> str | None:
    """Why nothing can be run under the sanitizer here; None if it can."""
    if not device.startswith("cuda"):
        return f"compute-sanitizer watches kernels on a GPU, this is {device}"
    if tool() is None:
        return f"compute-sanitizer is neither on PATH nor in {_USUAL}: it comes with the CUDA toolkit"
    return None


class Sanitized(Check):
    """Examples of one kernel in one dtype and layout under each tool that was asked for."""

    @classmethod
    def of_row(cls, session: Session, row: Row) -> Iterator[Sanitized]:
        """One test for every dtype and layout that the row takes."""
        for dtype, layout in kinds(row):
            yield cls(session, row, SANITIZE, dtype, layout)

    def cases(self) -> list[Case]:
        """The cases of --roof-case that this trial runs."""
        here = (self.row.name, self.dtype, self.layout)
        return [c for c in self.session.cases if (c.kernel, c.dtype, c.layout) == here]

    def __call__(self) -> None:
        """Run the examples under each tool.

        Raises Finding with the first error that a tool reports.
        """
        from rooftest import domain

        device = self.record["device"] = self.session.device(self.row)
        reason = unavailable(device) or domain.undecidable(self.row, device)
        if reason:
            self.leave_out(reason)
        bench, tally = self.bench(), Tally()
        self.record["domain"] = domain.share(self.row, bench.signature)
        cases = self.cases() or self._drawn(bench)
        if not cases:
            self.undecided("no example without an axis of size 0 could be drawn in the row's domain")
        try:
            self._examine_under(bench, cases, tally)
        finally:
            self.record |= tally.as_dict()
        if tally.found:
            raise Finding(tally.found)

    def _examine_under(self, bench: Bench, cases: Sequence[Case], tally: Tally) -> None:
        """Run the cases under each tool; what is wrong stands in `tally.found`."""
        from rooftest.rungs import Outcome

        message, program = self._message(bench, cases), tool()
        assert program is not None
        walls = self.record["sanitizer_s"] = dict[str, float]()
        for name in self.session.options.sanitize:
            begun = time.monotonic()
            reading = watch(program, name, message)
            walls[name] = time.monotonic() - begun
            if reading.errors:
                case, many = cases[reading.case], "s" if reading.errors != 1 else ""
                tally.end(case, name, None)
                tally.found = (
                    f"{case.op}: {case.kernel} failed, compute-sanitizer {name}: {reading.first} "
                    f"({reading.errors} error{many})\n  case: {case}\n"
                    f"  reproduce: {self.session.command(case)} --roof-sanitize={name} -k {SANITIZE}"
                )
                return
            if reading.trouble:
                self.undecided(f"compute-sanitizer {name}: {reading.trouble}")
        for case in cases:
            tally.add(Outcome(SANITIZE, case, 0.0, "nothing reported"))

    def _drawn(self, bench: Bench) -> list[Case]:
        """Cases as the rung contract draws them, but for those in which nothing is computed."""
        from hypothesis import given, seed

        from rooftest import profiles, strategies

        count, found = self.session.options.examples or EXAMPLES, list["Case"]()
        settings = profiles.chosen("smoke", Path(), shrink=False, examples=2 * count)

        @seed(crc32(self.id.encode()))
        @settings
        @given(strategies.cases(bench, "contract", self.dtype, self.layout))
        def collect(case: Case) -> None:
            found.append(case)

        collect()
        return [case for case in found if all(case.sizes.values())][:count]

    def _message(self, bench: Bench, cases: Sequence[Case]) -> dict[str, Any]:
        """What rooftest.alone needs to run the cases."""
        row, spec = self.row, self.row.spec
        scalars = [{k: v for k, v in bench.scalars(c, 0).items() if k != "__poison__"} for c in cases]
        return {
            "op": row.op,
            "row": {k: getattr(row, k) for k in ("call", "prepare", "configs", "root", "dtypes")},
            "args": dict(row.args),
            "outputs": tuple(spec.outputs),
            "laid_out": spec.laid_out,
            "device": bench.torch_device,
            "path": [*([row.root] if row.root else []), *(p for p in sys.path if isinstance(p, str))],
            "cases": [{"case": str(c), "scalars": s} for c, s in zip(cases, scalars, strict=True)],
        }
