"""For the checkout: says what to install when the plugin is missing; nothing else."""

import pytest


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Stop before an option of ours is reported as unknown."""
    if not pluginmanager.hasplugin("rooftest"):
        raise pytest.UsageError("the rooftest plugin is not loaded: run `pip install -e .` in this folder first")
