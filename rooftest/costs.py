"""What a call costs beside device time: its first time, its launch, its memory. In the kernel's own process."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
import triton
from triton.runtime.autotuner import Autotuner

from rooftest.cuda import Device

LAUNCHES, LAUNCHES_S = 50, 50e-3
"""Launches whose host time is read, and what they may take together with the waits between them."""
FEWEST = 5


class First:
    """The first call on tensors of each kind in this process: its host time, and what Triton did for it.

    `compiled` kernels were built, `cached` ones came from Triton's cache on disk; neither: the process had them
    already, or they are not Triton's. `tuning_s` holds the compile time of the autotuner's candidates too.
    """

    def __init__(self) -> None:
        self.told: dict[str, dict[str, Any]] = {}
        self._compiled: list[tuple[float, bool]] = []
        self._tuned_s = 0.0
        triton.knobs.compilation.listener = self._listen
        self._watch_tuning()

    def _listen(self, *, src: Any, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool) -> None:
        del src, metadata, metadata_group
        self._compiled.append((times.total / 1e6, cache_hit))

    def _watch_tuning(self) -> None:
        """Time each candidate of Triton's autotuner: up to 3.6 no public hook does."""
        bench = Autotuner._bench  # noqa: SLF001 - see above

        def timed(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            begun = perf_counter()
            try:
                return bench(tuner, *args, **kwargs)
            finally:
                self._tuned_s += perf_counter() - begun

        Autotuner._bench = timed  # noqa: SLF001

    @contextmanager
    def watch(self, tensors: Sequence[torch.Tensor], wait: Callable[[], None]) -> Iterator[None]:
        """Around a call on these tensors: kept if it is the first one on tensors of such dtypes, sizes and strides."""
        key = kind(tensors)
        if key in self.told:
            yield
            return
        self._compiled, self._tuned_s = [], 0.0
        wait()
        begun = perf_counter()
        yield
        wait()
        seconds = perf_counter() - begun
        built = [s for s, hit in self._compiled if not hit]
        self.told[key] = {
            "call_s": seconds,
            "compile_s": sum(built),
            "compiled": len(built),
            "cached": len(self._compiled) - len(built),
            "tuning_s": self._tuned_s,
        }


def kind(tensors: Sequence[torch.Tensor]) -> str:
    """What tells one first call from another."""
    return ", ".join(f"{t.dtype} {tuple(t.shape)} {t.stride()}" for t in tensors)


def host_s(call: Callable[[], object], device: Device) -> float:
    """Median host time from a call to its return, the device idle before, so that no full queue holds it up.

    A call that waits for the device takes the device's time too.
    """
    taken: list[float] = []
    begun = device.now()
    while len(taken) < FEWEST or (len(taken) < LAUNCHES and device.now() - begun < LAUNCHES_S):
        device.synchronize()
        first = device.now()
        call()
        taken.append(device.now() - first)
    device.synchronize()
    return statistics.median(taken)


def memory(
    call: Callable[[], object], given: Sequence[torch.Tensor], device: str, forget: Callable[[], None]
) -> dict[str, Any]:
    """Bytes of one call: `workspace_bytes` beyond inputs and outputs at its worst, `peak_bytes` with them.

    As requested from torch's allocator, so without its rounding, and the same in every run. `given`: the tensors that
    the call gets; `forget` lets go of what it returned. Null with the reason where torch's allocator does not see it.
    What a call takes once and keeps for good is not in it, nor what it takes outside torch and gives back at once.
    """
    nothing = {"peak_bytes": None, "workspace_bytes": None}
    if not device.startswith("cuda"):
        return {**nothing, "reason": f"{device} has no allocator that tells"}
    call()
    forget()
    torch.cuda.synchronize()
    outside, before = _outside(), _requested("current")
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    held, peak = _requested("current"), _requested("peak")
    grown = _outside() - outside
    forget()
    if before is None or held is None or peak is None:
        return {**nothing, "reason": "torch's allocator keeps no statistics (PYTORCH_NO_CUDA_MEMORY_CACHING is set)"}
    if grown > 0:
        return {**nothing, "reason": f"a call keeps {grown} bytes that it took outside torch's allocator"}
    own = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in given}
    return {"peak_bytes": sum(own.values()) + peak - before, "workspace_bytes": max(0, peak - held), "reason": ""}


def _requested(which: str) -> int | None:
    found: Mapping[str, int] = torch.cuda.memory_stats()
    return found.get(f"requested_bytes.all.{which}")


def _outside() -> int:
    """Bytes of the device that are in use and not torch's, by whomever."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()
