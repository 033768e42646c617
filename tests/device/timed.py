"""Kernels whose times are known to others: the rows that compare_ncu.py times, and the calls of mistakes.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch
import triton
import triton.language as tl

Call = Callable[[], object]

WATCH_PTX = """
{
    .reg .u64 first, now, limit;
    .reg .pred early;
    cvt.u64.u32 limit, $1;
    mov.u64 first, %globaltimer;
again:
    mov.u64 now, %globaltimer;
    sub.u64 $0, now, first;
    setp.lt.u64 early, $0, limit;
    @early bra again;
}
"""


@triton.jit
def rooftest_empty(x):
    """Do nothing."""
    if tl.program_id(0) > 0:
        tl.store(x, 0)


@triton.jit
def rooftest_watch(out, watch_ns, PTX: tl.constexpr):
    """Last about watch_ns nanoseconds, whatever the clock."""
    tl.store(out, tl.inline_asm_elementwise(PTX, "=l,r", [watch_ns], dtype=tl.int64, is_pure=False, pack=1))


@dataclass(frozen=True)
class Row:
    """make: builds the tensors and returns the call; bound: what its time hangs on, which decides what is compared."""

    name: str
    make: Callable[[str], Call]
    kind: str
    bound: str
    """compute: SM cycles are compared; memory: time is; offset: it measures what ncu reads more than CUPTI."""
    moves: bool = False
    """The bytes that device memory moves are compared too."""


def _normal(device: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Seeded normal data: the values decide a GEMM's power, and so its clock."""
    generator = torch.Generator(device).manual_seed(sum(shape))
    return torch.randn(*shape, device=device, dtype=dtype, generator=generator)


def empty() -> Callable[[str], Call]:
    """A launch and nothing else."""

    def make(device: str) -> Call:
        out = torch.zeros(1, dtype=torch.int64, device=device)
        return lambda: rooftest_empty[(1,)](out, num_warps=1)

    return make


def watch(ns: int) -> Callable[[str], Call]:
    """A kernel of one warp that lasts about that long."""

    def make(device: str) -> Call:
        out = torch.zeros(1, dtype=torch.int64, device=device)
        return lambda: rooftest_watch[(1,)](out, ns, PTX=WATCH_PTX, num_warps=1)

    return make


def gemm(m: int, n: int, k: int, scale: float = 1.0) -> Callable[[str], Call]:
    """cuBLAS in bf16, B stored transposed, on normal data times `scale`."""

    def make(device: str) -> Call:
        a, b = _normal(device, m, k) * scale, _normal(device, n, k).t() * scale
        out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
        return lambda: torch.mm(a, b, out=out)

    return make


def step(name: str, size: int) -> Callable[[str], Call]:
    """A kernel of our ladder on square bf16 operands."""

    def make(device: str) -> Call:
        a, b = _normal(device, size, size), _normal(device, size, size)
        out = torch.empty_like(a)
        matmul = import_module(f"rooftest_kernels.gemm.{name}").matmul
        return lambda: matmul(a, b, out=out)

    return make


def copy(mib: int) -> Callable[[str], Call]:
    """y = x, as a kernel: bf16 to fp16 can't be a Memcpy, which ncu does not see."""

    def make(device: str) -> Call:
        x = _normal(device, mib * 2**19)
        y = torch.empty_like(x, dtype=torch.float16)
        return lambda: y.copy_(x)

    return make


def add(elements: int) -> Callable[[str], Call]:
    """z = x + y in fp32: 12 bytes an element."""

    def make(device: str) -> Call:
        x, y = _normal(device, elements, dtype=torch.float32), _normal(device, elements, dtype=torch.float32)
        z = torch.empty_like(x)
        return lambda: torch.add(x, y, out=z)

    return make


def row_sum(rows: int, columns: int, scale: float = 1.0) -> Callable[[str], Call]:
    """A sum over each row of a bf16 matrix."""

    def make(device: str) -> Call:
        x = _normal(device, rows, columns) * scale
        out = torch.empty(rows, device=device, dtype=torch.bfloat16)
        return lambda: torch.sum(x, 1, out=out)

    return make


def softmax(rows: int, columns: int) -> Callable[[str], Call]:
    """Softmax over each row of a bf16 matrix."""

    def make(device: str) -> Call:
        x = _normal(device, rows, columns)
        out = torch.empty_like(x)
        return lambda: torch.softmax(x, 1, out=out)

    return make


def scale_and_sum(rows: int, columns: int) -> Callable[[str], Call]:
    """Two launches: the second reads what the first wrote."""

    def make(device: str) -> Call:
        x = _normal(device, rows, columns)
        scaled, out = torch.empty_like(x), torch.empty(rows, device=device, dtype=torch.bfloat16)

        def call() -> object:
            torch.mul(x, 0.5, out=scaled)
            return torch.sum(scaled, 1, out=out)

        return call

    return make


ROWS = (
    Row("empty", empty(), "nothing", "offset"),
    *(Row(f"watch {us} us", watch(us * 1000), "nothing", "offset") for us in (5, 20, 200)),
    Row("add 64 Ki", add(2**16), "elementwise", "memory"),
    Row("gemm 1024", gemm(1024, 1024, 1024), "gemm", "compute"),
    Row("gemm 64x4096x4096", gemm(64, 4096, 4096), "skinny gemm", "memory"),
    Row("gemm 2048", gemm(2048, 2048, 2048), "gemm", "compute"),
    Row("gemv 1x14336x4096", gemm(1, 14336, 4096), "gemv", "memory", moves=True),
    Row("step4_dot 2048", step("step4_dot", 2048), "gemm of ours", "compute"),
    Row("row sum 8192x8192", row_sum(8192, 8192), "reduction", "memory", moves=True),
    Row("gemm 3072", gemm(3072, 3072, 3072), "gemm", "compute"),
    Row("softmax 8192x8192", softmax(8192, 8192), "softmax", "memory", moves=True),
    Row("scale and sum 8192x8192", scale_and_sum(8192, 8192), "two launches", "memory", moves=True),
    Row("copy 256 MiB", copy(256), "copy", "memory", moves=True),
    Row("gemm 4096", gemm(4096, 4096, 4096), "gemm", "compute"),
    Row("step8_overlapped 4096", step("step8_overlapped", 4096), "gemm of ours", "compute"),
    Row("add 64 Mi", add(2**26), "elementwise", "memory", moves=True),
    Row("gemm 8192", gemm(8192, 8192, 8192), "gemm", "compute", moves=True),
    Row("copy 1 GiB", copy(1024), "copy", "memory"),
    Row("step1_naive 1664", step("step1_naive", 1664), "gemm of ours", "compute"),
)  # fmt: skip
