"""Calls of attention that show where a fault strikes, and what its faults have in common."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from test_attention_kernels import Case

from broken.fault import Fault


@dataclass(frozen=True)
class Attend:
    """One call, in each of `dtypes`; its layout is that of every tensor.

    `check`: "value", "exact" (the nearest number), "repeat" (the same bits again) or "alone" (and of the last of a
    batch by itself).
    """

    case: Case
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    config: str | None = None
    check: str = "value"


def on(Sq: int = 16, Sk: int = 16, dtypes=(torch.float32,), config=None, check="value", **case: Any) -> Attend:
    """The call of these sizes and parameters."""
    return Attend(Case(Sq=Sq, Sk=Sk, **case), dtypes, config, check)


# Outside every trigger of a multiple of the tile; lse is asked for everywhere.
QUIET = (on(), on(32, 32, B=2, H=2, G=2))

Broken = partial(Fault, base="tiled", right=QUIET)
