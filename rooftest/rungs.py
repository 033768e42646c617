"""The ladder: one kind of check a rung, each run on one drawn case.

An alarm is a kernel bug, a wrong engine row or a wrong contract: never a reason to rerun, widen or skip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rooftest.case import Case
from rooftest.process import KernelError
from rooftest.rows import Row

if TYPE_CHECKING:
    import torch

    from rooftest.bench import Bench, Result
    from rooftest.fills import Fill
    from rooftest.problem import Problem


@dataclass(frozen=True)
class Outcome:
    """What a rung read on one case: the worst ratio (error over allowed; at most 1 is right) and whose it is."""

    rung: str
    case: Case
    ratio: float
    reading: str
    withdrawn: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()  # the row's claims that this case put to the test
    broke: str | None = None  # the claim that it broke, if one is to blame


class Failure(AssertionError):
    """A kernel that is wrong on a case; the text is for people, the outcome for the report."""

    def __init__(self, outcome: Outcome, found: str) -> None:
        self.outcome = outcome
        case = outcome.case
        super().__init__(
            f"{case.op}: {case.kernel} is wrong, rung {outcome.rung} ({ABOUT[outcome.rung]})\n"
            f"  {found}\n  case: {case}\n  reproduce: {case.command()}"
        )


@dataclass(frozen=True)
class Rung:
    """One rung. `fill` says which fills it draws, `low` the least size of every axis, `claim` what must be claimed."""

    level: str
    about: str
    run: Callable[[Bench, Case], Outcome]
    fill: Callable[[Fill], bool]
    low: int = 0
    claims: tuple[str, ...] = ()
    needs: str | None = None  # what the specification must state for the rung to have something to check

    def applies(self, row: Row) -> str | None:
        """None if the rung applies to this row, else the reason for leaving it out."""
        if self.needs and not getattr(row.spec, self.needs):
            return f"specs/{row.op}.py states no {self.needs}"
        if self.claims and not set(self.claims) & set(row.claims):
            return f"claims none of: {', '.join(self.claims)}"
        return None


CACHED_BYTES = 2 * 2**30
"""What torch may keep of a GPU's memory between examples. Those of a test have different sizes, it would keep blocks
of each: 15 workers beside each other filled an H200."""


def check(bench: Bench, rung: str, case: Case) -> Outcome:
    """Runs one rung on one case.

    Raises Failure if the kernel is wrong, KernelError if the call itself failed.
    """
    import torch

    # Tensors are small on a CPU: threads that wait for each other cost a hundred times the arithmetic. An example is
    # hundreds of small torch calls; in inference mode each takes a fifth less.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return RUNGS[rung].run(bench, case)
    finally:
        torch.set_num_threads(threads)
        if bench.torch_device != "cpu" and torch.cuda.memory_reserved(bench.torch_device) > CACHED_BYTES:
            torch.cuda.empty_cache()


def judge_result(bench: Bench, rung: str, case: Case, result: Result, values: dict[str, torch.Tensor]) -> Outcome:
    """The outputs against the reference, every element; statistics where the fill's signs are random."""
    from rooftest.fills import FILLS
    from rooftest.formats import PRECISIONS
    from rooftest.judge import conform

    if result.trespass:
        raise Failure(Outcome(rung, case, float("inf"), "trespass"), result.trespass)
    reference = bench.spec.reference
    assert reference is not None  # session.kinds leaves such ops out
    formats = {n: PRECISIONS[t.precision or case.dtype].output for n, t in bench.spec.outputs.items()}
    given = {n: t for n, t in values.items() if not _unread(bench, case, n)}
    verdicts = conform(
        result.outputs,
        lambda: reference(given, case.params, bench.contract(case.dtype)),
        formats,
        # What repeats shares its errors: they are not as many as there are elements.
        statistical=FILLS[case.fill].random_sign and "broadcast" not in case.stride,
    )
    worst = Outcome(rung, case, 0.0, "bit-exact")
    withdrawn: tuple[str, ...] = ()
    for name, verdict in verdicts.items():
        withdrawn += verdict.withdrawn
        if verdict.ratio > worst.ratio:
            worst = Outcome(rung, case, verdict.ratio, verdict.reading)
        if verdict.ratio > 1:
            raise Failure(worst, f"output {name}: {verdict.explain()}")
    return Outcome(rung, case, worst.ratio, worst.reading, withdrawn)


def _unread(bench: Bench, case: Case, name: str) -> bool:
    rule = bench.spec.inputs[name].unread_if
    return rule is not None and case.params.get(rule[0]) == rule[1]


def _prepare(bench: Bench, case: Case) -> tuple[Problem, dict[str, torch.Tensor]]:
    from rooftest.problem import draw, lay_out

    problem = lay_out(bench.spec, case)
    bench.hold(problem)  # before anything of that size is drawn
    return problem, draw(bench.spec, case, bench.torch_device)


def _judged(rung: str) -> Callable[[Bench, Case], Outcome]:
    def run(bench: Bench, case: Case) -> Outcome:
        problem, values = _prepare(bench, case)
        return judge_result(bench, rung, case, bench.run(problem, values), values)

    return run


def _contract(bench: Bench, case: Case) -> Outcome:
    """Two poisons around the tensors, then fences, then one of the ways of being called that the kernel claims."""
    from rooftest.bench import POISONS

    problem, values = _prepare(bench, case)
    first, second = (bench.run(problem, values, poison) for poison in POISONS)
    outcome = judge_result(bench, "contract", case, first, values)
    tried: tuple[str, ...] = ()
    if "deterministic" in bench.row.claims and not second.trespass:
        _same_bits("contract", case, first, second, "two contents of the memory outside its inputs")
        tried = ("deterministic",)
    else:
        outcome = max(outcome, judge_result(bench, "contract", case, second, values), key=lambda o: o.ratio)
    if case.seed % FENCED_EVERY == 0:
        outcome = _fenced(bench, case, problem, values, outcome)
    modes = [(claim, m) for claim, ms in MODES.items() if claim in bench.row.claims for m in ms]
    if modes and bench.device.startswith("cuda") and case.seed % MODE_EVERY == 0:
        claim, mode = modes[case.seed // MODE_EVERY % len(modes)]
        try:
            _called(bench, case, mode, problem, values)
        except Failure as failure:
            failure.outcome = replace(failure.outcome, broke=claim)
            raise
        except KernelError as error:
            error.claim = claim
            raise
        tried += (claim,)
    return replace(outcome, tried=tried)


# Of ten examples, the fewest that a profile draws, about three. Each adds two calls to the two plain ones, one for each
# end: on an H200 1.5 to 1.9 ms, a plain one 1.5 to 1.6 ms (step4_dot, 64^3 to 2100 x 2100 x 160). Not one end by turns:
# Hypothesis draws a seed again and again, and the seeds of a whole test may all stand for the same end.
FENCED_EVERY = 3


def _fenced(bench: Bench, case: Case, problem: Problem, values: dict[str, torch.Tensor], outcome: Outcome) -> Outcome:
    """Tensors end, or begin, where their memory does: an access outside them crashes though its value goes nowhere."""
    from rooftest.bench import SIDES

    for side in SIDES:
        try:
            result = bench.run_fenced(problem, values, side)
        except KernelError as error:
            if error.kind == "unfenced":
                return replace(outcome, withdrawn=(*outcome.withdrawn, "fenced"))
            raise
        outcome = max(outcome, judge_result(bench, "contract", case, result, values), key=lambda o: o.ratio)
    return outcome


# A call in a mode holds a stream for 20 ms or more (rooftest.modes) to see who waits for it: not every case can afford
# it.
MODE_EVERY = 5
# Ways of being called, by the claim that promises them.
MODES = {
    "stream-safe": ("stream", "streams", "nosync"),
    "capturable": ("graph",),
    "single-launch": ("launches",),
}


def _called(bench: Bench, case: Case, mode: str, problem: Problem, values: dict[str, torch.Tensor]) -> None:
    from rooftest.problem import draw

    if mode in ("streams", "graph"):
        fresh = draw(bench.spec, replace(case, seed=case.seed ^ 1), bench.torch_device)
        for result, contents in zip(bench.run_twice(problem, values, fresh, mode), (values, fresh), strict=True):
            judge_result(bench, "contract", case, result, contents)  # the case of both: it alone tries this mode again
        return
    result = bench.run(problem, values, mode=mode)
    judge_result(bench, "contract", case, result, values)
    if mode == "launches" and result.launches is not None and result.launches > 1:
        raise Failure(
            Outcome("contract", case, float("inf"), "launches"), f"claims a single launch and made {result.launches}"
        )


_INTEGERS = {1: "uint8", 2: "int16", 4: "int32"}  # torch's names, by bytes of an element


def _same_bits(
    rung: str, case: Case, first: Result, second: Result, between: str, claim: str = "deterministic"
) -> None:
    """Two outputs bit for bit: a NaN is equal to itself, 0 is not equal to -0."""
    import torch

    for name, one in first.outputs.items():
        two = second.outputs[name]
        as_bits = getattr(torch, _INTEGERS[one.element_size()])
        differs = one.view(as_bits) != two.view(as_bits)
        if bool(differs.any()):
            index = tuple(differs.nonzero()[0].tolist())
            was, became = float(one[index]), float(two[index])
            found = f"output {name} differs between {between}, first at {index}: {was!r} and {became!r}"
            raise Failure(Outcome(rung, case, float("inf"), "bits", broke=claim), found)


def _determinism(bench: Bench, case: Case) -> Outcome:
    problem, values = _prepare(bench, case)
    first = bench.run(problem, values)
    if "deterministic" in bench.row.claims:
        for _ in range(2):
            _same_bits("determinism", case, first, bench.run(problem, values), "two calls on the same inputs")
    looked = "batch-invariant" in bench.row.claims and _alone(bench, case, first, values)
    outcome = judge_result(bench, "determinism", case, first, values)
    tried = {"deterministic": "deterministic" in bench.row.claims, "batch-invariant": looked}
    return replace(outcome, tried=tuple(claim for claim, was in tried.items() if was))


def _alone(bench: Bench, case: Case, among: Result, values: dict[str, torch.Tensor]) -> bool:
    """One index of the independent axis by itself: bit for bit what it was among the others; whether there was one."""
    import torch

    from rooftest.problem import lay_out

    spec, axis = bench.spec, bench.spec.independent
    if axis is None or not case.sizes.get(axis):
        return False
    index = torch.tensor([case.seed % case.sizes[axis]], device=bench.torch_device)
    single = replace(case, sizes={**case.sizes, axis: 1})
    if not bench.row.admits(single.dtype, single.layout, single.sizes):
        return False
    by_itself = bench.run(lay_out(spec, single), spec.only(values, index, case.sizes))
    there = replace(among, outputs=spec.only(among.outputs, index, case.sizes))
    between = f"{axis}={int(index)} among the others and alone"
    _same_bits("determinism", case, there, by_itself, between, "batch-invariant")
    return True


def _law(bench: Bench, case: Case) -> Outcome:
    """One metamorphic law of the op, chosen by the seed: bit for bit, since the algebra is exact."""
    params = {**{name: values[0] for name, values in bench.spec.params.items()}, **case.params}
    laws = [w for w in bench.spec.laws if not (w.unless and params[w.unless[0]] == w.unless[1])]
    law = laws[case.seed % len(laws)]
    # A law changes single elements, and a tensor that repeats has none.
    case = replace(case, stride=case.stride.replace("broadcast", "dense"))
    problem, values = _prepare(bench, case)
    base = bench.run(problem, values)
    outcome = judge_result(bench, "law", case, base, values)
    other = bench.run(problem, law.change({n: t.clone() for n, t in values.items()}))
    for name, got in other.outputs.items():
        wrong = law.wrong(base.outputs[name], got)
        if bool(wrong.any()):
            index = tuple(wrong.nonzero()[0].tolist())
            raise Failure(
                Outcome("law", case, float("inf"), law.name),
                f"output {name} breaks the law {law.name!r} ({law.about}) at {index}: "
                f"before {float(base.outputs[name][index])!r}, after {float(got[index])!r}",
            )
    return outcome


RUNGS = {
    "contract": Rung("L0", "what the contract says beside the numbers", _contract, lambda _: True),
    "exact": Rung("L1", "data whose result is exact, bit for bit", _judged("exact"), lambda f: f.exact),
    "law": Rung(
        "L2",
        "laws that hold bit for bit",
        _law,
        lambda f: f.name == "normal",
        low=1,
        claims=("deterministic",),
        needs="laws",
    ),
    "bound": Rung(
        "L3/L4", "every element within its error bar, and all together", _judged("bound"), lambda f: not f.exact
    ),
    "determinism": Rung(
        "L5",
        "the same inputs, the same bits",
        _determinism,
        lambda f: f.name == "normal",
        claims=("deterministic", "batch-invariant"),
    ),
}
LARGE = "large"  # the rung whose cases are declared by the op, not drawn: rooftest.large
ABOUT = {name: rung.about for name, rung in RUNGS.items()} | {LARGE: "tensors and offsets past 2^31 elements"}
