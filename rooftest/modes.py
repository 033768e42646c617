"""The ways in which a call is made: plainly, on other streams, captured, watched for waiting, counted, between fences.

Those that exist on CUDA only first call the kernel once, so that compiling and first-time set-up are over, then put the
outputs back to poison. "streams" and "graph" take two calls of the same shapes on tensors of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch

from rooftest import genuine
from rooftest.arena import distinct, write
from rooftest.kernel import Call, Fault, put

# Long against what a stream that does not wait would need to be wrong: a launch reaches the device in some 10 us.
_HOLD_S = 20e-3
_SPIN_HZ = 2.0e9  # no listed GPU's clock is much higher, so a spin lasts at least as long as asked
_LOOKS = 3  # a host that slept through one hold by chance does not sleep through three


def plain(calls: list[Call], repeat: int) -> dict[str, Any]:
    """Call on the current stream."""
    for _ in range(repeat):
        calls[0].run()
    return {}


def batch(calls: list[Call], repeat: int) -> dict[str, Any]:
    """Make all calls, one after the other, each on tensors of its own; on every device."""
    for call in calls * repeat:
        call.run()
    return {}


def fenced(calls: list[Call], repeat: int) -> dict[str, Any]:
    """Call plainly, on tensors that rooftest.fence has moved to the ends of their memory; on every device."""
    return plain(calls, repeat)


def stream(calls: list[Call], repeat: int) -> dict[str, Any]:
    """Call on a side stream that is held up before the inputs arrive on it.

    A kernel that runs anywhere but on the caller's current stream reads NaN, because the inputs are not there yet.
    """
    for call in calls:
        _warm_up(call)
        real = [t.clone() for t in call.inputs]
        for tensor in call.inputs:
            _spoil(tensor)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(repeat):
                _hold(_HOLD_S)
                _write(call.inputs, real)
                call.run()
        torch.cuda.synchronize()
    return {}


def streams(calls: list[Call], repeat: int) -> dict[str, Any]:
    """Make both calls at once, each on a stream of its own; a scratch buffer that they share gets mixed up."""
    for call in _two(calls):
        _warm_up(call)
    sides = [torch.cuda.Stream() for _ in calls]
    for _ in range(repeat):
        for side in sides:
            with torch.cuda.stream(side):
                _hold(_HOLD_S)
        for side, call in zip(sides, calls, strict=True):
            with torch.cuda.stream(side):
                call.run()
        torch.cuda.synchronize()
    return {}


def graph(calls: list[Call], repeat: int) -> dict[str, Any]:
    """Capture the first call; replay it on the second one's contents, then on its own.

    What the replay on the second one's contents gave goes to the second one's outputs.
    """
    first, second = _two(calls)
    with torch.cuda.stream(torch.cuda.Stream()):  # torch asks for a warm-up on the kind of stream that it captures on
        _warm_up(first)
    own = [t.clone() for t in first.inputs]
    captured = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(captured):
            pairs = first.launch()
    except RuntimeError as error:
        # The end of the capture fails too, and says less; it leaves torch on the stream of the capture.
        cause = str(error.__context__ or error).splitlines()[0]
        raise Fault("exception", f"while its launches were captured: {cause}", dead=True) from None
    # What the captured call does not return it writes to the first one's outputs.
    results = first.outputs | {name: result for name, (result, _) in zip(first.returned, pairs, strict=True)}
    for contents, outputs in ((second.inputs, second.outputs), (own, first.outputs)):
        _write(first.inputs, contents)
        for result in results.values():
            _spoil(result)
        for _ in range(repeat):
            captured.replay()
        put([(result, outputs[name]) for name, result in results.items() if result is not outputs[name]])
        torch.cuda.synchronize()
    return {}


def nosync(calls: list[Call], repeat: int) -> dict[str, Any]:
    """Call while the stream is held up: a kernel that waits for the device comes back after the hold has passed.

    torch's own debug mode names the operation that waits; holding the stream finds those that torch can't see.
    Raises Fault of kind "synchronises".
    """
    call = calls[0]
    _warm_up(call)
    start = time.perf_counter()
    call.launch()
    # Ten times what launching takes on an idle device, so that slow launches alone don't outlast the hold.
    hold_s = max(_HOLD_S, 10 * (time.perf_counter() - start))
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(repeat):
            waited = [_waits(call, hold_s)]
            while waited[-1] and len(waited) < _LOOKS:
                waited.append(_waits(call, hold_s))
            if waited[-1]:
                raise Fault("synchronises", f"returned only when the device was done, {_LOOKS} times out of {_LOOKS}")
    return {}


def launches(calls: list[Call], repeat: int) -> dict[str, Any]:
    """Call under CUPTI and count the kernels that the device ran for it, copies and fills apart."""
    call = calls[0]
    call.poison, poison = None, call.poison  # its fills would be counted
    _warm_up(call)
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run() -> None:
        for _ in range(repeat):
            pairs[:] = call.launch()

    names = [e.name for e in genuine.events_of(run)]
    put(pairs)
    call.poison = poison
    if not names:
        return {"note": "not counted: CUPTI gave no activities, another profiler may own it"}
    kernels = [n for n in names if not n.startswith(("Memcpy", "Memset"))]
    listed = ", ".join(dict.fromkeys(n.split("(")[0][:60] for n in kernels))
    return {"launches": len(kernels) // repeat, "note": listed}


MODES: dict[str, Callable[[list[Call], int], dict[str, Any]]] = {
    mode.__name__: mode for mode in (plain, batch, fenced, stream, streams, graph, nosync, launches)
}


def _two(calls: list[Call]) -> list[Call]:
    if len(calls) != 2:
        raise Fault("usage", "this mode needs two sets of tensors")
    return calls


def _warm_up(call: Call) -> None:
    before = [t.clone() for t in call.outputs.values()]
    call.launch()
    torch.cuda.synchronize()
    _write(list(call.outputs.values()), before)


def _write(tensors: list[torch.Tensor], contents: list[torch.Tensor]) -> None:
    for tensor, content in zip(tensors, contents, strict=True):
        write(tensor, content)


def _spoil(tensor: torch.Tensor) -> None:
    distinct(tensor, tensor.stride()).fill_(float("nan") if tensor.is_floating_point() else 0)


def _hold(seconds: float) -> None:
    torch.cuda._sleep(int(seconds * _SPIN_HZ))  # noqa: SLF001 - no public function keeps a stream busy


def _waits(call: Call, hold_s: float) -> bool:
    held = torch.cuda.Event()
    torch.cuda.synchronize()
    _hold(hold_s)
    held.record()
    with _debug_mode():
        pairs = call.launch()
    late = held.query()
    put(pairs)
    torch.cuda.synchronize()
    return late


@contextmanager
def _debug_mode() -> Any:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "called a synchronizing" not in str(error):
            raise
        raise Fault("synchronises", str(error).splitlines()[0]) from None
    finally:
        torch.cuda.set_sync_debug_mode("default")
