"""The two trees of a comparison: the one at hand, and the one that a revision or a folder holds."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rooftest.errors import UsageError

if TYPE_CHECKING:
    from rooftest.rows import Row

_BUILD_LIMIT_S = 3600.0  # FlashAttention's extension takes most of an hour on a small machine
# git sets these for its hooks, and a gate may run in one: they would override the folder that we name.
_GITS_OWN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


@dataclass
class Trees:
    """A repository twice: `head` is the tree at hand, `base` the other, there once `ready` was called.

    `revision`: what base is, in words; `commit`: its hash, None for a folder. `changed`: tracked files of head that
    differ from its commit, None outside git.
    """

    head: Path
    base: Path
    revision: str
    commit: str | None
    head_commit: str | None
    changed: int | None
    build: str | None
    prepared: bool = False
    wrong: dict[str, str] = field(default_factory=dict)
    """By side, "base" or "head": why its tree can't be had, in one line."""

    @property
    def same(self) -> bool:
        """Whether both sides are the very same code, so that what is measured is the spread."""
        if self.commit is None:
            return self.head.samefile(self.base)
        return self.commit == self.head_commit and not self.changed

    @property
    def head_words(self) -> str:
        """Head in words, for the header and for records."""
        if self.head_commit is None:
            return str(self.head)
        return self.head_commit[:12] + (f" with {self.changed} changed files" if self.changed else "")

    def ready(self) -> None:
        """Check the revision out and build both sides, once; what fails stands in `wrong`."""
        if self.prepared:
            return
        self.prepared = True
        if self.commit is not None:
            # Without hooks: a post-checkout hook is meant for people.
            words = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", "--force", str(self.base))
            try:
                _git(self.head, *words, self.commit)
            except _GitError as error:
                self.wrong["base"] = f"{self.revision} can't be checked out: {error}"
                return
        sides = {"head": self.head} if self.same and self.commit is None else {"base": self.base, "head": self.head}
        for side, folder in sides.items() if self.build else ():
            failed = _build(self.build or "", folder)
            if failed:
                self.wrong[side] = f"--roof-build in {side} ({self.words(side)}): {failed}"

    def words(self, side: str) -> str:
        """What a side is."""
        return self.revision if side == "base" else self.head_words

    def in_base(self, path: Path) -> Path | None:
        """Where a path of head's tree lies in base's; None for one outside head's tree."""
        path = path.resolve()
        return self.base / path.relative_to(self.head) if path.is_relative_to(self.head) else None


class Against:
    """What --roof-against names, for each repository that kernels of this run lie in."""

    def __init__(self, text: str, build: str | None, here: Path) -> None:
        self.text, self.build, self.here = text, build, here
        self._trees: dict[Path, Trees] = {}
        self._folder: Path | None = None

    def trees(self, row: Row, home: Path) -> Trees:
        """The trees of a row's kernel; `home` is the file that the row stands in, or the folder of a one-off.

        Raises UsageError for an unknown revision, for a kernel that lies in no repository or folder of ours, and where
        git is missing.
        """
        place, root = _file(row, home), (home if home.is_dir() else home.parent).resolve()
        inside = repository(place.parent)
        folder = (self.here / self.text).resolve()
        if (inside is None or not _resolves(inside, self.text)) and folder.is_dir():
            head = next((top for top in (inside, root) if top and _mirrors(folder, top, home, place)), None)
            if head is None:
                raise UsageError(
                    f"--roof-against {self.text}: {folder} holds neither {home.name} nor {place.name} where the tree "
                    f"of {row.name} has them; name the folder that corresponds to {inside or root}"
                )
            return self._known(head, lambda: self._of_folder(head, folder))
        if inside is None:
            raise UsageError(
                f"--roof-against {self.text}: there is no such folder, and {row.name} ({place}) lies in no git "
                "repository that could hold a revision of it"
            )
        return self._known(inside, lambda: self._of_revision(inside))

    @property
    def all(self) -> list[Trees]:
        """The trees known so far."""
        return list(self._trees.values())

    def close(self) -> None:
        """Remove what was checked out; the repositories are then as they were."""
        for each in self._trees.values():
            if each.commit is not None and each.prepared:
                with suppress(_GitError):
                    _git(each.head, "worktree", "remove", "--force", str(each.base))
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            for each in self._trees.values():
                with suppress(_GitError):  # where the first did not work, as after Ctrl-C in the middle of it
                    _git(each.head, "worktree", "prune") if each.commit is not None and each.prepared else None
        self._trees, self._folder = {}, None

    def scratch(self) -> Path:
        """A folder of this run, removed at its end."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="rooftest-base-")).resolve()
        return self._folder

    def _known(self, head: Path, make: object) -> Trees:
        if head not in self._trees:
            self._trees[head] = make()  # type: ignore[operator]
        return self._trees[head]

    def _of_folder(self, head: Path, folder: Path) -> Trees:
        commit, changed = _state(head)
        return Trees(head, folder, str(folder), None, commit, changed, self.build)

    def _of_revision(self, head: Path) -> Trees:
        try:
            commit = _git(head, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{self.text}^{{commit}}")
        except _GitError:
            shallow = _git(head, "rev-parse", "--is-shallow-repository") == "true"
            hint = "; this clone is shallow: fetch more of it (git fetch --unshallow)" if shallow else ""
            raise UsageError(
                f"--roof-against {self.text}: {head} has no such revision, and there is no such folder{hint}"
            ) from None
        mine, changed = _state(head)
        name = commit[:12] if commit.startswith(self.text) else f"{self.text} ({commit[:12]})"
        return Trees(head, self.scratch() / head.name, name, commit, mine, changed, self.build)


class _GitError(Exception):
    """What git said, in one line."""


def _git(folder: Path, *words: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in _GITS_OWN} | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False, env=environment
        )
    except FileNotFoundError:
        raise UsageError("--roof-against needs git for a revision; it is not installed: name a folder") from None
    if done.returncode:
        raise _GitError((done.stderr.strip().splitlines() or [f"git {words[0]} ended with {done.returncode}"])[-1])
    return done.stdout.strip()


def repository(folder: Path) -> Path | None:
    """The top of the git work tree that a folder lies in; None outside one, and without git."""
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel")).resolve()
    except (_GitError, UsageError):
        return None


def _resolves(repository: Path, text: str) -> bool:
    """Whether a text that is a folder too is meant as a revision: only one that git knows and that is written so."""
    if text.startswith((".", "/", "~")):
        return False
    with suppress(_GitError):
        return bool(_git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}"))
    return False


def _state(head: Path) -> tuple[str | None, int | None]:
    """The commit of a tree, and how many tracked files differ from it; None, None outside git.

    Untracked files do not count: a run of pytest leaves some. One that a kernel reads is missing in the other tree.
    """
    try:
        commit = _git(head, "rev-parse", "--verify", "HEAD")
        return commit, len(_git(head, "status", "--porcelain", "--untracked-files=no").splitlines())
    except (_GitError, UsageError):
        return None, None


@cache
def current(folder: Path) -> str | None:
    """Return the commit of the tree that a folder lies in, in 12 digits, with +changed where tracked files differ.

    None outside git. Asked once a run: what is timed is what was there when it began.
    """
    commit, changed = _state(folder)
    return None if commit is None else commit[:12] + "+changed" * bool(changed)


def _mirrors(folder: Path, top: Path, home: Path, place: Path) -> bool:
    paths = [path.resolve() for path in (home, place) if path.is_file()]
    return any(path.is_relative_to(top) and (folder / path.relative_to(top)).exists() for path in paths)


def foreign(path: Path) -> bool:
    """Whether a file belongs to an installation rather than to a source tree, though a tree may hold that: a .venv."""
    path = path.resolve()
    return any(part in ("site-packages", "dist-packages") for part in path.parts) or any(
        path.is_relative_to(Path(p).resolve() / "lib") for p in (sys.prefix, sys.base_prefix)
    )


def _file(row: Row, home: Path) -> Path:
    """The file of a row's kernel, found without importing it.

    Raises UsageError for a module that can't be found, or that comes from an installed package.
    """
    place, _, _ = row.call.rpartition(":")
    root = (home if home.is_dir() else home.parent).resolve()
    if place.endswith(".py"):
        return (root / place).resolve()
    top = place.partition(".")[0]
    spec = importlib.machinery.PathFinder.find_spec(top, [str(root)])
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        with suppress(ValueError):  # a module that something made by hand
            spec = importlib.util.find_spec(top)
    found = [] if spec is None else [spec.origin] if spec.has_location else spec.submodule_search_locations
    origin = next((Path(path).resolve() for path in found or () if path), None)
    if origin is None:
        raise UsageError(f"--roof-against: kernel {row.name}: there is no module {top}, which its row calls")
    if foreign(origin):
        raise UsageError(
            f"--roof-against: kernel {row.name}: {top} is installed in {origin.parent}, so both sides would run that "
            "one; install it from its tree: pip install -e ."
        )
    return origin if origin.is_file() else origin / "__init__.py"


def _build(command: str, folder: Path) -> str | None:
    """Run the user's build in a tree; why it failed, in one line, or None."""
    try:
        done = subprocess.run(  # noqa: S602 - the user's own words, for a shell
            command, shell=True, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", check=False, timeout=_BUILD_LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"took more than {_BUILD_LIMIT_S:g} s"
    if done.returncode == 0:
        return None
    last = (done.stdout.strip().splitlines() or ["it printed nothing"])[-1][:200]
    return f"ended with {done.returncode}: {last}"
