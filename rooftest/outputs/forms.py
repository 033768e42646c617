"""What --roof-report writes, by the end of the file's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rooftest import page, store
from rooftest.outputs import columns

Form = Callable[[Mapping[str, Any], Mapping[str, Any]], str]
FORMS: dict[str, Form] = {
    ".json": lambda _, report: store.dumps(report),
    ".md": lambda _, report: page.render(report),
    ".csv": lambda run, _: columns.render([run]),
}
"""The text made from the run, as a results file holds it, and from its report (rooftest.digest)."""
