"""Records in the order in which people want them, the worst first; the same whatever order the tests ended in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Record = Mapping[str, Any]
FAIL, KNOWN, LEFT_OUT = "FAIL", "known", "left out"
LOUD = (FAIL, "INVALID", "AMBIGUOUS")
"""What somebody has to look at; all else is folded, or counted."""
WORDS = (*LOUD, KNOWN, "UNARMED", "PASS", "UNCHANGED", LEFT_OUT)
KINDS = {"conformance": "conformance", "gate": "gate", "benchmark": "benchmarks"}
"""The lists of a results file by the kind of their records. A wrong kernel comes before a slow one."""


def records(data: Mapping[str, Any]) -> list[Record]:
    """All records of a results file."""
    return [record for kind in KINDS.values() for record in data.get(kind) or ()]


def word(record: Record) -> str:
    """What became of a test, in one of WORDS."""
    if record.get("status") == "xfailed":
        return KNOWN
    return str(record["verdict"] or LEFT_OUT)


def counted(of: Iterable[Record]) -> dict[str, int]:
    """How many tests there are of each word, the worst first; words of which there is none are left out."""
    found = Counter(map(word, of))
    return {each: found[each] for each in sorted(found, key=_rank)}


def worst_first(of: Iterable[Record]) -> list[Record]:
    """Sorted by word, kind, how bad it is, and id."""
    return sorted(of, key=lambda r: (_rank(word(r)), list(KINDS).index(r["kind"]), -_badness(r), r["id"]))


def _rank(of: str) -> int:
    return WORDS.index(of) if of in WORDS else len(WORDS)


def _badness(record: Record) -> float:
    """The ratio, the slow-down, or the share of the roof that is missing; what has no number is worst."""
    if record["kind"] == "benchmark":
        share = ((record.get("extra_info") or {}).get("bound") or {}).get("efficiency")
        found = None if share is None else 1 - share
    else:
        found = record.get("change" if record["kind"] == "gate" else "ratio")
    return float("inf") if found is None else float(found)
