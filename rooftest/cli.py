"""The `rooftest` command reads files; pytest runs kernels."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from rooftest import digest, page, store, tables
from rooftest.errors import UsageError
from rooftest.outputs import columns, order
from rooftest.outputs import comment as comments
from rooftest.outputs import github as actions
from rooftest.store import put

USAGE = 4  # as pytest's
LONGEST = 36_500  # days: a hundred years, which dates can go back from now


def show(paths: Sequence[Path]) -> None:
    """Print the tables of results files.

    Raises UsageError for a file that can't be read or is none.
    """
    for path in paths:
        data = store.read(path)
        cut = ", interrupted: not every test ran" if data.get("complete") is False else ""
        print(f"{path}: {data['created']}, {_device(data['machine_info'])}{cut}")  # noqa: T201 - a command's output
        width = shutil.get_terminal_size((100, 24)).columns
        with _whole(str(path)):
            shown = tables.render(tables.made(order.records(data)), width, colour=sys.stdout.isatty())
        print(shown)  # noqa: T201


def report(paths: Sequence[Path], *, output: Path | None, store: str | None, wall: bool) -> None:
    """Print what reports or results files hold as Markdown, or write it all to one HTML file (-o).

    Raises UsageError for a file that can't be read or is neither, an output of another kind or one that can't be
    written, and as rooftest.web.render.
    """
    html = output is not None and output.suffix == ".html"
    if output is not None and not html and output.suffix != ".md":
        raise UsageError(f"-o {output}: a report is written to FILE.html or FILE.md.")
    if (store or wall) and not html:
        raise UsageError(f"{'--wall' if wall else '--store'} is about an HTML file: add -o FILE.html.")
    with _whole(", ".join(map(str, paths))):
        if html:
            from rooftest.web import render, runs

            text = (render.on_wall if wall else render.full)(runs.read(paths), store)
        else:
            text = "".join(page.render(digest.read(path)) for path in paths)
    if output is None:
        print(text, end="")  # noqa: T201 - a command's output
    else:
        put(output, text)


def comment(paths: Sequence[Path]) -> None:
    """Print results files as one comment for a pull request (Markdown, below GitHub's limit of 65,536 characters).

    Raises UsageError for a file that can't be read or is none.
    """
    runs = store.read_each(paths)
    with _whole(", ".join(map(str, paths))):
        print(comments.render(runs), end="")  # noqa: T201 - a command's output


def csv(paths: Sequence[Path]) -> None:
    """Print the timings and comparisons of results files as CSV.

    Raises UsageError for a file that can't be read or is none.
    """
    runs = store.read_each(paths)
    with _whole(", ".join(map(str, paths))):
        print(columns.render(runs), end="")  # noqa: T201 - a command's output


def github(paths: Sequence[Path]) -> None:
    """Tell GitHub Actions what failed: annotations, printed, and the step's summary, appended to.

    Raises UsageError for a file that can't be read or is none, or a summary that can't be written.
    """
    runs = store.read_each(paths)
    with _whole(", ".join(map(str, paths))):
        print("\n".join([*actions.annotated(runs, Path.cwd()), actions.summarise(runs)]))  # noqa: T201


@contextmanager
def _whole(where: str) -> Iterator[None]:
    """Raise UsageError where a record lacks what is shown: the schema asks for less."""
    try:
        yield
    except OverflowError as error:
        raise UsageError(f"{where} fits the schema, but a number in it is too large to be shown: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{where} fits the schema, but a record lacks what is shown: {error}") from None


def validate(paths: Sequence[Path]) -> None:
    """Say of each file that it is a run's results, a report or a GPU's ceilings.

    Raises UsageError for the first that is none of them.
    """
    from rooftest import ceilings

    for path in paths:
        data = store.load(path) if path.suffix == ".json" else {}
        if isinstance(data, dict) and "schema_version" not in data and "flop_per_s" in data:
            ceilings.load(path)
            print(f"{path}: valid ceilings")  # noqa: T201 - a command's output
        elif isinstance(data, dict) and "report_version" in data:
            digest.check(data, str(path))
            print(f"{path}: valid report")  # noqa: T201
        else:
            store.read(path)
            print(f"{path}: valid results")  # noqa: T201 - a command's output


def facts(paths: Sequence[Path], *, json: bool, threads: int | None, shared: int) -> None:
    """Say what the compiler made of each kernel in .cubin or .so files, for a GPU or none.

    Raises UsageError for a file that holds no machine code for a GPU, and as rooftest.compiled.facts.read.
    """
    from rooftest.compiled import facts as machine
    from rooftest.compiled import sheet

    found = [(path, each) for path in paths for each in machine.read_file(path, threads, shared)]
    if json:
        print(sheet.as_json([each for _, each in found]))  # noqa: T201 - a command's output
        return
    for path, each in found:
        print(f"{path}\n{sheet.render(each)}\n")  # noqa: T201


def spread(paths: Sequence[Path]) -> None:
    """Print what A/A pairs say of each series in folders results/spread/<GPU>: sigma, and the smallest change seen.

    Raises UsageError for what is no such folder, or a file in it that can't be read.
    """
    from rooftest.gate.spread import Store

    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path} is no folder of A/A pairs; a run writes results/spread/<GPU>.")
        inside = sorted(each.name for each in path.iterdir() if each.is_dir())
        if inside and not any(path.glob("*.json")):
            raise UsageError(f"{path} holds no A/A pairs itself; name a folder in it: {', '.join(inside)}.")
        print("\n".join(Store(path.resolve().parent, path.resolve().name).lines()))  # noqa: T201 - a command's output


def history(store: str, *, series: str | None, alarms: int | None) -> int:
    """Say how times went on: what became slower and since when, what changed with it, every series by GPU.

    Returns 1 if an alarm was raised in the last `alarms` days and still stands. Raises UsageError where there is no
    such store or series, or no run in it that could have raised the alarm that is asked for.
    """
    from rooftest.history import base, lines
    from rooftest.history import series as over

    held = base.History(store)
    if alarms is not None and not held.ask("SELECT 1 FROM runs LIMIT 1"):
        raise UsageError(f"{store} holds no run, so no alarm could be in it: name the folder that holds runs/")
    found = over.segments(held, series or "*")
    print("\n".join(lines.overview(held, found, series)))  # noqa: T201 - a command's output
    first = None if alarms is None else (held.now - timedelta(days=alarms)).date()
    return int(first is not None and any(s.day(c.raised) >= first for s, c in over.standing(found)))


def compare(a: str, b: str, *, store: str) -> None:
    """Describe two runs, or two GPUs of a store, side by side, without a verdict.

    Raises UsageError for a word that is neither.
    """
    from rooftest.history import side

    print("\n".join(side.render(*side.sides(a, b, store))))  # noqa: T201 - a command's output


def push(store: str, paths: Sequence[Path]) -> None:
    """Copy results files into a store: a folder, or an URL such as s3://bucket/kernels.

    Raises UsageError for a file that is no run's results, or a store that can't be written.
    """
    from rooftest.history import place

    for path in paths:
        print(f"{path}: {store}/{place.RUNS}/{place.push(store, path)}")  # noqa: T201 - a command's output


def compact(store: str) -> None:
    """File a store's runs as Parquet by month, so that questions are quick; the runs stay as they are.

    Raises UsageError for a store that can't be read or written.
    """
    from rooftest.history import base

    runs, made, notes = base.compact(store)
    files = f" into {', '.join(made)}" if made else ""
    print("\n".join([f"{store}: {runs} runs filed{files}", *notes]))  # noqa: T201 - a command's output


def _days(text: str) -> int:
    if not (text.isdecimal() and int(text) <= LONGEST):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days from 0 to {LONGEST}")
    return int(text)


def _device(machine: dict[str, Any]) -> str:
    gpu = machine.get("gpu") or {}
    return gpu.get("name") or "no CUDA device"


COMMANDS: dict[str, Callable[..., int | None]] = {
    "show": show, "report": report, "comment": comment, "csv": csv, "github": github, "validate": validate,
    "facts": facts, "spread": spread,
    "history": history, "compare": compare, "push": push, "compact": compact,
}  # fmt: skip
STORE = {"metavar": "STORE", "help": "the folder or URL that holds runs/ (default results)"}
FILES: dict[str, dict[str, Any]] = {"files": {"nargs": "+", "type": Path, "metavar": "FILE"}}
PLACES: dict[str, dict[str, dict[str, Any]]] = {
    "history": {"store": {**STORE, "nargs": "?", "default": "results"}},
    "compare": {
        "a": {"metavar": "A", "help": "a results file, or a GPU of the store by the start of its UUID"},
        "b": {"metavar": "B", "help": "likewise"},
    },
    "push": {"store": STORE, **FILES},
    "compact": {"store": {**STORE, "nargs": "?", "default": "results"}},
}
"""What a command takes in its places, where that is not FILES."""
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "report": {
        "-o": {"dest": "output", "type": Path, "metavar": "FILE", "help": "write FILE.html, one file, or FILE.md"},
        "--store": {"metavar": "STORE", "help": "with -o FILE.html: the history of this folder or URL too"},
        "--wall": {"action": "store_true", "help": "with -o FILE.html: a status page to be read from afar"},
    },
    "history": {
        "--series": {"metavar": "GLOB", "help": "only these series, with their earlier segments and alarms"},
        "--alarms": {
            "type": _days,
            "metavar": "DAYS",
            "help": "exit with 1 if an alarm of the last DAYS days stands",
        },
    },
    "compare": {"--store": {**STORE, "default": "results"}},
    "facts": {
        "--json": {"action": "store_true", "help": "print JSON instead of tables"},
        "--threads": {"type": int, "metavar": "N", "help": "threads of a CTA (default: what the file says)"},
        "--shared": {
            "type": int,
            "default": 0,
            "metavar": "BYTES",
            "help": "dynamic shared memory a launch gives a CTA",
        },
    },
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code is 0, 4 for a file that does not do, 1 for an alarm that was asked for."""
    parser = argparse.ArgumentParser(
        "rooftest", description="Reads results and machine code. Kernels are run by pytest."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=(command.__doc__ or "").splitlines()[0])
        for place, described in PLACES.get(name, FILES).items():
            sub.add_argument(place, **described)
        for option, described in OPTIONS.get(name, {}).items():
            sub.add_argument(option, **described)
    try:
        asked = vars(parser.parse_args(arguments))
    except SystemExit as leaving:  # argparse's own code for a mistake is 2
        return USAGE if leaving.code else 0
    try:
        name = asked.pop("command")
        return COMMANDS[name](*[asked.pop(place) for place in PLACES.get(name, FILES)], **asked) or 0
    except UsageError as error:
        print(f"ERROR: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return USAGE
