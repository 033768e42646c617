"""Launchers that the compiled gate meets; test_capture.py gives them rows."""

import os

import triton
import triton.language as tl


@triton.jit
def product(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr, K_BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, K_BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, K_BLOCK):
        a = tl.load(a_ptr + rows[:, None] * K + k + depth[None, :])
        b = tl.load(b_ptr + (k + depth[:, None]) * N + columns[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(c_ptr.dtype.element_ty))


@triton.jit
def zero(c_ptr, BLOCK: tl.constexpr):
    tl.store(c_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), 0.0)


@triton.jit
def mistaken(c_ptr, BLOCK: tl.constexpr):
    tl.store(c_ptr + tl.arange(0, BLOCK), nothing_of_the_name)  # noqa: F821


@triton.autotune(configs=[triton.Config({"BLOCK": n}) for n in (64, 128)], key=[])
@triton.jit
def tuned(c_ptr, BLOCK: tl.constexpr):
    tl.store(c_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), 0.0)


def launch(a, b, out, **options):
    (M, K), N = a.shape, b.shape[1]
    product[(M // 128, N // 128)](a, b, out, M, N, K, BLOCK=128, K_BLOCK=64, **options)


def right(a, b, *, out):
    launch(a, b, out, num_warps=8)


def spills(a, b, *, out):
    # The accumulator alone is 128 registers a thread; with wgmma that does not compile.
    launch(a, b, out, num_warps=4, maxnreg=64)


def zeroed(a, b, *, out):
    zero[(out.numel() // 1024,)](out, BLOCK=1024)


def twice(a, b, *, out):
    zeroed(a, b, out=out)
    assert out.is_cuda
    assert a.mT.contiguous().device == out.device
    launch(a, b, out, num_warps=8)


def tunes(a, b, *, out):
    tuned[lambda meta: (out.numel() // meta["BLOCK"],)](out)


def wrong(a, b, *, out):
    mistaken[(1,)](out, BLOCK=64)


def reads(a, b, *, out):
    zero[(int(a[0, 0].item()),)](out, BLOCK=64)


def ends(a, b, *, out):
    print("no GPU of mine", flush=True)
    os._exit(0)


def library(a, b, *, out):
    out.copy_(a @ b)
