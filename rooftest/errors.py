"""Mistakes that a person can mend: shown as one line, without a traceback of ours."""

from __future__ import annotations


class UsageError(Exception):
    """Something the user wrote is wrong; the message says what, where, and what to do about it."""
