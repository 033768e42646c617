"""One kernel on one device: its process, the arena it shares with the grader, and one guarded call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rooftest.case import Case
from rooftest.errors import UsageError
from rooftest.process import KernelProcess, Signature
from rooftest.rows import Row

if TYPE_CHECKING:
    import torch

    from rooftest.arena import Arena
    from rooftest.engines import Contract
    from rooftest.problem import Problem

POISONS = (0xFF, 0x5A)  # bytes: NaN in every float format, and a large finite number in each (fp16 203, bf16 1.5e16)
# The largest drawn case is a wide one, A (2100, 160), B, C and C0 (2100, 2100) in fp32, every other element (the inner
# step doubles all but C0): 58 MB, and two of them side by side where two calls belong together.
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
        if self._arena is not None:
            self._arena.close()
        self._process = self._arena = None

    def run(
        self, problem: Problem, values: dict[str, torch.Tensor], poison: int = POISONS[0], mode: str = "plain"
    ) -> Result:
        """One call on `values`, everything else in the arena poisoned; raises KernelError if the call failed."""
        memory = self._fill(problem, values, poison)
        before = memory.clone()
        reply = self.process.call(problem.placements, self.scalars(problem.case, poison), mode=mode)
        return self._read(problem, memory, before, reply.launches)

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

    def scalars(self, case: Case, poison: int) -> dict[str, float | str | int]:
        """What the call gets beside tensors."""
        extra: dict[str, float | str | int] = {"__poison__": poison}
        if case.dtype in ("float32", "tf32") and "precision" in self.signature.parameters:
            extra["precision"] = case.dtype  # the same storage: nothing else tells the kernel
        if case.config is not None:
            extra["config"] = case.config
        return {**case.params, **extra}

    def _fill(self, problem: Problem, values: dict[str, torch.Tensor], poison: int) -> torch.Tensor:
        end, room = problem.start_bytes + problem.span_bytes, self.arena.bytes.numel()
        if end > room:
            raise UsageError(
                f"the case needs {end / 2**20:.0f} MiB, the memory shared with the kernel has {room / 2**20:.0f}"
            )
        memory = self.arena.bytes[problem.start_bytes : problem.start_bytes + problem.span_bytes]
        memory.fill_(poison)
        for placement in problem.inputs:
            placement.view(self.arena.bytes).copy_(values[placement.name])
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
        extent = 1 + sum((n - 1) * s for n, s in zip(placement.shape, placement.stride, strict=True))
        size = 0 if 0 in placement.shape else extent * placement.itemsize
        if placement.offset_bytes <= byte < placement.offset_bytes + size:
            if placement in problem.inputs:
                return f"input {placement.name} was modified"
            return f"wrote into the gaps between the rows of output {placement.name}"
    after = [p for p in problem.placements if p.offset_bytes <= byte]
    return (
        f"wrote {'after ' + after[-1].name if after else 'before ' + problem.placements[0].name}, outside every tensor"
    )
