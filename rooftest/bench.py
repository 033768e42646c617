"""One kernel on one device: its process, the arena it shares with the grader, and one guarded call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rooftest.arena import write
from rooftest.case import Case
from rooftest.errors import UsageError
from rooftest.process import KernelError, KernelProcess, Signature
from rooftest.rows import Row

if TYPE_CHECKING:
    import torch

    from rooftest.arena import Arena
    from rooftest.engines import Contract
    from rooftest.problem import Problem

POISONS = (0xFF, 0x5A)  # bytes: NaN in every float format, and a large finite number in each (fp16 203, bf16 1.5e16)
SIDES = {"end": "past the end of", "start": "before the start of"}
"""Where a fenced tensor meets the end of its memory, and what a stray access is there."""
# The largest drawn case is a wide one, A (2100, 160), B, C and C0 (2100, 2100) in fp32, every other element (the inner
# step doubles all): 76 MB, and two of them side by side where two calls belong together.
ARENA_BYTES = {"cpu": 64 * 2**20, "cuda": 512 * 2**20}


@dataclass(frozen=True)
class Result:
    """What one call left behind: dense copies of its outputs, and where it wrote that it must not have (or None)."""

    outputs: dict[str, torch.Tensor]
    trespass: str | None
    launches: int | None = None


class Bench:
    """One row on one device ("cuda:0", "cpu", "interpreter"). Close it when the row's last test has run."""

    def __init__(self, row: Row, device: str) -> None:
        self.row, self.device, self.spec = row, device, row.spec
        self.torch_device = device if device.startswith("cuda") else "cpu"
        self._arena: Arena | None = None
        self._outgrown: list[Arena] = []
        self._process: KernelProcess | None = None

    @property
    def process(self) -> KernelProcess:
        """The kernel's process, started at first use."""
        if self._process is None:
            from rooftest.arena import Arena

            self._arena = Arena(self.torch_device, ARENA_BYTES[self.torch_device.split(":")[0]])
            self._process = KernelProcess(self.row, self.device, self._arena)
        return self._process

    @property
    def arena(self) -> Arena:
        """The memory that both sides see."""
        _ = self.process
        assert self._arena is not None
        return self._arena

    @cached_property
    def signature(self) -> Signature:
        """The kernel's parameters, read in its process.

        Raises KernelError if it can't be imported or its signature does not fit the op.
        """
        return self.process.describe()

    def contract(self, dtype: str) -> Contract:
        """What the row's contract lets a product do on this device on its way, for inputs of `dtype`."""
        from rooftest import engines

        return engines.contract(self.row.contract, engines.engine_of(self.torch_device), dtype)

    def close(self) -> None:
        """Ends the process and frees the arena."""
        if self._process is not None:
            self._process.close()
        for arena in (*self._outgrown, *([self._arena] if self._arena else [])):
            arena.close()
        self._outgrown, self._process, self._arena = [], None, None

    def room(self, size_bytes: int, beside_bytes: int | None = None) -> bool:
        """Whether the arena holds so many bytes; it grows to what leaves `beside_bytes` of a GPU's memory free.

        It stays so large. By default three times as much as the arena takes is left to copies.
        """
        if size_bytes <= self.arena.bytes.numel():
            return True
        if self.torch_device == "cpu":
            return False
        import torch

        from rooftest.arena import Arena

        beside_bytes = 3 * size_bytes if beside_bytes is None else beside_bytes
        if size_bytes + beside_bytes > torch.cuda.mem_get_info(self.torch_device)[0]:
            return False
        try:
            larger = Arena(self.torch_device, size_bytes)
        except MemoryError:
            return False
        self._outgrown.append(self.arena)  # the kernel's process has it mapped, so it can't be freed before that ends
        self._arena = self.process.arena = larger
        return True

    def run(
        self,
        problem: Problem,
        values: dict[str, torch.Tensor],
        poison: int = POISONS[0],
        mode: str = "plain",
        fences: Mapping[str, str] | None = None,
    ) -> Result:
        """One call on `values`, everything else in the arena poisoned; raises KernelError if the call failed.

        `fences`: for the mode "fenced", the tensors to be moved and where each meets the end of its memory.
        """
        memory = self._fill(problem, values, poison)
        before = memory.clone()
        scalars = self.scalars(problem.case, poison)
        reply = self.process.call(problem.placements, scalars, mode=mode, fences=fences)
        return self._read(problem, memory, before, reply.launches)

    def run_fenced(self, problem: Problem, values: dict[str, torch.Tensor], side: str) -> Result:
        """One call with every tensor where its memory ends or begins (`side`, one of SIDES; see rooftest.fence).

        Raises KernelError; a crash says what it is and names the tensor, if moving that one alone brings it back.
        """
        names = [p.name for p in problem.placements]
        try:
            return self.run(problem, values, mode="fenced", fences=dict.fromkeys(names, side))
        except KernelError as error:
            if error.kind != "crash":
                raise
            guilty = [n for n in names if self._crashes(problem, values, {n: side})]
            found = f"read or wrote {SIDES[side]} {' and of '.join(guilty) or 'a tensor'}"
            ends = f"fenced: tensors {side} where their memory {side}s"
            raise KernelError("crash", f"{found} ({ends}): {error.cause}") from None

    def _crashes(self, problem: Problem, values: dict[str, torch.Tensor], fences: Mapping[str, str]) -> bool:
        try:
            self.run(problem, values, mode="fenced", fences=fences)
        except KernelError as error:
            return error.kind == "crash"
        return False

    def run_twice(
        self, problem: Problem, first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], mode: str
    ) -> tuple[Result, Result]:
        """Two calls that belong together (two streams; capture and replay), on problems side by side in the arena."""
        other = problem.next()
        spans = [(problem, self._fill(problem, first, POISONS[0])), (other, self._fill(other, second, POISONS[0]))]
        befores = [memory.clone() for _, memory in spans]
        scalars = self.scalars(problem.case, POISONS[0])
        reply = self.process.call((*problem.placements, *other.placements), scalars, mode=mode)
        one, two = (self._read(p, m, b, reply.launches) for (p, m), b in zip(spans, befores, strict=True))
        return one, two

    def run_batch(self, problems: Sequence[Problem], chosen: int) -> tuple[Result, float]:
        """A call on each of the problems, side by side in the arena, every one with its own case's contents.

        Returns what the chosen one left behind, and the seconds until the kernel's process said that all were done, on
        this process's clock.
        """
        from rooftest.problem import draw

        memories = [self._fill(p, draw(self.spec, p.case, self.torch_device), POISONS[0]) for p in problems]
        before = memories[chosen].clone()
        scalars = self.scalars(problems[0].case, POISONS[0])
        del scalars["__poison__"]  # filling what the kernel allocates would take time
        placements = [placement for problem in problems for placement in problem.placements]
        begun = time.perf_counter()
        self.process.call(placements, scalars, mode="batch")
        wall_s = time.perf_counter() - begun
        return self._read(problems[chosen], memories[chosen], before, None), wall_s

    def scalars(self, case: Case, poison: int) -> dict[str, float | str | int]:
        """What the call gets beside tensors."""
        extra: dict[str, float | str | int] = {"__poison__": poison}
        if case.dtype in ("float32", "tf32") and "precision" in self.signature.parameters:
            extra["precision"] = case.dtype  # the same storage: nothing else tells the kernel
        if case.config is not None:
            extra["config"] = case.config
        return {**case.params, **extra}

    def hold(self, problem: Problem) -> None:
        """Raises UsageError if the problem does not fit the memory that is shared with the kernel."""
        end, room = problem.start_bytes + problem.span_bytes, self.arena.bytes.numel()
        if end > room:
            raise UsageError(
                f"the case needs {end / 2**20:.0f} MiB, the memory shared with the kernel has {room / 2**20:.0f}"
            )

    def _fill(self, problem: Problem, values: dict[str, torch.Tensor], poison: int) -> torch.Tensor:
        self.hold(problem)
        memory = self.arena.bytes[problem.start_bytes : problem.start_bytes + problem.span_bytes]
        memory.fill_(poison)
        for placement in problem.inputs:
            write(placement.view(self.arena.bytes), values[placement.name])
        if self.torch_device != "cpu":
            import torch

            torch.cuda.synchronize()
        return memory

    def _read(self, problem: Problem, memory: torch.Tensor, before: torch.Tensor, launches: int | None) -> Result:
        """Copies the outputs, then compares all bytes but theirs with what was there before."""
        import torch

        views = {p.name: p.view(self.arena.bytes) for p in problem.outputs}
        outputs = {name: view.clone(memory_format=torch.contiguous_format) for name, view in views.items()}
        trespass = None
        for view in views.values():  # the output's own elements may change; set them to one value on both sides
            view.zero_()
        after = memory.clone()
        memory.copy_(before)
        for view in views.values():
            view.zero_()
        if not torch.equal(after, memory):
            trespass = _name(problem, problem.start_bytes + int((after != memory).nonzero()[0]))
        return Result(outputs, trespass, launches)


def _name(problem: Problem, byte: int) -> str:
    """What lies at a byte of the arena, in words."""
    for placement in problem.placements:
        if placement.offset_bytes <= byte < placement.offset_bytes + placement.extent_bytes:
            if placement in problem.inputs:
                return f"input {placement.name} was modified"
            return f"wrote into the gaps between the rows of output {placement.name}"
    after = [p for p in problem.placements if p.offset_bytes <= byte]
    return (
        f"wrote {'after ' + after[-1].name if after else 'before ' + problem.placements[0].name}, outside every tensor"
    )
