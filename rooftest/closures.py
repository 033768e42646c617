"""The calls that are timed: a workload's tensors, made in the kernel's process, and functions that launch on them.

A request is JSON: {"op", "row": the kernel's name, "workload": sizes by axis, "dtype", "layout"} and, where wanted,
{"plan": fields of rooftest.plan.Plan, "params", "given": optional inputs, "config", "seed", "reference", "simulated"}.
"reference" is {"name", "call", "args", "prepare", "root"} of the row that is timed beside it; "simulated", for tests on
a CPU, the fields of rooftest.simulated.Knobs: torch's operations then take time on a simulated GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from rooftest import costs, genuine
from rooftest.case import Case
from rooftest.formats import storage
from rooftest.fresh import Fresh
from rooftest.kernel import Call, Fault, Kernel
from rooftest.measure import measure
from rooftest.plan import Plan
from rooftest.problem import draw, strides
from rooftest.roofline import Work
from rooftest.spec import Spec, load


class Launch:
    """A call as the timer makes it; it holds what the function returned last."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Launch; the earlier result is let go first, so that its memory can be had again."""
        self.pairs = []
        self.pairs = self.call.launch()
        return self.pairs

    def forget(self) -> None:
        """Let go of the last result."""
        self.pairs = []

    def results(self) -> dict[str, torch.Tensor]:
        """What the last call wrote, by the op's names."""
        returned = dict(zip(self.call.returned, (result for result, _ in self.pairs), strict=True))
        return {**self.call.outputs, **returned}


def timed(
    kernel: Kernel,
    device: str,
    request: Mapping[str, Any],
    views: Mapping[str, torch.Tensor] | None = None,
    first: costs.First | None = None,
) -> dict[str, Any]:
    """Measures the kernel and its reference side by side; returns what rooftest.measure.measure does, and more.

    "kept", which call the grader may judge; "first", what `first` saw of the process's first call on such tensors;
    "memory", what a call takes.
    `views`: the memory shared with the grader, by the op's names, into which the inputs and outputs of one timed call
    are copied; "kept" then says which call it was. Raises Fault of kind "usage" on a device without a timer.
    """
    simulated = request.get("simulated")
    if not device.startswith("cuda") and simulated is None:
        raise Fault("usage", f"there is no timing on {device}")
    spec, plan = load(request["op"]), _plan(request.get("plan", {}))
    with torch.no_grad():
        begun = genuine.perf_counter()
        inputs = tensors(spec, device, request)
        wait = (lambda: None) if device == "cpu" else genuine.synchronize
        with first.watch(list((views or inputs).values()), wait) if first else nullcontext():
            calls = closures(kernel, spec, device, request, inputs)
        judged = calls[request["row"]]
        given = [*judged.call.inputs, *(t for n, t in judged.call.outputs.items() if n not in judged.call.returned)]
        memory = costs.memory(judged, given, device, judged.forget)
        prepare_s = genuine.perf_counter() - begun
        constant = (kernel.prepared,) if kernel.prepare is not None else ()
        fresh = Fresh(inputs, judged.call.outputs, request["row"], judged.results, constant)
        if simulated is None:
            record = measure(calls, plan, work(spec, request), contents=fresh)
        else:
            from rooftest.simulated import Knobs, Simulated

            gpu = Simulated(Knobs(**simulated))
            record = measure({n: gpu.runs(c) for n, c in calls.items()}, plan, work(spec, request), gpu, gpu, fresh)
        for name, view in (views or {}).items() if fresh.told else ():
            view.copy_(fresh.kept[name])
        told = first.told.get(costs.kind(list((views or inputs).values()))) if first else None
        record["wall"]["prepare_s"] = prepare_s
        return {**record, "kept": fresh.report(), "first": told, "memory": memory}


def closures(
    kernel: Kernel, spec: Spec, device: str, request: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]
) -> dict[str, Launch]:
    """One function for the kernel and one for its reference, by name, each called once already, so compiled.

    Both read `inputs`, standard normal from the seed and never zeros: on zeros a device draws less power and clocks
    higher. Each writes outputs of its own.
    """
    kernels = {request["row"]: (kernel, request.get("config"))}
    if request.get("reference"):
        peer = {"prepare": None, "configs": None, "root": "", "args": {}} | request["reference"]
        kernels[peer["name"]] = (Kernel(peer, peer["args"], tuple(spec.outputs), spec.laid_out), None)
    made: dict[str, Launch] = {}
    for name, (each, config) in kernels.items():
        call = _bind(each, spec, inputs, device, request, config)
        call.run()
        made[name] = Launch(call)
    torch.cuda.synchronize() if device != "cpu" else None
    return made


def tensors(spec: Spec, device: str, request: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The workload's inputs, dense, in its layout."""
    case = Case(
        request["op"], request["row"], request["dtype"], request["layout"], request["workload"],
        params=request.get("params", {}), given=tuple(request.get("given", ())), seed=request.get("seed", 0),
    )  # fmt: skip
    letters = dict(zip(spec.laid_out, case.layout, strict=True))
    placed = {}
    for name, values in draw(spec, case, device).items():
        stride = strides(tuple(values.shape), "dense", transposed=letters.get(name) == "t")
        placed[name] = torch.empty_strided(values.shape, stride, dtype=values.dtype, device=device).copy_(values)
    return placed


def work(spec: Spec, request: Mapping[str, Any]) -> Work:
    """What one call must do, from the specification."""
    read, written = spec.least_bytes(request["workload"], request["dtype"], tuple(request.get("given", ())))
    return Work(spec.flop_of(request["workload"], request.get("params")), read, written, request["dtype"])


def _bind(
    kernel: Kernel,
    spec: Spec,
    inputs: Mapping[str, torch.Tensor],
    device: str,
    request: Mapping[str, Any],
    config: str | None,
) -> Call:
    takes = {n for n in (*spec.params, "precision") if kernel.names.get(n, n) in kernel.parameters}
    params = request.get("params", {})
    for name, value in params.items():
        if name not in takes and value != spec.params[name][0]:
            raise Fault("usage", f"{request['row']} or its reference takes no {name}, so {name}={value} can't be timed")
    scalars: dict[str, Any] = {n: v for n, v in params.items() if n in takes}
    if "precision" in takes and request["dtype"] in ("float32", "tf32"):
        scalars["precision"] = request["dtype"]  # the same storage: nothing else tells the kernel
    scalars |= {"config": config} if config else {}
    outputs = {
        name: torch.empty(
            declared.shape(request["workload"]),
            dtype=storage(declared.precision or request["dtype"]),
            device=device,
        )
        for name, declared in spec.outputs.items()
        if not declared.optional or name in request.get("given", ())
    }
    return kernel.bind({**inputs, **outputs}, scalars)


def _plan(fields: Mapping[str, Any]) -> Plan:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return Plan(**values)
