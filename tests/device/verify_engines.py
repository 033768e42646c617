"""The engine table's rows beside this GPU's matrix units, bit for bit. Needs a GPU; its data and its search do not.

    python tests/device/verify_engines.py results/engines/h200.json

Every format of the device's engine: tiles of 64 x 64 outputs on adversarial operands, through the instruction that four
warps compile to (wgmma on Hopper) and the one that two warps do (mma.sync), against `rooftest.emulate`. Where a bit
differs, rows near the stated one are tried, and the best are written down. Libraries are compared for one step of K;
their kernels are their own choice, so they verify nothing.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rooftest import store
from rooftest.emulate import NO_PART, emulate
from rooftest.engines import Row, accumulator, engine_of
from rooftest.formats import BF16, E4M3, E5M2, F64, FP16, FP32, TF32, Format, rne

TILE, PROGRAMS, LONGEST = 64, 64, 256
FORMATS = {"tf32": TF32, "float16": FP16, "bfloat16": BF16, "e4m3": E4M3, "e5m2": E5M2}
STORAGE = {
    "tf32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}  # fmt: skip
INSTRUCTION = re.compile(r"(?:wgmma\.mma_async|tcgen05\.mma|mma\.sync)[\w.:]*")


@triton.jit
def tile_product(a_ptr, b_ptr, c_ptr, K, SIZE: tl.constexpr, STEP: tl.constexpr):
    """One tile: c = a @ b.T for a and b (SIZE, K), the running sum in the matrix unit from first to last."""
    tile = tl.program_id(0) * SIZE
    rows, columns = tl.arange(0, SIZE), tl.arange(0, SIZE)
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for start in range(0, K, STEP):
        ks = start + tl.arange(0, STEP)
        a = tl.load(a_ptr + (tile + rows[:, None]) * K + ks[None, :])
        b = tl.load(b_ptr + (tile + columns[None, :]) * K + ks[:, None])
        total = tl.dot(a, b, total, input_precision="tf32")
    tl.store(c_ptr + (tile + rows[:, None]) * SIZE + columns[None, :], total)


# --- operands ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """Random operands of a format: a (programs, size, K) and b (programs, size, K), float64 on the format's grid."""

    f: Format
    shape: tuple[int, int, int]
    generator: torch.Generator

    @property
    def top(self) -> int:
        return math.frexp(self.f.max)[1] - 1

    def _tensor(self, make: Callable[..., Tensor], *args: Any, shape: tuple[int, ...] | None = None) -> Tensor:
        return make(*args, shape or self.shape, generator=self.generator, device=self.generator.device)

    def coin(self, share: float = 0.5, shape: tuple[int, ...] | None = None) -> Tensor:
        return self._tensor(torch.rand, shape=shape) < share

    def between(self, low: int, high: int, shape: tuple[int, ...] | None = None) -> Tensor:
        """Both signs, exponents from low to high, all bits of the significand."""
        low, high = (min(max(e, self.f.emin - self.f.p), self.top) for e in (low, high))
        e = self._tensor(torch.randint, low, high + 1, shape=shape)
        x = (1 + self._tensor(torch.rand, shape=shape).to(F64)) * torch.exp2(e.to(F64))
        x = rne(torch.where(self.coin(shape=shape), x, -x), self.f)
        return x.clamp(-self.f.max, self.f.max)

    def columns(self) -> tuple[int, int, int]:
        """One number a program and K: what whole columns of a, and the same ones of b, have in common."""
        return (self.shape[0], 1, self.shape[2])


def normal(d: Draw) -> tuple[Tensor, Tensor]:
    a, b = (rne(d._tensor(torch.randn).to(F64), d.f) for _ in "ab")
    return a, b


def positive(d: Draw) -> tuple[Tensor, Tensor]:
    """Sums that grow: every step truncates, and in the same direction."""
    a, b = (rne(d._tensor(torch.rand).to(F64), d.f) for _ in "ab")
    return a, b


def wide(d: Draw) -> tuple[Tensor, Tensor]:
    return d.between(-30, 30), d.between(-30, 30)


def integers(d: Draw) -> tuple[Tensor, Tensor]:
    """Positive, and so large that long sums pass 2**14, where an FP8 accumulator has to round and others need not."""
    most = min(2**d.f.p, 16)
    a, b = (d._tensor(torch.randint, most // 2, most + 1).to(F64) for _ in "ab")
    return a, b * torch.exp2(d._tensor(torch.randint, 0, 3).to(F64))


def cancelling(d: Draw) -> tuple[Tensor, Tensor]:
    """Products that cancel but for an ulp here and there: neighbours in even programs, halves of K in odd ones."""
    a, b = d.between(-2, 2), d.between(-2, 2)
    half = d.shape[2] // 2
    nudge = 1 + 2 * d.f.u * d.coin(0.1).to(F64)
    for x, sign in ((a, -1.0), (b, 1.0)):
        x[0::2, :, 1::2] = sign * x[0::2, :, 0::2]
        x[1::2, :, half:] = sign * x[1::2, :, :half]
    return rne(a * nudge, d.f), b


def ladder(d: Draw) -> tuple[Tensor, Tensor]:
    """One product of 1 among products of 2**-(i + j) at row i and column j: where is a bit cut off.

    The 1 stands anywhere in K. In even programs the small products are powers of two, in odd ones any significand.
    """
    programs, size, length = d.shape
    rungs = min(d.f.p - d.f.emin, 31)
    falls = torch.exp2(-(torch.arange(size, device=d.generator.device) % rungs).to(F64))[None, :, None]
    even = (torch.arange(programs, device=d.generator.device) % 2 == 0)[:, None, None]
    signs = torch.where(d.coin(), 1.0, -1.0).to(F64)
    a = rne(falls * torch.where(even, signs, d.between(0, 0)), d.f)
    b = rne(falls * torch.where(even, 1.0, d.between(0, 0)), d.f)
    place = d._tensor(torch.randint, 0, length, shape=(programs,))
    for x in (a, b):
        x[torch.arange(programs, device=x.device), :, place] = 1.0
    return a, b


def subnormal(d: Draw) -> tuple[Tensor, Tensor]:
    """Columns of subnormals and neighbours of them, against large numbers, among columns of plain ones."""
    small = d.coin(0.5, d.columns())
    a = torch.where(small, d.between(d.f.emin - d.f.p + 1, d.f.emin + 1), d.between(-8, 8))
    b = torch.where(small, d.between(-d.f.emin - 20, -d.f.emin - 4), d.between(-8, 8))
    return a, b


def zeros(d: Draw) -> tuple[Tensor, Tensor]:
    """Zeros against the largest numbers, among small products: does a product of zero take part in the alignment."""
    low = max(d.f.emin, -20)
    none = d.coin(0.3, d.columns())
    a = torch.where(none, 0.0, d.between(low, low + 7))
    b = torch.where(none, d.between(d.top - 2, d.top), d.between(low, low + 7))
    return torch.where(d.coin(0.1), -0.0, a), b


def vanishing(d: Draw) -> tuple[Tensor, Tensor]:
    """Sums among the subnormals of fp32, and below."""
    return d.between(-80, -55), d.between(-80, -55)


def overflowing(d: Draw) -> tuple[Tensor, Tensor]:
    """Products and sums around the largest fp32, and beyond."""
    return d.between(58, 66), d.between(58, 66)


def special(d: Draw) -> tuple[Tensor, Tensor]:
    """NaN, and infinities where the format has them."""
    a, b = normal(d)
    if not d.f.saturate:
        a, b = (torch.where(d.coin(0.002), x.sign() * math.inf, x) for x in (a, b))
    return torch.where(d.coin(0.002), math.nan, a), b


FINITE = (normal, positive, wide, integers, cancelling, ladder, subnormal, zeros)
WIDE_ONLY = (vanishing,)  # formats with fp32's exponents
BEYOND = (special,)  # compared, and reported apart: the error bars say nothing of results that are not finite


def kinds(f: Format) -> Iterator[tuple[Callable[[Draw], tuple[Tensor, Tensor]], bool]]:
    """The kinds of operands for a format, and whether the row is judged by them."""
    reaching = f.emin == FP32.emin
    yield from ((kind, True) for kind in FINITE + (WIDE_ONLY if reaching else ()))
    yield from ((kind, False) for kind in BEYOND + ((overflowing,) if reaching else ()))


# --- comparison ----------------------------------------------------------------------------------------------------

Silicon = Callable[[Tensor, Tensor], Tensor]
"""float64 operands a (programs, size, K), b (programs, size, K) to float32 a @ b.T on the device."""


def differs(got: Tensor, want: Tensor) -> Tensor:
    """Where bits differ; one NaN is as good as another."""
    return (got.view(torch.int32) != want.view(torch.int32)) & ~(got.isnan() & want.isnan())


def lengths(group: int) -> list[int]:
    """K: one step (16 at least, which the compiler asks for) to LONGEST, by factors of 2 and 4."""
    return sorted({max(group * n, 16) for n in (1, 2, 4, 16) if group * n <= LONGEST})


@dataclass(frozen=True)
class Case:
    kind: str
    a: Tensor
    b: Tensor
    got: Tensor
    judged: bool


def cases(f: Format, group: int, silicon: Silicon, device: str, programs: int, size: int) -> Iterator[Case]:
    """Every kind of operands at every length, and what the silicon made of them."""
    generator = torch.Generator(device).manual_seed(7)
    for length in lengths(group):
        draw = Draw(f, (programs, size, length), generator)
        for kind, judged in kinds(f):
            a, b = kind(draw)
            yield Case(kind.__name__, a, b, silicon(a, b), judged)


def misses(row: Row, inputs: Format, case: Case, zero: int = NO_PART) -> Tensor:
    return differs(case.got, emulate(row, case.a, case.b.mT, inputs, zero=zero))


def first(row: Row, inputs: Format, case: Case, missed: Tensor) -> dict[str, Any]:
    """The first output that differs, with its operands where there are few."""
    p, i, j = (int(n) for n in missed.nonzero()[0])
    a, b = case.a[p, i], case.b[p, j]
    want = emulate(row, a[None, :], b[:, None], inputs)[0, 0]
    out = {"K": a.numel(), "at": [p, i, j], "want": want.view(torch.int32).item(), "exact": float((a * b).sum())}
    out["got"] = case.got[p, i, j].view(torch.int32).item()
    words = {key: f"0x{value & 0xFFFFFFFF:08x}" for key, value in out.items() if key in ("got", "want")}
    return out | words | ({"a": a.tolist(), "b": b.tolist()} if a.numel() <= 32 else {})


def fit(row: Row, inputs: Format, seen: list[Case], most: int = 5) -> list[dict[str, Any]]:
    """Rows near the stated one by the outputs they miss, best first; [0]["mismatches"] is 0 where one explains all.

    A zero may enter the alignment by the exponent of fp32's smallest number, by the format's, or not at all.
    """
    fraction, p = round(-math.log2(row.align)), round(-math.log2(row.u))
    groups = sorted({max(row.group * n // 4, 1) for n in (1, 2, 4, 8)})
    grid = product(
        groups, range(fraction - 4, fraction + 5), sorted({p - 1, p, p + 1, 24}), (True, False),
        sorted({FP32.emin, inputs.emin, NO_PART}),
    )  # fmt: skip
    stated = {"group": row.group, "fraction": fraction, "significant": p, "truncates": row.truncates, "zero": NO_PART}
    found: list[dict[str, Any]] = []

    def changes(values: Iterable[Any]) -> int:
        return sum(a != b for a, b in zip(values, stated.values(), strict=True))

    best = math.inf
    for group, bits, significant, truncates, zero in sorted(grid, key=changes):
        near = replace(row, group=group, align=2.0**-bits, u=2.0**-significant, truncates=truncates)
        missed = 0
        for case in seen:
            missed += int(misses(near, inputs, case, zero).sum())
            if missed > 4 * best:  # far from any of the best: what it misses of the other cases does not matter
                break
        else:
            best = min(best, missed)
        names = dict(zip(stated, (group, bits, significant, truncates, zero), strict=True))
        found.append(names | {"mismatches": missed})
    return sorted(found, key=lambda each: each["mismatches"])[
        :most
    ]  # of those that miss as little, least changed first


def parameters(row: Row) -> dict[str, Any]:
    return {key: value for key, value in asdict(row).items() if key not in ("name", "source")}


def verify(
    row: Row, f: Format, silicon: Silicon, device: str, *, inputs: Format | None = None, programs: int = PROGRAMS,
    size: int = TILE,
) -> dict[str, Any]:  # fmt: skip
    """Compare and count; a row is verified where no output of the judged kinds differs in any bit."""
    inputs, tally, seen = inputs or f, {}, []
    for case in cases(f, row.group, silicon, device, programs, size):
        entry = tally.setdefault(case.kind, {"judged": case.judged, "outputs": 0, "mismatches": 0})
        missed = misses(row, inputs, case)
        entry["outputs"] += missed.numel()
        entry["mismatches"] += int(missed.sum())
        if missed.any():
            entry.setdefault("first", first(row, inputs, case, missed))
        if case.judged and case.a.shape[-1] == max(4 * row.group, 16):
            part = slice(0, 4), slice(0, 32)
            seen.append(replace(case, a=case.a[part], b=case.b[part], got=case.got[:4, :32, :32]))
    judged = [entry for entry in tally.values() if entry["judged"]]
    outputs, wrong = (sum(entry[key] for entry in judged) for key in ("outputs", "mismatches"))
    out = {"outputs": outputs, "mismatches": wrong, "verified": outputs > 0 and wrong == 0}
    out |= {"row": row.name, "parameters": parameters(row), "kinds": tally}
    return out | ({"fitted": fit(row, inputs, seen)} if wrong else {})


# --- the device ----------------------------------------------------------------------------------------------------


def triton_tiles(name: str, warps: int) -> tuple[Silicon, list[str]]:
    """tile_product on operands of a format, and (filled by its first call) the instructions that it compiled to."""
    instructions: list[str] = []
    step = 32 if STORAGE[name].itemsize == 1 else 16

    def call(a: Tensor, b: Tensor) -> Tensor:
        a, b = (x.to(STORAGE[name]).contiguous() for x in (a, b))
        programs, size, length = a.shape
        out = torch.empty(programs, size, size, device=a.device)
        compiled = tile_product[(programs,)](a, b, out, length, SIZE=size, STEP=step, num_warps=warps, num_stages=1)
        instructions[:] = sorted(set(INSTRUCTION.findall(compiled.asm["ptx"])))
        return out

    return call, instructions


def library(name: str) -> Silicon:
    """The same by torch: batched cuBLAS, and for fp8 its fast accumulation, one product at a time."""

    def call(a: Tensor, b: Tensor) -> Tensor:
        a, b = (x.to(STORAGE[name]).contiguous() for x in (a, b))
        if STORAGE[name].itemsize == 1:
            one = torch.ones((), device=a.device)
            scaled = [
                torch._scaled_mm(x, y.t(), one, one, out_dtype=torch.float32, use_fast_accum=True)
                for x, y in zip(a, b, strict=True)
            ]
            return torch.stack(scaled)
        if name == "tf32":
            return torch.bmm(a, b.mT)
        return torch.bmm(a, b.mT, out_dtype=torch.float32)

    return call


def attempt(what: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The comparison, or in one line why there is none."""
    begun = time.perf_counter()
    try:
        out = what()
    except Exception as error:  # noqa: BLE001  a compiler or library raises what it likes for what it cannot do
        out = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    return out | {"seconds": round(time.perf_counter() - begun, 2)}


def verify_compiled(engine: str, name: str, warps: int) -> dict[str, Any]:
    silicon, instructions = triton_tiles(name, warps)
    f = FORMATS[name]
    silicon(*(torch.zeros(1, TILE, LONGEST, dtype=F64, device="cuda") for _ in "ab"))
    # Where fp8 is converted on the way, the unit is the one for fp16, which holds every fp8 number.
    through_half = STORAGE[name].itemsize == 1 and all(".f16.f16" in each for each in instructions)
    row = accumulator(engine, "float16" if through_half else name)[1]
    found = verify(row, f, silicon, "cuda", inputs=FP16 if through_half else f)
    return {"instruction": ", ".join(instructions)} | found


def verify_library(engine: str, name: str) -> dict[str, Any]:
    """One step of K on normal data and the ladder; 16 at least, which fp8 products ask for."""
    row, f = accumulator(engine, name)[1], FORMATS[name]
    generator = torch.Generator("cuda").manual_seed(11)
    draw = Draw(f, (PROGRAMS, TILE, row.group), generator)
    out: dict[str, Any] = {}
    for kind in (normal, ladder):
        a, b = kind(draw)
        missed = misses(row, f, Case(kind.__name__, a, b, library(name)(a, b), judged=False))
        out[kind.__name__] = {"outputs": missed.numel(), "mismatches": int(missed.sum())}
    return out


def main(path: str) -> None:
    from rooftest.cuda import Cuda
    from rooftest.measure import open_monitor

    device = Cuda()
    identity, engine = open_monitor(device).identity(), engine_of("cuda")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    out: dict[str, Any] = {
        "what": "matrix units beside rooftest.emulate, bit for bit",
        "device": identity.name or device.properties.name, "uuid": identity.uuid or device.uuid,
        "driver": identity.driver, "torch": torch.__version__, "triton": triton.__version__, "engine": engine,
        "measured": datetime.now(UTC).isoformat(timespec="seconds"), "rows": {}, "two_warps": {}, "libraries": {},
    }  # fmt: skip
    sections = {
        "rows": lambda name: verify_compiled(engine, name, 4),
        "two_warps": lambda name: verify_compiled(engine, name, 2),
        "libraries": lambda name: verify_library(engine, name),
    }
    for section, call in sections.items():
        for name in FORMATS:
            out[section][name] = entry = attempt(lambda call=call, name=name: call(name))
            store.write(Path(path), out)
            kept = {
                key: entry.get(key) for key in ("instruction", "outputs", "mismatches", "failed", "normal", "ladder")
            }
            print(
                section, name, {key: value for key, value in kept.items() if value is not None}, entry["seconds"], "s"
            )
            for kind, each in entry.get("kinds", {}).items():
                if each["mismatches"]:
                    short = {k: v for k, v in each.get("first", {}).items() if k not in ("a", "b")}
                    print(f"   {kind}: {each['mismatches']} of {each['outputs']}; first {short}")
            for row in entry.get("fitted", [])[:3]:
                print("   fits", row)


if __name__ == "__main__":
    main(sys.argv[1])
