"""The command line: every option is `--roof-*`. Nothing here imports torch or Hypothesis."""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftest.errors import UsageError
from rooftest.plan import REGIMES

if TYPE_CHECKING:
    import pytest

PROFILES = ("smoke", "ci", "nightly", "hunt")
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")
CONFIGS = ("few", "all")
REPORTS = (".json", ".md", ".csv")


@dataclass(frozen=True)
class Options:
    """What the command line asked for; paths are absolute."""

    rows: tuple[Path, ...] = ()
    kernels: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    profile: str = "smoke"
    examples: int | None = None
    each_config: bool = False
    """Every configuration of a kernel is judged by itself; else a test draws from a few of them."""
    device: str | None = None
    workloads: str | None = None
    results: Path | None = None
    reports: tuple[Path, ...] = ()
    github: bool = False
    energy: bool = False
    regime: str = "burst"
    sanitize: tuple[str, ...] = ()
    against: str | None = None
    """The revision or folder that timed rows are compared with, instead of with the roofline."""
    build: str | None = None
    budget: float = 0.02
    pairs: int = 3

    @property
    def narrowed(self) -> bool:
        """Whether only some rows or cases were asked for by name."""
        return bool(self.kernels or self.cases)


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share between 0 and 1: write 2% or 0.02")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)


def add(parser: pytest.Parser) -> None:
    """Declare the options.

    A file is written behind an equals sign: as a word of its own, one that exists is a path to tests for pytest, which
    moves its root folder there.
    """
    group = parser.getgroup("rooftest", "rooftest: is a GPU kernel right, and is it fast")
    option = group.addoption
    option(
        "--roof-rows",
        action="append",
        default=[],
        metavar="FILE",
        help="a TOML file with [tool.rooftest.kernels] rows, beside pyproject.toml's; write it with =; repeatable",
    )
    option(
        "--roof-kernel",
        action="append",
        default=[],
        metavar="OP=MODULE:FUNCTION",
        help="judge this function beside the op's peer only: --roof-kernel=gemm=mylib.ops:matmul or gemm=ops.py:matmul",
    )
    option(
        "--roof-case",
        action="append",
        default=[],
        metavar="CASE",
        help="run exactly this case, as a failure printed it, on every rung that it fits, and nothing else",
    )
    option(
        "--roof-profile",
        default="smoke",
        metavar="NAME",
        help=f"how many examples a test draws: {', '.join(PROFILES)} (default smoke)",
    )
    option(
        "--roof-examples",
        type=_count,
        default=None,
        metavar="N",
        help="examples a test draws, instead of the profile's number",
    )
    option(
        "--roof-configs",
        default=None,
        choices=CONFIGS,
        help="all: judge each configuration of a kernel by itself; few: draw from two of them in each test "
        "(default: all under the profiles nightly and hunt)",
    )
    option(
        "--roof-device",
        default=None,
        metavar="DEVICE",
        help="cuda, cuda:N, cpu or interpreter; default: the GPU if there is one, else what each row can do without",
    )
    option(
        "--roof-workloads",
        default=None,
        metavar="GLOB",
        help="workloads to time, such as 'square-*', 'square-4096/float16-nn' or '*'; default: the op's smoke ones",
    )
    option(
        "--roof-results",
        default=None,
        metavar="FILE",
        help="write results there, with =; default: results/runs/<time>-<gpu>.json when a GPU timed something",
    )
    option(
        "--roof-report",
        action="append",
        default=[],
        metavar="FILE",
        help="write what each kernel was found to hold there, with =: FILE.json, or FILE.md for a page that GitHub "
        "shows; FILE.csv: times and comparisons, a row each; repeatable",
    )
    option(
        "--roof-github",
        action="store_true",
        help="in a step of GitHub Actions: print annotations of what fails, and append to the step's summary",
    )
    option("--roof-energy", action="store_true", help="measure joules a call too (about half a minute a workload)")
    option(
        "--roof-regime",
        default=None,
        choices=REGIMES,
        help="burst: calls in bursts of at most 5 ms with gaps, the power limit does not act (default); sustained: no "
        "gaps, on a hot card: a series of its own, held to no declared efficiency",
    )
    option(
        "--roof-sanitize",
        nargs="?",
        const="memcheck",
        default=None,
        metavar="TOOL,...",
        help="run examples under compute-sanitizer too, a test for each dtype and layout (-k sanitize: only those): "
        f"{', '.join(SANITIZERS)} or all; write it with = (default memcheck)",
    )

    option(
        "--roof-against",
        default=None,
        metavar="REV|DIR",
        help="compare what would be timed with another revision of the kernel's own repository, or with a folder that "
        "holds it; harness, specifications and suites stay these. HEAD on a clean tree measures the spread",
    )
    option(
        "--roof-build",
        default=None,
        metavar="CMD",
        help="with --roof-against: run this in each of the two trees first, such as 'python setup.py build_ext -i'",
    )
    option(
        "--roof-budget",
        type=_share,
        default=None,
        metavar="SHARE",
        help="with --roof-against: the slow-down that is to be seen in 9 of 10 runs (default 2%%)",
    )
    option(
        "--roof-pairs",
        type=_count,
        default=None,
        metavar="N",
        help="with --roof-against=HEAD on a clean tree: pairs to add to the known spread of each workload (default 3)",
    )


def read(config: pytest.Config) -> Options:
    """The options of this run.

    Raises UsageError for a profile or device that does not exist, a file that is a folder, a report of no known kind.
    """
    get = config.getoption
    here = Path(config.invocation_params.dir)
    profile = str(get("--roof-profile")).removeprefix("roof-")
    if profile not in PROFILES:
        raise UsageError(f"--roof-profile {profile!r} is none of {', '.join(PROFILES)}")
    device = get("--roof-device")
    if device is not None:
        kind, colon, index = device.partition(":")
        if kind not in ("cuda", "cpu", "interpreter") or (colon and not (kind == "cuda" and index.isdigit())):
            raise UsageError(f"--roof-device {device!r} is none of cuda, cuda:N, cpu, interpreter")
        device = "cuda:0" if device == "cuda" else device
    results = _file(here, "--roof-results", get("--roof-results")) if get("--roof-results") else None
    reports = tuple(_file(here, "--roof-report", text) for text in get("--roof-report"))
    for path in reports:
        if path.suffix not in REPORTS:
            raise UsageError(f"--roof-report={path.name}: a report is {', '.join(REPORTS)}, by the end of its name")
    written = [path for path in (results, *reports) if path is not None]
    for path in written:
        if written.count(path) > 1:
            raise UsageError(f"{path.name} is named twice by --roof-results and --roof-report: one would be lost")
    return Options(
        rows=tuple(here / path for path in get("--roof-rows")),
        kernels=tuple(get("--roof-kernel")),
        cases=tuple(get("--roof-case")),
        profile=profile,
        examples=get("--roof-examples"),
        each_config=(get("--roof-configs") or ("all" if profile in ("nightly", "hunt") else "few")) == "all",
        device=device,
        workloads=get("--roof-workloads"),
        results=results,
        reports=reports,
        github=bool(get("--roof-github")),
        energy=bool(get("--roof-energy")),
        regime=get("--roof-regime") or REGIMES[0],
        sanitize=_tools(get("--roof-sanitize")),
        **_gate(get),
    )


def _gate(get: Callable[[str], Any]) -> dict[str, Any]:
    words = {"build": "--roof-build", "budget": "--roof-budget", "pairs": "--roof-pairs"}
    given = {name: get(option) for name, option in words.items() if get(option) is not None}
    against = get("--roof-against")
    if given and against is None:
        raise UsageError(f"{words[next(iter(given))]} says how to compare: it needs --roof-against=REV or a folder")
    if against == "":
        raise UsageError("--roof-against is empty: name a revision or a folder")
    return {"against": against, **given}


def _file(here: Path, option: str, text: str) -> Path:
    path = here / text
    if path.is_dir():
        raise UsageError(f"{option}={text} is a folder; name a file in it, such as {path / 'run.json'}")
    there = path if path.exists() else next(parent for parent in path.parents if parent.exists())
    try:  # as it will be written, and not by what the permissions say: root has them all
        if there == path:
            path.open("a").close()
        else:
            tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise UsageError(f"{option}={text} can't be written: {there}: {error.strerror}") from None
    return path


def _tools(text: str | None) -> tuple[str, ...]:
    names = SANITIZERS if text == "all" else () if text is None else tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in SANITIZERS:
            raise UsageError(
                f"--roof-sanitize: {name!r} is none of {', '.join(SANITIZERS)}, all; write --roof-sanitize=memcheck, "
                "a path that follows it without = is taken for a tool"
            )
    return names


def given(config: pytest.Config) -> bool:
    """Whether any option of ours was used."""
    untouched: tuple[object, ...] = (None, False, [], "smoke")
    return any(value not in untouched for name, value in vars(config.option).items() if name.startswith("roof_"))
