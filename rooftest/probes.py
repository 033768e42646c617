"""Small Triton kernels of our own: empty the L2, separate calls in a trace, read the clock, reach the ceilings."""

# triton.jit gives annotations a meaning of their own:
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

# Reads the SM's own clock: both counters are taken when the nanosecond timer steps, so that its tick (32 ns on Hopper,
# 1 us on some) does not enter. The first operand is the least number of nanoseconds to watch.
CLOCK_PTX = """
{
    .reg .u64 now, first, c0, c1, span, limit;
    .reg .pred p;
    mov.u64 now, %globaltimer;
wait:
    mov.u64 first, %globaltimer;
    setp.eq.u64 p, first, now;
    @p bra wait;
    mov.u64 c0, %clock64;
    cvt.u64.u32 limit, $2;
again:
    mov.u64 now, %globaltimer;
    sub.u64 span, now, first;
    setp.lt.u64 p, span, limit;
    @p bra again;
    mov.u64 first, now;
edge:
    mov.u64 now, %globaltimer;
    setp.eq.u64 p, first, now;
    @p bra edge;
    mov.u64 c1, %clock64;
    sub.u64 $1, c1, c0;
    sub.u64 first, first, span;
    sub.u64 $0, now, first;
}
"""


@triton.jit
def rooftest_flush(x, sink, n, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """Read n int32 of x and write nothing: what was in L2 is gone, and no line of it is dirty."""
    start = tl.program_id(0).to(tl.int64) * BLOCK * STEPS
    seen = tl.zeros((BLOCK,), tl.int32)
    for step in tl.static_range(STEPS):
        offs = start + step * BLOCK + tl.arange(0, BLOCK)
        seen |= tl.load(x + offs, mask=offs < n, other=0)
    if tl.max(seen, 0) == 1:  # never: x is zero; the compiler cannot know, so the loads stay
        tl.store(sink, 1)


@triton.jit
def rooftest_mark(x):
    """Do nothing for as short as a kernel can: it separates two calls in a trace, and calibrates the events."""
    if tl.program_id(0) > 0:
        tl.store(x, 0)


@triton.jit
def rooftest_clock(out, slot, watch_ns, PTX: tl.constexpr):
    """Store the nanoseconds and the SM cycles that passed while watching; one warp."""
    ns, cycles = tl.inline_asm_elementwise(
        PTX, "=l,=l,r", [watch_ns], dtype=(tl.int64, tl.int64), is_pure=False, pack=1
    )
    tl.store(out + 2 * slot, ns)
    tl.store(out + 2 * slot + 1, cycles)


@triton.jit
def rooftest_read(x, sink, n, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """Read n int32 of x and write nothing, as the flush does; under a name of its own, which traces tell apart."""
    start = tl.program_id(0).to(tl.int64) * BLOCK * STEPS
    seen = tl.zeros((BLOCK,), tl.int32)
    for step in tl.static_range(STEPS):
        offs = start + step * BLOCK + tl.arange(0, BLOCK)
        seen |= tl.load(x + offs, mask=offs < n, other=0)
    if tl.max(seen, 0) == -12345:  # practically never, and unknown to the compiler
        tl.store(sink, 1)


@triton.jit
def rooftest_copy(x, y, n, BLOCK: tl.constexpr):
    """Copy n elements: y[i] = x[i]."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offs, tl.load(x + offs, mask=offs < n), mask=offs < n)


@triton.jit
def rooftest_write(y, n, value, BLOCK: tl.constexpr):
    """Write n elements: y[i] = value."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offs, tl.zeros((BLOCK,), y.dtype.element_ty) + value, mask=offs < n)


@triton.jit
def rooftest_matrix(a, b, c, loops, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    """Multiply one resident tile pair `loops` times into one accumulator: the matrix unit's rate with nothing to fetch.

    a is (M, K) row-major, b is (N, K) row-major and enters transposed; each program does 2 M N K loops operations.
    """
    rm, rn, rk = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + rm[:, None] * K + rk[None, :])
    right = tl.load(b + rn[None, :] * K + rk[:, None])
    total = tl.zeros((M, N), tl.float32)
    for _ in range(loops):
        total = tl.dot(left, right, total, input_precision=PRECISION)
    if tl.max(tl.max(total, 1), 0) == 12345.0:  # practically never, and unknown to the compiler
        tl.store(c + tl.program_id(0), 1.0)
