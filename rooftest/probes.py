"""Small Triton kernels of our own: empty the L2, separate calls in a trace, read the clock, reach the ceilings."""

# triton.jit gives annotations a meaning of their own:
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

CLOCK_PTX = "mov.u32 $0, %smid; mov.u64 $1, %clock64; mov.u64 $2, %globaltimer;"


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
def rooftest_done(x):
    """Do nothing: what is enqueued after it belongs to no call."""
    if tl.program_id(0) > 0:
        tl.store(x, 0)


@triton.jit
def rooftest_clock(out, slot, PTX: tl.constexpr):
    """Store, for each program of one warp, its multiprocessor, that one's cycle counter, and the time in nanoseconds.

    Two readings on one multiprocessor give its mean clock between them, whatever ran there: the counter runs on. A
    reading after the work alone would not: the clock falls within a kernel that draws much power, and is back at its
    maximum microseconds later.
    """
    sm, cycles, ns = tl.inline_asm_elementwise(
        PTX, "=r,=l,=l,r", [slot], dtype=(tl.int32, tl.int64, tl.int64), is_pure=False, pack=1
    )
    at = out + 3 * (slot * tl.num_programs(0) + tl.program_id(0))
    tl.store(at, sm.to(tl.int64))
    tl.store(at + 1, cycles)
    tl.store(at + 2, ns)


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
