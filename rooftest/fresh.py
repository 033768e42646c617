"""New contents before each timed call, at the same addresses; and what one of the calls read and wrote, to be judged.

A kernel that remembers results by address, identity, shape or sampled contents is wrong then, and one that does its
work on some calls only can't know which is kept: the operating system's randomness chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from rooftest.genuine import below

ALIGN = 64
"""Elements that a shift is a multiple of, 128 bytes in 16 bits: copies between such addresses run at full speed."""

Results = Callable[[], Mapping[str, torch.Tensor]]


class Fresh:
    """The contents of `inputs`, renewed by turning them: element i becomes what stood at i + shift, round the end.

    That is two copies of memory for each input, whatever its dtype, and the distribution stays exactly what it was (a
    device draws power by it). A matrix of 2048 x 2048 has 65535 such shifts. `constant` names inputs that stay: what
    a kernel has repacked before. `results` gives what the judged call wrote last, by the op's names; it looks like
    `outputs`.
    """

    def __init__(
        self,
        inputs: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        judged: str,
        results: Results,
        constant: Collection[str] = (),
    ) -> None:
        self.inputs, self.judged, self.results = dict(inputs), judged, results
        self.source = {n: flat(t).clone() for n, t in inputs.items() if n not in constant and t.numel() > 1}
        self.shifts: dict[str, dict[str, int]] = {}
        """By call, then by input: how far what it reads was turned."""
        self.seen = 0
        """Timed calls of the judged kernel so far."""
        # Made now: to take memory between two timed calls can take a millisecond.
        self.kept = {n: torch.empty_like(t) for n, t in {**inputs, **outputs}.items()}
        self.told: dict[str, Any] = {}
        """Which call was kept, and how far its inputs were turned; as plain data."""

    def renew(self, name: str) -> None:
        """Enqueue new contents for the next call, of that name."""
        shifts = {n: _shift(t.numel()) for n, t in self.source.items()}
        for n, shift in shifts.items():
            turn(flat(self.inputs[n]), self.source[n], shift)
        self.shifts[name] = shifts

    def look(self, name: str) -> None:
        """Enqueue copies of what the call read and wrote, with a chance that makes each timed call as likely."""
        if name != self.judged:
            return
        self.seen += 1
        if below(self.seen):
            return
        self.told = {"call": self.seen, "shifts": self.shifts[name]}
        for n, tensor in {**self.inputs, **self.results()}.items():
            self.kept[n].copy_(tensor)

    def report(self) -> dict[str, Any] | None:
        """What the grader needs to judge the call that was kept, None if there was none."""
        return {**self.told, "of": self.seen} if self.told else None


def _shift(count: int) -> int:
    """A secret number from 1 to count - 1."""
    step = ALIGN if count >= 2 * ALIGN else 1
    return step * (1 + below(count // step - 1))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor without gaps, in the order of memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def turn(tensor: torch.Tensor, source: torch.Tensor, shift: int) -> None:
    """tensor[i] = source[i + shift], round the end; both flat."""
    rest = source.numel() - shift
    tensor[:rest].copy_(source[shift:])
    tensor[rest:].copy_(source[:shift])
