"""The libraries that only a history needs: a GPU node without them still measures and gates."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rooftest.errors import UsageError


def need(name: str) -> Any:
    """Return a library of the extra [report]; raises UsageError, saying what to install, where it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        top = name.partition(".")[0]
        raise UsageError(f"a history needs {top} ({error}): pip install 'rooftest[report]'") from None
