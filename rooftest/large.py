"""Tensors and offsets past 2^31 elements (L6): a kernel that computes an offset in 32 bits is somewhere else there.

The op declares the cases (`Spec.large`); they run with `-m large` only. The tensors take most of a GPU's memory, so
there is one copy of each: contents are drawn into the shared memory piece by piece, what must not change is known by a
hash of each MiB, and of the result some indices of every axis are judged: the first, the last, those around each
multiple of 2^31 elements of every tensor, and random ones, half of them past it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

from rooftest.errors import UsageError
from rooftest.finding import Finding
from rooftest.session import identify
from rooftest.trial import Trial

if TYPE_CHECKING:
    import torch

    from rooftest.arena import Placement
    from rooftest.bench import Bench
    from rooftest.problem import Problem
    from rooftest.rows import Row
    from rooftest.rungs import Outcome
    from rooftest.session import Session
    from rooftest.spec import Large as Declared
    from rooftest.spec import Spec

BOUNDARY = 2**31
NO_GPU = "no CUDA device: tensors past 2^31 elements are not tried"
JUDGED = 48  # indices of an axis: those around boundaries are some twenty, and the product of two axes stays small
PIECE = 2**26  # elements that are drawn at a time: a quarter of a GiB in fp32, and twice that in fp64 for tf32
WORDS = 2**17  # 64-bit words under one hash, a MiB: as near as a stray write is placed
BESIDE_BYTES = 3 * 2**30  # what pieces take while they are drawn, and the kernel's own workspace


class Large(Trial):
    """One declared case of one kernel."""

    argument = "check"
    kind = "conformance"
    marks = (pytest.mark.large,)

    def __init__(self, session: Session, row: Row, declared: Declared, dtype: str) -> None:
        super().__init__(session, row, f"large-{declared.name}", dtype, declared.layout)
        self.declared = declared
        self.record |= {"rung": "large", "claimed": list(row.claims)}

    @classmethod
    def of_row(cls, session: Session, row: Row) -> Iterator[Trial]:
        """The cases in the row's domain, in bfloat16 where the row takes it: offsets count elements, not bytes."""
        return (cls(session, row, declared, dtype) for declared, dtype in declared_for(row))

    def fits(self) -> bool:
        """Whether --roof-case leaves this trial in the run: it names cases that are drawn."""
        return not self.session.cases

    def __call__(self) -> None:
        """Run the case and judge it.

        Raises Finding if the kernel is wrong; skips where it can't be asked here, with the reason.
        """
        from rooftest import domain

        device = self.record["device"] = self.session.device(self.row)
        reason = domain.undecidable(self.row, device)
        if not device.startswith("cuda"):
            reason = NO_GPU
        if reason:
            self.leave_out(reason)
        bench = self.bench()
        asked = (*self.declared.given, *self.declared.params)
        missing = [name for name in asked if name not in domain.takes(self.row, self.row.spec, bench.signature)]
        if missing:
            self.leave_out(f"takes no {', '.join(missing)}")
        self.record["domain"] = domain.share(self.row, bench.signature)
        found = self._judge(bench)
        if found:  # raised here, where no frame holds tensors
            raise Finding(found)

    def _judge(self, bench: Bench) -> str | None:
        """Fill the record; what is wrong with the kernel, or None."""
        from rooftest.case import Case
        from rooftest.problem import lay_out
        from rooftest.process import KernelError
        from rooftest.rungs import Failure

        it, row = self.declared, self.row
        case = Case(
            row.op, row.name, self.dtype, self.layout, it.sizes, it.params, it.given,
            stride="padded" if it.pitch else "dense", seed=crc32(self.id.encode()),
        )  # fmt: skip
        problem = lay_out(bench.spec, case, pitch=it.pitch)
        self._room(bench, problem)
        self.record |= {"examples": 1, "worst": str(case), "reproduce": self._command(), "withdrawn": {}}
        try:
            outcome = judge(bench, problem)
        except Failure as failure:
            self.record |= {"ratio": _number(failure.outcome.ratio), "reading": failure.outcome.reading}
            return str(failure).replace(case.command(), self._command())
        except (KernelError, UsageError) as error:
            self.record |= {"ratio": None, "reading": getattr(error, "kind", "usage")}
            if isinstance(error, KernelError):
                self.note(error, f"case: {case}")
            where = f"  case: {case}\n  reproduce: {self._command()}"
            return f"{row.op}: {row.name} failed, rung large: {error}\n{where}"
        self.record.pop("reproduce")
        told = {"ratio": outcome.ratio, "reading": outcome.reading}
        self.record |= told | {"withdrawn": dict.fromkeys(outcome.withdrawn, 1)}
        return None

    def _room(self, bench: Bench, problem: Problem) -> None:
        """Have memory for the case, or skip."""
        import torch

        results = sum(math.prod(p.shape) * p.itemsize for p in problem.outputs)  # a kernel may return its own
        torch.cuda.empty_cache()  # what the grader's tensors freed counts as free
        if not bench.room(problem.span_bytes, results + BESIDE_BYTES):
            needed = (problem.span_bytes + results + BESIDE_BYTES) / 2**30
            free = torch.cuda.mem_get_info(bench.torch_device)[0] / 2**30
            self.leave_out(f"needs {needed:.0f} GiB of GPU memory, {free:.0f} are free")

    def _command(self) -> str:
        return " ".join([*self.session.words(), f'-m large -k "{self.id}"'])


def declared_for(row: Row) -> Iterator[tuple[Declared, str]]:
    """The large cases of the op that lie in the row's domain, with the dtype that each is tried in."""
    dtype = "bfloat16" if "bfloat16" in row.dtypes else row.dtypes[0]
    for declared in row.spec.large:
        asked = {*declared.sizes, *declared.given, *declared.params}
        stride = "padded" if declared.pitch else "dense"
        takes = "cuda" in row.devices and stride in row.strides and not asked & set(row.without)
        if takes and row.admits(dtype, declared.layout, declared.sizes):
            yield declared, dtype


def ids(row: Row) -> Iterator[str]:
    """The ids of a row's large cases."""
    return (identify(row, f"large-{d.name}", dtype, d.layout) for d, dtype in declared_for(row))


def judge(bench: Bench, problem: Problem, boundary: int = BOUNDARY) -> Outcome:
    """Run the kernel on a problem that fits the arena, and judge what it left there.

    Raises Failure if it is wrong, KernelError if the call failed.
    """
    from rooftest.bench import POISONS, Result
    from rooftest.rungs import LARGE, Failure, Outcome, judge_result

    case, spec, arena = problem.case, bench.spec, bench.arena.bytes
    memory = arena[: problem.span_bytes]
    memory.fill_(POISONS[0])
    _draw(spec, problem, arena)
    index = indices(spec, problem, boundary)
    values = {p.name: take(spec, case.sizes, p.name, p.view(arena), index) for p in problem.inputs}
    before = _hashes(problem, arena)
    for p in problem.outputs:
        for _, piece in pieces(p.view(arena)):
            _bits(piece).fill_(-1)  # the first poison again, over the zeros that the hashes left
    bench.process.call(problem.placements, bench.scalars(case, POISONS[0]))
    outputs = {p.name: take(spec, case.sizes, p.name, p.view(arena), index) for p in problem.outputs}
    found = _unwritten(problem, arena) + _changed(problem, before, _hashes(problem, arena))
    if found:
        raise Failure(Outcome(LARGE, case, float("inf"), "trespass"), "; ".join(found))
    return judge_result(bench, LARGE, case, Result(outputs, None), values)


def indices(spec: Spec, problem: Problem, boundary: int) -> dict[str, list[int]]:
    """The indices that are judged, of each axis whose indices can be judged by themselves."""
    sizes = problem.case.sizes
    near = {axis: {0, sizes[axis] - 1} for axis in spec.separate if axis in sizes}
    past: dict[str, int] = {}
    for p in problem.placements:
        axes = spec.axes_of(p.name, sizes)
        order = sorted(range(len(p.shape)), key=lambda dim: -p.stride[dim])
        for crossed in range(boundary, _last(p) + 1, boundary)[:3]:
            rest = crossed
            for dim in order:
                at = min(rest // p.stride[dim], p.shape[dim] - 1)
                rest -= at * p.stride[dim]
                if axes[dim] in near:
                    near[axes[dim]] |= {at - 1, at, at + 1}
                    if dim == order[0]:
                        past[axes[dim]] = min(at, past.get(axes[dim], at))
    chance = random.Random(problem.case.seed)  # noqa: S311 - it chooses indices, and the same ones again
    for axis, chosen in near.items():
        everywhere = range(sizes[axis])
        chosen &= set(everywhere)
        room = max(JUDGED - len(chosen), 0)
        beyond = [i for i in everywhere[past.get(axis, 0) :] if i not in chosen]
        chosen |= set(chance.sample(beyond, min(room // 2, len(beyond))))
        others = [i for i in everywhere if i not in chosen]
        chosen |= set(chance.sample(others, min(max(JUDGED - len(chosen), 0), len(others))))
    return {axis: sorted(chosen) for axis, chosen in near.items()}


def take(
    spec: Spec, sizes: Mapping[str, int], name: str, tensor: torch.Tensor, index: Mapping[str, Sequence[int]]
) -> torch.Tensor:
    """The chosen indices of a tensor, dense.

    By views, whose addresses are 64 bits wide, rather than by a kernel of torch's: one of those may be on trial.
    """
    import torch

    axes = spec.axes_of(name, sizes)
    for axis, chosen in index.items():
        if axis in axes:
            dim = axes.index(axis)
            tensor = torch.stack([tensor.select(dim, i) for i in chosen], dim)
    return tensor


def pieces(tensor: torch.Tensor, at: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    """A tensor in parts of at most PIECE elements along its first axes, each behind the index that it starts at."""
    inner = tensor[0].numel() if tensor.numel() else 0
    if inner > PIECE:
        for i, part in enumerate(tensor):
            yield from pieces(part, (*at, i))
    elif inner:
        step = PIECE // inner
        for start in range(0, len(tensor), step):
            yield (*at, start), tensor[start : start + step]


def _draw(spec: Spec, problem: Problem, arena: torch.Tensor) -> None:
    """Normal data in all inputs, from the case's seed."""
    import torch

    from rooftest.fills import fill

    case = problem.case
    generator = torch.Generator(arena.device).manual_seed(case.seed)
    depth = case.sizes[spec.contraction] if spec.contraction else 1
    for p in problem.inputs:
        for _, piece in pieces(p.view(arena)):
            precision = spec.tensors[p.name].precision or case.dtype
            piece.copy_(fill(case.fill, piece.shape, precision, generator, depth))


def _last(p: Placement) -> int:
    """The offset of a tensor's last element, from its first."""
    return 0 if 0 in p.shape else sum((n - 1) * s for n, s in zip(p.shape, p.stride, strict=True))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def _hashes(problem: Problem, arena: torch.Tensor) -> torch.Tensor:
    """One hash a MiB of all that is no output, whose elements are zero afterwards.

    sum of word x weight modulo 2^64 with random odd weights: one changed word always shows, several do but for a chance
    of 2^-63.
    """
    import torch

    for p in problem.outputs:
        for _, piece in pieces(p.view(arena)):
            piece.zero_()
    generator = torch.Generator(arena.device).manual_seed(0)
    weights = torch.randint(-(2**63), 2**63 - 1, (WORDS,), generator=generator, device=arena.device) | 1
    found = []
    for part in arena[: problem.span_bytes].view(torch.int64).split(WORDS * 128):  # 128 MiB at a time
        whole = part.numel() // WORDS * WORDS
        found.append((part[:whole].view(-1, WORDS) * weights).sum(1))
        rest = part[whole:]
        found.append((rest * weights[: rest.numel()]).sum().view(1))
    return torch.cat(found)


def _changed(problem: Problem, before: torch.Tensor, after: torch.Tensor) -> list[str]:
    """What was written that is no output, in words; nothing if nothing was."""
    wrong = (before != after).nonzero()
    if not len(wrong):
        return []
    # A rest of no words stands behind every 128 hashes.
    number = int(wrong[0])
    start = (number // 129 * 128 + min(number % 129, 128)) * WORDS * 8
    first, *others = problem.placements
    name = next((p.name for p in reversed(others) if p.offset_bytes < start + WORDS * 8), first.name)
    place = f"in or behind {name}" if start + WORDS * 8 > first.offset_bytes else f"before {name}"
    return [f"changed memory that is no output, {place} ({WORDS * 8} bytes from {start} on of the shared memory)"]


def _unwritten(problem: Problem, arena: torch.Tensor) -> list[str]:
    """Outputs that hold a NaN, which no normal data gives: the poison where nothing was written, or what was read."""
    for p in problem.outputs:
        for at, piece in pieces(p.view(arena)):
            strange = piece.isnan()
            if bool(strange.any()):
                first = strange.nonzero()[0].tolist()
                index = (*at[:-1], at[-1] + first[0], *first[1:])
                return [f"output {p.name} is NaN at {index}: never written, or from memory outside the inputs"]
    return []


def _number(ratio: float) -> float | None:
    return ratio if ratio < float("inf") else None
