"""What a person sees at the end, and the exit code. Gathers the records of our tests, from xdist's workers too."""

from __future__ import annotations

from typing import Any

import pytest


class Report:
    """Waits for records; a run without our tests passes through untouched."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.records: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the record of one of our tests."""
        record = getattr(report, "roof", None)
        if record is not None and report.when == "call":
            self.records.append(record)
