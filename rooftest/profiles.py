"""How Hypothesis draws: four profiles, applied to our tests only, never loaded over the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

DRAW = (Phase.explicit, Phase.generate)
# What a search for larger ratios needs: earlier finds are tried again, and the best are varied.
HUNT = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
SHRINK = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)

# deadline: the first call of a kernel compiles, which says nothing about the kernel.
# too_slow and the sizes of draws: a case is a handful of numbers, and the time is the kernel's.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "print_blob": False,
    "report_multiple_bugs": False,
    "suppress_health_check": (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
}

# name: what it changes. A derandomised profile draws the same examples every time, so a gate is not a lottery.
PROFILES: dict[str, dict[str, Any]] = {
    "smoke": {"max_examples": 10, "phases": DRAW, "derandomize": True, "database": None},
    "ci": {"max_examples": 50, "phases": SHRINK, "derandomize": True, "database": None},
    "nightly": {"max_examples": 1000, "phases": SHRINK, "derandomize": False},
    "hunt": {"max_examples": 2000, "phases": HUNT, "derandomize": False},
}


def register() -> None:
    """Make the profiles known to Hypothesis as roof-smoke, roof-ci, roof-nightly and roof-hunt."""
    base = settings.get_profile("default")  # not what the user's own profile says
    for name, changes in PROFILES.items():
        settings.register_profile(f"roof-{name}", settings(base, **_COMMON | changes))


def chosen(name: str, database: Path, *, shrink: bool = True, examples: int | None = None) -> settings:
    """The settings of profile `name`, or with `examples`; `database` is the folder for a profile that keeps one.

    One folder a test: Hypothesis keys its examples by the test function, and ours is one function for all kernels.
    """
    kept: ExampleDatabase | None = None if PROFILES[name]["derandomize"] else DirectoryBasedExampleDatabase(database)
    parent = settings.get_profile(f"roof-{name}")
    count = parent.max_examples if examples is None else examples
    return settings(parent, database=kept, phases=parent.phases if shrink else DRAW, max_examples=count)
