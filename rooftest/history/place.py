"""Where a store lies: a folder, shared or not, or an object store (s3://bucket/kernels, anything that fsspec knows).

    STORE/runs/*.json                   runs, one file each: the truth
    STORE/history/v1/2026-12/*.parquet  the same for DuckDB, made from them by `rooftest compact`; may be deleted

No file is ever written twice, and none is shared between writers: names are taken from what a file holds. So any number
of nodes write at once, without a server or a lock.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftest import store
from rooftest.errors import UsageError
from rooftest.history.parts import need

RUNS = "runs"
FILED = "history/v1"  # another version of the columns is another folder, filled anew from the runs


def digest(content: bytes) -> str:
    """Return what a run is known by: 64 bits are enough for 1e6 runs (two alike: 3e-8)."""
    return hashlib.sha256(content).hexdigest()[:16]


@dataclass(frozen=True)
class Found:
    """A file of a store: its name below `runs/`, its path for the file system, its size in bytes."""

    name: str
    path: str
    bytes: int


class Place:
    """A store's files.

    Raises UsageError where there is no such folder, or no such file system.
    """

    def __init__(self, text: str, *, new: bool = False) -> None:
        """Look at a folder or URL; a `new` one need not exist yet."""
        if not text:  # an unset variable of a script; fsspec would take the folder at hand
            raise UsageError("the store's name is empty: name a folder or a URL")
        self.text = text
        try:
            self.files, self.root = need("fsspec").core.url_to_fs(text)
            self.root = self.root.rstrip("/")
            self.files.invalidate_cache()  # other nodes write too
            named = self.files.protocol  # a word, or all that it goes by
            self.local = "file" in ((named,) if isinstance(named, str) else named)
        except (ImportError, ValueError, OSError) as error:
            raise UsageError(f"cannot open the store {text}: {error}") from None
        self.faults: tuple[type[Exception], ...] = (OSError,) if self.local else (Exception,)
        """What its files raise: of an object store, what its own library has for no credentials or no answer."""
        try:
            there = new or self.files.isdir(self.root)
        except self.faults as error:
            raise UsageError(f"cannot open the store {text}: {_why(error)}") from None
        if not there:
            raise UsageError(f"there is no store {text}: name the folder that holds {RUNS}/ (results, if you ran here)")

    def runs(self) -> tuple[list[Found], list[str]]:
        """Return the runs by name, and the names of journals that were never finished (a run that goes on, or died)."""
        every = self._list(RUNS)
        done = [f for f in every if f.name.endswith(".json")]
        return done, [f.name for f in every if ".json.part" in f.name]

    def filed(self) -> list[str]:
        """Return the paths of all Parquet files, as DuckDB opens them."""
        return [self._address(f.path) for f in self._list(FILED) if f.name.endswith(".parquet")]

    def _list(self, folder: str) -> list[Found]:
        top = f"{self.root}/{folder}"
        try:
            found = self.files.find(top, detail=True)
        except FileNotFoundError:
            return []
        except self.faults as error:
            raise UsageError(f"cannot list {self.text}/{folder}: {_why(error)}") from None
        every = (Found(path[len(top) + 1 :], path, int(told.get("size") or 0)) for path, told in found.items())
        hidden = (f for f in every if not f.name.rpartition("/")[2].startswith("."))  # half-written files are hidden
        return sorted(hidden, key=lambda f: f.name)

    def _address(self, path: str) -> str:
        return path if self.local else self.files.unstrip_protocol(path)

    def read(self, found: Found) -> bytes:
        """Return the content of a file; raises UsageError where it can't be read."""
        try:
            content: bytes = self.files.cat_file(found.path)
        except self.faults as error:
            raise UsageError(f"cannot read {found.name}: {_why(error)}.") from None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a new file, whole or not at all; raises UsageError where that fails.

        In a folder through a hidden file, fsync and rename; an object store's put is whole by itself.
        """
        path = f"{self.root}/{name}"
        hidden = None
        try:
            if not self.local:
                self.files.pipe_file(path, content)
                return
            target = Path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            hidden = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
            with hidden.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            hidden.replace(target)
        except self.faults as error:
            if hidden:
                with suppress(OSError):
                    hidden.unlink()
            raise UsageError(f"cannot write {self.text}/{name}: {_why(error)}. What was there is intact.") from None

    def register(self, database: Any) -> None:
        """Let DuckDB read this place."""
        if not self.local:
            database.register_filesystem(self.files)


def _why(error: Exception) -> str:
    """What an error says, in one line."""
    told = getattr(error, "strerror", None) or str(error)
    return str(told).strip().partition("\n")[0].rstrip(".") or type(error).__name__


def checked(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return what a results file holds, and its content; raises UsageError for a file that is no run's results."""
    data = store.read(path)  # a journal that a killed run left is a run too
    return data, path.read_bytes() if path.suffix == ".json" else store.dumps(data).encode()


def push(text: str, path: Path) -> str:
    """Copy a results file into a store, under a name made from its time and content; return that name.

    The same file pushed twice is there once. Raises UsageError for a file that is no run's results.
    """
    data, content = checked(path)
    moment = "".join(c for c in str(data["created"])[:19] if c.isalnum())
    name = f"{moment}-{digest(content)}.json"
    Place(text, new=True).write(f"{RUNS}/{name}", content)
    return name
