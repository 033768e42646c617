"""A store opened for questions: one DuckDB view over the Parquet files and the runs that are in none of them yet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from rooftest.errors import UsageError
from rooftest.history import flat
from rooftest.history.parts import need
from rooftest.history.place import FILED, Found, Place, digest

AHEAD = timedelta(days=1)
"""A run dated further in the future was written by a clock that is wrong; less may be a zone taken for UTC."""
NAMED = 5  # files that a line names before it counts
OF_RUNS = ", ".join(["kind", *flat.RUN, *flat.MADE, "filename"])
"""What a row of kind "run" may hold, and its Parquet file: a third of the columns is opened in half the time."""


class History:
    """What a store holds. `records` is the view of everything, `times` that of valid times; columns: flat.COLUMNS.

    `notes` says, a line each, what was left out of both and why: nothing is dropped without one. Raises UsageError
    where there is no store or a library of the extra [report] is missing.
    """

    def __init__(self, text: str, now: datetime | None = None) -> None:
        self.place, self.notes = Place(text), list[str]()
        self.now = (now or datetime.now(UTC)).astimezone(UTC).replace(tzinfo=None)
        self.db = need("duckdb").connect()
        self.db.execute("SET autoinstall_known_extensions=false; SET parquet_metadata_cache=true")
        self.place.register(self.db)
        runs, journals = self.place.runs()
        self._open_filed()
        self._supersede({f.name: f.bytes for f in runs})
        self.rows = self._fresh(runs)
        """The runs that no Parquet file holds."""
        self.db.register("unfiled", flat.table(self.rows))
        self.db.execute(
            "CREATE VIEW records AS SELECT * FROM filed UNION ALL BY NAME SELECT * FROM unfiled;"
            "CREATE VIEW runs AS SELECT * FROM filed_runs UNION ALL BY NAME SELECT * FROM unfiled WHERE kind = 'run';"
        )
        self._leave_out_future()
        if journals:
            self._note(journals, "never finished (running, or killed)", "`rooftest push STORE FILE.part` keeps it")

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows that a query gives, `?` filled with the values; raises UsageError as `numbers`."""
        with self._told():
            return list(self.db.execute(query, list(values)).fetchall())

    def numbers(self, query: str) -> dict[str, Any]:
        """Return the columns that a query gives, as numpy arrays; raises UsageError for a broken Parquet file."""
        with self._told():
            found: dict[str, Any] = self.db.execute(query).fetchnumpy()
        return found

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (need("duckdb").IOException, need("duckdb").InvalidInputException, OSError) as error:
            raise UsageError(f"the store {self.place.text} can't be read: {str(error).splitlines()[0]}") from None

    def _open_filed(self) -> None:
        """View `parquet` and table `filed_runs`; a Parquet file that is broken is noted, and its runs are read anew."""
        paths = self.place.filed()
        try:
            self._view(paths)
        except need("duckdb").Error:
            sound = []
            for path in paths:
                try:
                    self._view([path])
                    sound.append(path)
                except need("duckdb").Error as error:
                    self.notes.append(
                        f"left out: {str(error).splitlines()[0]}; `rooftest compact` makes such a file anew"
                    )
            self._view(sound)

    def _view(self, paths: list[str]) -> None:
        if paths:
            self.db.read_parquet(paths, union_by_name=True, filename=True).create_view("parquet", replace=True)
        else:
            self.db.register("nothing", flat.table([]))
            self.db.execute("CREATE OR REPLACE VIEW parquet AS SELECT *, '' AS filename FROM nothing")
        self.db.execute(f"CREATE OR REPLACE TABLE filed_runs AS SELECT {OF_RUNS} FROM parquet WHERE kind = 'run'")  # noqa: S608 - our words

    def _supersede(self, sizes: Mapping[str, int]) -> None:
        """View `filed`: of a run that two Parquet files hold one copy, and none of a run whose file is another now."""
        self.known: dict[str, tuple[str, int]] = {}
        """Runs in Parquet, by digest: name and size."""
        out: list[tuple[str, str]] = []
        changed: dict[str, int] = {}
        for run, name, size, filename in self.ask(
            "SELECT run, name, bytes, filename FROM filed_runs ORDER BY filename"
        ):
            if run in self.known:  # two nodes compacted at the same time
                out.append((run, filename))
                continue
            self.known[run] = (name, size)
            if sizes.get(name, size) != size:
                out.append((run, filename))
                changed[name] = sizes[name]
        told = sorted(set(changed.items()) - set(self.known.values()))
        if told:
            self._note([name for name, _ in told], "changed after it was compacted", "what it says now counts")
        if out:
            arrow = need("pyarrow")
            columns = [arrow.array(column, arrow.string()) for column in zip(*out, strict=True)]
            self.db.register("superseded", arrow.table(columns, names=["run", "filename"]))
            self.db.execute("DELETE FROM filed_runs WHERE (run, filename) IN (SELECT (run, filename) FROM superseded)")
        chosen = "parquet ANTI JOIN superseded USING (run, filename)" if out else "parquet"
        self.db.execute(f"CREATE VIEW filed AS SELECT * EXCLUDE (filename) FROM {chosen}")  # noqa: S608 - our words
        self.db.execute("ALTER TABLE filed_runs DROP COLUMN filename")

    def _fresh(self, runs: Sequence[Found]) -> list[flat.Row]:
        """Return the rows of runs that no Parquet file holds, each content once; what can't be read is noted."""
        filed, seen, rows = set(self.known.values()), set(self.known), list[flat.Row]()
        for found in runs:
            if (found.name, found.bytes) in filed:
                continue
            try:
                content = self.place.read(found)
                run = digest(content)
                if run not in seen:
                    rows += flat.read(content, found.name, run)
                    seen.add(run)
            except UsageError as error:
                self.notes.append(f"left out: {error} The file stays as it is.")
        return rows

    def _leave_out_future(self) -> None:
        """View `times`."""
        latest = self.now + AHEAD
        ahead = self.ask("SELECT name, created FROM runs WHERE created > ? ORDER BY created", latest)
        if ahead:
            self._note([f"{name} ({created:%Y-%m-%d})" for name, created in ahead],
                       "dated in the future: a clock was wrong", "it is kept, and counts in no series")  # fmt: skip
        # A time that was found INVALID, or is none, is a record and no time.
        self.db.execute(
            "CREATE VIEW times AS SELECT * FROM records WHERE kind = 'benchmark' AND key IS NOT NULL AND time_s > 0 "  # noqa: S608 - our words
            f"AND verdict IN ('PASS', 'FAIL', 'AMBIGUOUS') AND created <= '{latest.isoformat(' ')}'::TIMESTAMP"
        )

    def _note(self, names: list[str], what: str, then: str) -> None:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        self.notes.append(f"{', '.join(names[:NAMED])}{more}: {what}; {then}")

    def renames(self) -> dict[str, tuple[str, datetime]]:
        """Return earlier names of kernels: "op/old" -> ("op/new", when a run first said so)."""
        found: dict[str, tuple[str, datetime]] = {}
        query = "SELECT renames, min(created) c FROM runs WHERE renames IS NOT NULL GROUP BY 1 ORDER BY c"
        for text, created in self.ask(query):
            for old, new in json.loads(text).items():
                found.setdefault(old, (new, created))
        return found


def compact(text: str) -> tuple[int, list[str], list[str]]:
    """File the runs that no Parquet file holds yet: one new file a month; nothing that was there is touched.

    Two nodes that do it at once may file a run twice; it counts once. Returns how many runs were filed, the names of
    the new files, and the notes. Raises UsageError where they can't be written.
    """
    history = History(text)
    runs = {row["run"] for row in history.rows}
    made = []
    for month, rows in flat.months(history.rows):
        content = flat.parquet(flat.table(rows))
        name = f"{month}/{digest(content)}.parquet"
        history.place.write(f"{FILED}/{name}", content)
        made.append(name)
    return len(runs), made, history.notes
