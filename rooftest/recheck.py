"""A kernel on the workload that it is timed on, judged by the grader: before, within and after the timed calls.

Contents come from the operating system's randomness, so that nobody can have computed the results before; a failing
case prints its seed, so it can be tried again all the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from rooftest.plan import SHORT_S
from rooftest.rungs import Failure, Outcome, judge_result

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from rooftest.bench import Bench, Result
    from rooftest.case import Case
    from rooftest.problem import Problem

CHANCE = SystemRandom()
TOO_LARGE = "the workload is larger than the memory that grader and kernel can share"
JUDGED = 64
"""Indices of the independent axis that are judged: the first, the last, and random ones."""
SETS, SET_BYTES, ROUNDS = 32, 4 * 2**30, 3
"""Calls of a batch, the most memory that their tensors take together, and batches, of which the fastest counts."""
BATCH_S = 50e-3
"""What a batch should take at most: beyond, the power limit acts, and the slowest kernels would take minutes."""
ROUND_S = 2e-3
"""What a batch costs beside its calls: a message each way, tensors bound to arguments, a wait for the device."""
SLACK = 1.25
"""One product on one GPU has read up to 17 % apart with what ran just before; what is beyond a quarter is a lie."""
CONFIRMED_S = 3 * SHORT_S
"""From this time on a call outlasts its own launch from Python, so that a batch takes as long as its calls together."""


def seed() -> int:
    """A seed that nobody can foretell."""
    return CHANCE.randrange(2**31)


def workload(bench: Bench, case: Case) -> Outcome | None:
    """Judge the kernel on one call.

    None where grader and kernel can't share memory enough. Raises Failure and KernelError as rungs.check does.
    """
    from rooftest.problem import draw, lay_out

    problem = lay_out(bench.spec, case)
    if not bench.room(problem.span_bytes):
        return None
    values = draw(bench.spec, case, bench.torch_device)
    return _judge(bench, case, bench.run(problem, values), values)


def timed(bench: Bench, case: Case, request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Have the workload of `case` timed as `request` says, judge one of the timed calls, and hold a clock beside it.

    Returns what rooftest.measure.measure returned, invalid where the grader has a doubt, and what it looked at. Raises
    Failure and KernelError.
    """
    from rooftest.problem import lay_out

    problem = lay_out(bench.spec, case)
    shared = bench.room(problem.span_bytes)
    request = {**request, "workload": dict(case.sizes), "dtype": case.dtype, "layout": case.layout, "seed": case.seed}
    begun = time.perf_counter()
    got = bench.process.measure(request, problem.placements if shared else ())
    wall = got.setdefault("wall", {})
    wall["process_s"] = time.perf_counter() - begun
    told, looked, doubts = got.get("kept"), dict[str, Any](), list[str | None]()
    if not shared:
        looked["timed"] = f"no: {TOO_LARGE}"
    elif told is None:
        looked["timed"] = "no: the kernel's process kept no call"
        doubts.append("no timed call could be judged")
    else:
        outcome = _kept(bench, case, problem, {"op": case.op, "row": case.kernel, **request}, told["shifts"])
        looked["timed"] = f"yes, call {told['call']} of {told['of']}: worst ratio {outcome.ratio:.3g}"
    wall["judge_s"] = time.perf_counter() - begun - wall["process_s"]
    interval = got["calls"].get(case.kernel, {}).get("timing", {}).get("ci95_s")
    if interval and interval[0] > 0 and "simulated" not in request:  # simulated seconds are not this clock's
        begun = time.perf_counter()
        seen = batch(bench, case, interval[0])
        wall["stopwatch_s"] = time.perf_counter() - begun
        if seen is not None:
            looked["stopwatch"] = {**seen.as_dict(), "confirms": seen.confirms(interval[1])}
            # A row's `prepare` runs within the grader's seconds, and outside the reported ones.
            doubts.append(None if bench.row.prepare else seen.doubt(*interval))
    found = [doubt for doubt in doubts if doubt]
    if found and got["status"] == "ok":
        got |= {"status": "invalid", "reasons": found}
    return got, looked


def _kept(bench: Bench, case: Case, problem: Problem, request: Mapping[str, Any], shifts: Mapping[str, int]) -> Outcome:
    """Judge the timed call whose tensors the kernel's process left in the arena, on inputs that are drawn anew here."""
    import torch

    from rooftest.bench import Result
    from rooftest.closures import tensors
    from rooftest.fresh import flat, turn

    left = {p.name: p.view(bench.arena.bytes).clone() for p in problem.placements}
    values, changed = tensors(bench.spec, bench.torch_device, request), []
    for name, tensor in values.items():
        if name in shifts:
            turn(flat(tensor), flat(tensor).clone(), shifts[name])
        if not torch.equal(tensor, left[name]):
            changed.append(f"input {name} was modified")
    outputs = {p.name: left[p.name] for p in problem.outputs}
    try:
        return _judge(bench, case, Result(outputs, "; ".join(changed) or None), values)
    except Failure as failure:
        first, _, rest = str(failure).partition("\n")
        failure.args = (
            f"{first}\n  in a timed call, on contents that no case repeats; right before it was timed\n{rest}",
        )
        raise


@dataclass(frozen=True)
class Batch:
    """Calls on contents of their own, made one after the other between two readings of the grader's clock."""

    calls: int
    wall_s: float
    outcome: Outcome

    def doubt(self, low_s: float, high_s: float) -> str | None:
        """Why a time between `low_s` and `high_s` a call can't be true, or None."""
        said = f"the grader saw {self.calls} calls take {self.wall_s * 1e3:.4g} ms, "
        if high_s >= CONFIRMED_S and self.wall_s > ROUND_S + SLACK * self.calls * high_s:
            return f"{said}{high_s * 1e3:.4g} ms each was reported"
        if self.wall_s * SLACK < self.calls * low_s:
            return f"{said}less than the {low_s * 1e3:.4g} ms each that was reported: timed calls do something else"
        return None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"calls": self.calls, "wall_s": self.wall_s, "ratio": self.outcome.ratio}

    def confirms(self, high_s: float) -> bool:
        """Whether the grader's clock alone shows that a call takes no longer than reported."""
        return self.wall_s <= ROUND_S + SLACK * self.calls * high_s


def batch(bench: Bench, case: Case, call_s: float) -> Batch | None:
    """Time the kernel from outside its process, and judge one of the calls, chosen when nobody can know.

    `call_s` is what a call is said to take. None where grader and kernel can't share memory enough. Raises Failure and
    KernelError as rungs.check does.
    """
    from rooftest.problem import draw, lay_out

    first = lay_out(bench.spec, case)
    count = max(1, min(SETS, SET_BYTES // first.span_bytes, int(BATCH_S / call_s)))
    while count > 1 and not bench.room(count * first.span_bytes):
        count //= 2
    if not bench.room(first.span_bytes):
        return None
    walls = []
    for _ in range(ROUNDS):
        problems = [first]
        while len(problems) < count:
            problems.append(problems[-1].next())
        problems = [replace(p, case=replace(case, seed=seed())) for p in problems]
        chosen = CHANCE.randrange(count)
        result, wall_s = bench.run_batch(problems, chosen)
        walls.append(wall_s)
        values = draw(bench.spec, problems[chosen].case, bench.torch_device)
        outcome = _judge(bench, problems[chosen].case, result, values)
    return Batch(count, min(walls), outcome)


def _judge(bench: Bench, case: Case, result: Result, values: dict[str, torch.Tensor]) -> Outcome:
    """The first, the last and random indices of the independent axis."""
    import torch

    axis = bench.spec.independent
    if axis is not None and case.sizes.get(axis, 0) > JUDGED:
        last = case.sizes[axis] - 1
        picked = [0, last, *(CHANCE.randrange(1, last) for _ in range(JUDGED - 2))]
        index = torch.tensor(picked, device=bench.torch_device)
        values = bench.spec.only(values, index, case.sizes)
        result = replace(result, outputs=bench.spec.only(result.outputs, index, case.sizes))
    return judge_result(bench, "bound", case, result, values)
