"""Results files: written whole or not at all, read with one clear line when something is wrong."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from rooftest.errors import UsageError

VERSION = 1
REQUIRED = ("schema_version", "created", "machine_info", "ceilings", "conformance", "benchmarks")
KINDS = ("conformance", "benchmarks")


def schema(version: int = VERSION, what: str = "result") -> dict[str, Any]:
    """Return the JSON Schema of a results file or of a report."""
    return json.loads((files("rooftest.schema") / f"{what}.v{version}.json").read_text(encoding="utf-8"))


def finite(value: Any) -> Any:
    """Return JSON-able data in which NaN and infinities are null: bare NaN is not JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def at(data: Any, *path: str | int) -> Any:
    """Return what stands at a place of JSON-able data, by keys and indices; None where there is nothing."""
    for step in path:
        if isinstance(data, dict):
            data = data.get(step)
        elif isinstance(data, list) and str(step).isdecimal() and int(step) < len(data):
            data = data[int(step)]
        else:
            return None
    return data


def dumps(data: Any) -> str:
    """Return the data as JSON text."""
    return json.dumps(finite(data), indent=1, allow_nan=False) + "\n"


def write(path: Path, data: Any) -> None:
    """Write JSON as `put` writes text."""
    put(path, dumps(data))


def put(path: Path, text: str) -> None:
    """Write a file atomically: a temporary file beside it, fsync, rename.

    Raises UsageError (a full disk, no permission); an earlier file at `path` is then as it was.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}. What was written before is intact."
        ) from None


JSON_TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int,
    "number": (int, float),
}  # fmt: skip


def _is(value: Any, kind: str) -> bool:
    """Whether a value is of a JSON type; true and false are no numbers."""
    return isinstance(value, JSON_TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def misfit(value: Any, node: dict[str, Any], defs: dict[str, Any], place: tuple[Any, ...] = ()) -> str | None:
    """Where and how a value does not fit a node of our schema, None if it fits.

    Reads the keywords that say what is there: $ref, anyOf, type, const, enum, required, properties,
    additionalProperties, items. Ranges and patterns are left to jsonschema.
    """
    if "$ref" in node:
        return misfit(value, defs[node["$ref"].rpartition("/")[2]], defs, place)
    if "anyOf" in node:
        found = [misfit(value, each, defs, place) for each in node["anyOf"]]
        return found[-1] if all(found) else None
    kinds = node.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    allowed = [node["const"]] if "const" in node else node.get("enum", [value])
    at = "/".join(map(str, place)) or "the top level"
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"{at}: {str(value)[:80]!r} is no {' or '.join(kinds)}"
    if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed):
        return f"{at}: {str(value)[:80]!r} is none of {allowed}"
    inside: list[tuple[Any, Any, Any]] = []
    if isinstance(value, dict):
        missing = [key for key in node.get("required", ()) if key not in value]
        if missing:
            return f"{at}: lacks {', '.join(missing)}"
        known, other = node.get("properties", {}), node.get("additionalProperties", {})
        inside = [(key, item, known.get(key, other)) for key, item in value.items()]
    elif isinstance(value, list):
        inside = [(n, item, node.get("items", {})) for n, item in enumerate(value)]
    return next((bad for key, item, sub in inside if sub and (bad := misfit(item, sub, defs, (*place, key)))), None)


def check(data: Any, where: str) -> None:
    """Raise UsageError when the data is no results file of a version we read.

    With jsonschema installed the whole schema is checked; without it, everything but ranges and patterns.
    """
    known(data, where)
    fits(data, schema(), where)


def known(data: Any, where: str) -> None:
    """Raise UsageError when the data is no results file, or of a version we don't read; records are not looked into."""
    if not isinstance(data, dict):
        raise UsageError(f"{where} is no results file: its top level is {type(data).__name__}, not an object.")
    if "schema_version" not in data:
        what = f" but {data['what']!r}" if isinstance(data.get("what"), str) else ""
        if "report_version" in data:
            raise UsageError(f"{where} is a report, no run's results: `rooftest report` prints it.")
        raise UsageError(f"{where} is no run's results{what}: it has no schema_version.")
    version = data["schema_version"]
    if version != VERSION or isinstance(version, bool):
        raise UsageError(f"{where} has schema version {version!r}; this rooftest reads version {VERSION}.")
    missing = [key for key in REQUIRED if key not in data]
    if missing:
        raise UsageError(f"{where} is no valid results file: it lacks {', '.join(missing)}.")
    for key in KINDS:
        if not isinstance(data[key], list):
            raise UsageError(f"{where} is no valid results file: {key} is not a list.")


def fits(data: Any, declared: dict[str, Any], where: str) -> None:
    """Raise UsageError where the data does not fit a schema of ours, saying at what place."""
    try:
        found = misfit(data, declared, declared["$defs"]) or _by_jsonschema(data, declared)
    except RecursionError:
        raise UsageError(f"{where} is no results file: it is nested too deeply.") from None
    if found is not None:
        raise UsageError(f"{where} does not fit the schema at {found}")


def _by_jsonschema(data: Any, declared: dict[str, Any]) -> str | None:
    """What jsonschema says against the data; None without it."""
    try:
        import jsonschema
    except ImportError:
        return None
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(declared).iter_errors(data))
    place = "" if error is None else "/".join(map(str, error.absolute_path)) or "the top level"
    return None if error is None else f"{place}: {error.message[:200]}"


def load(path: Path) -> Any:
    """Return the JSON in a file; raises UsageError when it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}.") from None
    return parse(content, str(path))


def _no_number(word: str) -> Any:
    """NaN and infinities, which Python reads: a verdict or a table made of them says anything."""
    raise ValueError(f"{word} is no number there, what is unknown is null")


def parse(content: bytes, where: str) -> Any:
    """Return the JSON that a file's content is; raises UsageError when it is none."""
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise UsageError(f"{where} is not text in UTF-8, so it is no results file.") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{where} is not JSON: {error.msg} at line {error.lineno}.") from None
    except ValueError as error:  # no number, or one of thousands of digits
        raise UsageError(f"{where} is not JSON: {error}.") from None
    except RecursionError:
        raise UsageError(f"{where} is no results file: it is nested too deeply.") from None


def read(path: Path) -> dict[str, Any]:
    """Return a checked results file. An unfinished journal (`.part`, `.part.1`) is read as far as it was written."""
    data = recover(path) if re.search(r"\.part(\.\d+)?$", path.name) else load(path)
    check(data, str(path))
    return data


def read_each(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return checked results files, a file that is named twice (or copied) once: its tests ran once."""
    found: list[dict[str, Any]] = []
    for data in map(read, paths):
        if data not in found:
            found.append(data)
    return found


def empty(machine_info: dict[str, Any], ceilings: dict[str, Any] | None) -> dict[str, Any]:
    """Return a results file with nothing in it yet."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "schema_version": VERSION, "created": created, "complete": False, "machine_info": machine_info,
        "ceilings": ceilings, "conformance": [], "benchmarks": [],
    }  # fmt: skip


class Run:
    """One run's results file, with a journal beside it so that Ctrl-C or a crash loses nothing recorded.

    Each record is a line of `<name>.part`, flushed at once. `finish` writes the results file from all of them and
    removes the journal. A journal that an earlier run left is moved aside, to `<name>.part.1` and so on. Raises
    UsageError when the disk is full; the lines before are intact.
    """

    def __init__(self, path: Path, machine_info: dict[str, Any], ceilings: dict[str, Any] | None = None) -> None:
        self.path, self.journal = path, path.with_name(path.name + ".part")
        self.data = empty(finite(machine_info), finite(ceilings))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if self.journal.exists():
                self.journal.rename(next(p for n in count(1) if not (p := Path(f"{self.journal}.{n}")).exists()))
            self._file = self.journal.open("w", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {self.journal}: {error.strerror or error}.") from None
        self._line({"head": {key: value for key, value in self.data.items() if key not in KINDS}})

    def _line(self, record: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise UsageError(
                f"cannot write {self.journal}: {error.strerror or error}. What was recorded before is intact."
            ) from None

    def add(self, kind: str, record: dict[str, Any]) -> None:
        """Record one entry of `conformance`, `benchmarks` or `gate`."""
        clean = finite(record)
        self.data.setdefault(kind, []).append(clean)
        self._line({kind: clean})

    def set_against(self, against: dict[str, Any] | None) -> None:
        """Record what the run compared with, and how often it alarmed where nothing had changed."""
        if against is not None:
            self.data["against"] = finite(against)
            self._line({"against": self.data["against"]})

    def set_ceilings(self, ceilings: dict[str, Any] | None) -> None:
        """Record the ceilings that the run is judged by, where they are others than so far."""
        clean = finite(ceilings)
        if clean != self.data["ceilings"]:
            self.data["ceilings"] = clean
            self._line({"ceilings": clean})

    def arrange(self, kernels: Sequence[str]) -> None:
        """Put the records in the order of their kernels: xdist's workers end in any."""
        for kind in (*KINDS, "gate"):
            self.data.get(kind, []).sort(key=lambda record: kernels.index(record["kernel"]))

    def complete(self) -> None:
        """Record that the session ended by itself."""
        self.data["complete"] = True

    def finish(self) -> Path:
        """Write the results file and remove the journal."""
        with contextlib.suppress(OSError):
            self._file.close()
        write(self.path, self.data)
        self.journal.unlink(missing_ok=True)
        return self.path


def recover(journal: Path) -> dict[str, Any]:
    """Return what a journal holds; a last line that was cut off is left out."""
    try:
        lines = journal.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {journal}: {error.strerror or error}.") from None
    data: dict[str, Any] = {}
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(record, dict):
            break
        if isinstance(record.get("head"), dict):
            data = {**record["head"], "conformance": [], "benchmarks": []}
        elif not data:
            break
        elif "ceilings" in record or "against" in record:
            data |= record
        else:
            for kind in (*KINDS, "gate"):
                if kind in record:
                    data.setdefault(kind, []).append(record[kind])
    if not data:
        raise UsageError(f"{journal} is no journal of a run: it has no head line.")
    return data
