"""The pytest plugin (entry point `rooftest`). Without a test of ours it imports no torch and does nothing.

The hooks that our tests need are in `rooftest.run`, registered when the first of them is collected.
"""

from __future__ import annotations

import pytest

from rooftest import options
from rooftest.errors import UsageError
from rooftest.report import Report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare --roof-*."""
    options.add(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark, refuse options that mean nothing before anything runs, and wait for records."""
    config.addinivalue_line(
        "markers", "roof(kind, kernel, op): judges a GPU kernel; set by @rooftest.checks, .measures"
    )
    config.addinivalue_line("markers", "large: tensors past 2^31 elements, on a GPU; left out unless -m large asks")
    config.addinivalue_line("markers", "compiled: what the compiler makes of a kernel, without a GPU")
    if options.given(config):
        from rooftest import session

        try:
            session.of(config).validate()
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None
    config.pluginmanager.register(Report(config), "rooftest-report")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test per rung or workload, dtype and layout."""
    mark = metafunc.definition.get_closest_marker("roof")
    if mark is not None:
        from rooftest import run

        run.of(metafunc.config).parametrize(metafunc, mark)
