"""Attainable ceilings: what the best of a few kernels reached on this very GPU, kept by its UUID and driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rooftest import store
from rooftest.cuda import Cuda, Device
from rooftest.energy import window
from rooftest.errors import UsageError
from rooftest.nvml import Identity, Monitor
from rooftest.plan import Plan
from rooftest.roofline import Ceiling
from rooftest.timer import event_offset_s, time_calls
from rooftest.traffic import moved_bytes

VERSION = 1
# 30 samples each: the best of several candidates is looked for, and they are 1 to 4 ms long, timed within 0.2 %.
QUICK = Plan(looks=(30,), warmup_s=0.05, cap_s=3.0, timer="events")
KEYS = ("version", "uuid", "driver", "measured", "bytes_per_s", "flop_per_s", "l2_bytes")


@dataclass(frozen=True)
class Candidate:
    """A call and what it does: FLOP, or bytes of device memory."""

    call: Callable[[], object]
    amount: float


def best(candidates: Mapping[str, Candidate], device: Device, plan: Plan = QUICK) -> dict[str, Any]:
    """Return {value, kernel, all: {kernel: value}, clock_hz}: the highest amount per second and who reached it."""
    times = time_calls({name: c.call for name, c in candidates.items()}, device, plan)
    rates = {name: candidates[name].amount / s.median_s for name, s in times.items() if s.median_s}
    if not rates:
        raise UsageError("no candidate for a ceiling could be timed.")
    winner = max(rates, key=rates.__getitem__)
    clocks = times[winner].call_hz
    return {
        "value": rates[winner],
        "kernel": winner,
        "all": rates,
        "clock_hz": sum(clocks) / len(clocks) if clocks else None,
    }


def _bandwidths(device: Cuda, bytes_each: int) -> dict[str, dict[str, Candidate]]:
    """Return candidates of copy, read and write; bytes counted as the roofline does: reads + writes beyond the L2."""
    import torch

    from rooftest import probes

    n = bytes_each // 4
    x = torch.randint(1, 2**31 - 1, (n,), dtype=torch.int32, device="cuda")
    y = torch.empty_like(x)
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    out: dict[str, dict[str, Candidate]] = {"copy": {}, "read": {}, "write": {}}
    copied, read, written = 8 * n - device.l2_bytes, 4 * n, 4 * n - device.l2_bytes

    def copy(block: int, warps: int) -> Callable[[], None]:
        return lambda: probes.rooftest_copy[(-(-n // block),)](x, y, n, BLOCK=block, num_warps=warps)

    def write(block: int, warps: int) -> Callable[[], None]:
        return lambda: probes.rooftest_write[(-(-n // block),)](y, n, 7, BLOCK=block, num_warps=warps)

    def reading(block: int, steps: int, warps: int) -> Callable[[], None]:
        grid = (-(-n // (block * steps)),)
        return lambda: probes.rooftest_read[grid](x, sink, n, BLOCK=block, STEPS=steps, num_warps=warps)

    for block, warps in ((2048, 4), (8192, 8)):
        out["copy"][f"triton copy {block}"] = Candidate(copy(block, warps), copied)
        out["write"][f"triton write {block}"] = Candidate(write(block, warps), written)
    for block, steps, warps in ((4096, 4, 8), (8192, 8, 8)):
        out["read"][f"triton read {block}x{steps}"] = Candidate(reading(block, steps, warps), read)
    out["copy"]["torch copy_"] = Candidate(lambda: y.copy_(x), copied)
    out["write"]["torch fill_"] = Candidate(lambda: y.fill_(7), written)
    return out


# Tile (M, N, K), warps and programs a multiprocessor of the resident probe: two warpgroups with 64 x 256 accumulators
# each fill the registers of one program; four warps with one leave room for two programs.
RESIDENT = {
    "bfloat16": (((128, 256, 64), 8, 1), ((64, 256, 64), 4, 2)),
    "float16": (((128, 256, 64), 8, 1), ((64, 256, 64), 4, 2)),
    "tf32": (((128, 256, 32), 8, 1),),
    "float8": (((128, 256, 128), 8, 1), ((64, 256, 128), 4, 2)),
}
ROUNDS_S = 1e-3
"""About as long as a resident probe runs: within a burst, and long against the events' uncertainty."""


def _plain(a: Any, b: Any, into: Any) -> None:
    import torch

    torch.mm(a, b, out=into)


def _scaled(a: Any, b: Any, one: Any) -> None:
    import torch

    torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)  # noqa: SLF001


def _matrices(device: Cuda, precision: str, rate: float) -> dict[str, Candidate]:
    """Return the candidates of one precision; `rate` (FLOP/s, rough) sets the resident probe's length."""
    import torch

    from rooftest import probes

    dtype = {"tf32": torch.float32, "float32": torch.float32, "float8": torch.float8_e4m3fn}.get(precision)
    dtype = dtype or getattr(torch, precision)

    def randn(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda").to(dtype)

    out: dict[str, Candidate] = {}
    sms = int(device.properties.multi_processor_count)
    for (m, n, k), warps, each in RESIDENT.get(precision, ()):
        a, b, c = randn(m, k), randn(n, k), torch.zeros(sms * each, device="cuda")
        loops = max(1, int(rate * ROUNDS_S / (2 * m * n * k * sms * each)))

        def resident(
            a: Any = a,
            b: Any = b,
            c: Any = c,
            loops: int = loops,
            warps: int = warps,
            tile: tuple[int, ...] = (m, n, k),
        ) -> None:
            how = "tf32" if precision == "tf32" else "ieee"
            probes.rooftest_matrix[(c.numel(),)](a, b, c, loops, *tile, PRECISION=how, num_warps=warps)

        out[f"triton resident {m}x{n}x{k} x{each}"] = Candidate(resident, 2.0 * m * n * k * loops * sms * each)
    for size in (4096, 8192):
        if precision == "float32" and size > 4096:
            continue  # 22 ms
        a, b = randn(size, size), randn(size, size)
        if precision == "float8":
            name, into = "torch._scaled_mm", torch.ones((), device="cuda")
        else:
            name, into = "torch.mm", torch.empty_like(a)
        product = _scaled if precision == "float8" else _plain
        out[f"{name} {size}"] = Candidate(partial(product, a, b, into), 2.0 * size**3)
    return out


def measure_ceilings(device: Cuda, monitor: Monitor, rates: Mapping[str, float]) -> dict[str, Any]:
    """Measure the ceilings of the current GPU (22 s on an H200) and return them with their provenance, JSON-able.

    `rates` are rough matrix rates by precision (the physical ones), for the probes' lengths. A precision that the GPU
    or this torch cannot do is null, with the reason in `missing`.
    """
    import torch
    import triton

    begun, identity = device.now(), monitor.identity()
    state = monitor.state()
    missing: dict[str, str] = {}
    bandwidth = {}
    total = int(device.properties.total_memory)
    for name, candidates in _bandwidths(device, min(2**32, total // 8)).items():
        bandwidth[name] = best(candidates, device)
    torch.cuda.empty_cache()
    matrix: dict[str, Any] = {}
    before = torch.backends.cuda.matmul.fp32_precision
    sustained: dict[str, Any] = {}
    try:
        for precision in ("bfloat16", "float16", "tf32", "float8", "float32"):
            torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
            try:
                candidates = _matrices(device, precision, rates.get(precision, 1e14))
                matrix[precision] = best(candidates, device)
            except Exception as error:  # noqa: BLE001  whatever a compiler or library raises for an unsupported format
                matrix[precision], missing[precision] = None, f"{type(error).__name__}: {str(error).splitlines()[0]}"
            if precision == "bfloat16" and matrix[precision]:
                name = next(n for n in candidates if n.startswith("torch"))
                call_s = candidates[name].amount / matrix[precision]["all"][name]
                sustained = moved_bytes(candidates[name].call, call_s, device, monitor, 2.0)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
        torch.cuda.empty_cache()
    idle = window(device, monitor, 1.0)
    steps = sorted(idle.steps_s) if idle else []
    return {
        "version": VERSION,
        "uuid": identity.uuid or device.uuid,
        "name": identity.name or device.properties.name,
        "driver": identity.driver,
        "vbios": identity.vbios,
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "software": {"torch": torch.__version__, "triton": triton.__version__},
        "l2_bytes": device.l2_bytes,
        "bytes_per_s": bandwidth,
        "flop_per_s": matrix,
        "missing": missing,
        "held": {
            "burst_sm_hz": (matrix["bfloat16"] or {}).get("clock_hz"),
            "sustained_sm_hz": sustained.get("clock_hz"),
            "sustained_power_w": sustained.get("power_w"),
        },
        "event_offset_s": event_offset_s(device),
        "energy_step_s": steps[len(steps) // 2] if steps else None,
        "health": {"before": state.as_dict(), "after": monitor.state().as_dict()},
        "seconds": device.now() - begun,
    }


def attainable(data: Mapping[str, Any]) -> Ceiling:
    """Return the ceiling: the highest matrix rate of each precision; the bandwidth by the share of writes."""
    found = {name: entry["value"] for name, entry in data["bytes_per_s"].items()}
    top = max(found, key=found.__getitem__)
    rates = {precision: entry["value"] for precision, entry in data["flop_per_s"].items() if entry}
    return Ceiling(
        "attainable",
        rates,
        found[top],
        data["l2_bytes"],
        f"measured {data['measured']} on {data['uuid']}, driver {data['driver']}; bandwidth by"
        f" {data['bytes_per_s'][top]['kernel']}",
        ((0.0, found["read"]), (0.5, found["copy"]), (1.0, found["write"])),
    )


def cache_path(identity: Identity) -> Path:
    """Return where the ceilings of a GPU are kept: one file for each UUID and driver."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "rooftest" / "ceilings" / f"{identity.uuid}-{identity.driver}.json"


def load(path: Path) -> dict[str, Any]:
    """Return ceilings from a file; raises UsageError when it cannot be used."""
    data = store.load(path)
    if not isinstance(data, dict) or data.get("version") != VERSION or any(key not in data for key in KEYS):
        raise UsageError(f"{path} holds no ceilings of version {VERSION}; delete it, and they are measured again.")
    return data


def beaten(identity: Identity) -> None:
    """Drop the kept ceilings, which a kernel was faster than, so that the next run measures them again.

    Those of the last day stay: a kernel that is better than every probe of ours would cost each run a measurement.
    """
    path = cache_path(identity)
    try:
        old = datetime.now(UTC) - datetime.fromisoformat(load(path)["measured"]) > timedelta(days=1)
    except (UsageError, TypeError, ValueError):
        return  # nothing that is kept, or nothing that the next run would take
    if old:
        path.unlink(missing_ok=True)


def ceilings(device: Cuda, monitor: Monitor, rates: Mapping[str, float], *, again: bool = False) -> dict[str, Any]:
    """Return the ceilings of the current GPU from the cache, or measure and keep them.

    `again` measures whatever the cache holds. A cache that cannot be written costs the next run the measurement only.
    """
    identity = monitor.identity()
    path = cache_path(identity)
    if not again and path.exists():
        try:
            return load(path)
        except UsageError:
            pass  # an old or broken cache is measured anew and overwritten
    data = store.finite(measure_ceilings(device, monitor, rates))
    try:
        store.write(path, data)
    except UsageError as error:
        data["not_cached"] = str(error)
    return data
