"""Kernels that compute a + b on a GPU, well and badly; rows in test_process_cuda.py name them."""

import time

import torch
import triton
import triton.language as tl

scratch = {}


@triton.jit
def _add(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(a_ptr + i, mask=i < n) + tl.load(b_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def _store_at(out_ptr, offset_bytes):
    """A store that many bytes from where out begins."""
    tl.store((out_ptr.to(tl.int64) + offset_bytes).to(out_ptr.dtype), 1.0)


@triton.jit
def _trap(out_ptr):
    i = tl.arange(0, 32)
    code = tl.inline_asm_elementwise("trap; mov.b32 $0, $1;", "=r,r", [i], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(out_ptr + i, code.to(tl.float32))


@triton.jit
def _spin(out_ptr):
    """Waits for what nobody writes."""
    seen = tl.atomic_add(out_ptr, 0.0)
    while seen != 12345.0:
        seen = tl.atomic_add(out_ptr, 0.0)


def add(a, b, out):
    _add[(triton.cdiv(a.numel(), 256),)](a, b, out, a.numel(), BLOCK=256)


def returning(a, b):
    out = torch.empty_like(a)
    add(a, b, out)
    return out


def partly(a, b):
    out = torch.empty_like(a)
    out[1:] = a[1:] + b[1:]
    return out


def twice(a, b, out):
    add(a, b, out)
    add(a, b, out)


def matmul(a, b, out):
    torch.matmul(a, b, out=out)


def default_stream(a, b, out):
    with torch.cuda.stream(torch.cuda.default_stream()):
        torch.add(a, b, out=out)


def shared_scratch(a, b, out):
    """Keeps a copy of a where the next call keeps its own; right as long as one call follows the other."""
    kept = scratch.setdefault("kept", torch.zeros_like(a))
    kept.copy_(a)
    torch.cuda._sleep(2_000_000)  # a millisecond, in which the other stream copies too
    torch.add(kept, b, out=out)


def waits(a, b, out):
    add(a, b, out)
    torch.cuda.synchronize()


def reads_back(a, b, out):
    add(a, b, out) if a.sum().item() == a.sum().item() else None


def absent_from_graphs(a, b, out):
    if not torch.cuda.is_current_stream_capturing():
        add(a, b, out)


def illegal(a, b, out):
    _store_at[(1,)](out, 2**40)


def misaligned(a, b, out):
    _store_at[(1,)](out, 2)


def traps(a, b, out):
    _trap[(1,)](out)


def spins(a, b, out):
    _spin[(1,)](out)


def holds_memory(a, b, out):
    """Its frame names the error, which holds the frame: a circle."""
    error = ValueError("big")
    error.tensor = torch.empty(torch.cuda.mem_get_info()[1] // 4, dtype=torch.uint8, device=a.device)
    raise error


def sets_stream(a, b, out):
    torch.matmul(a, b, out=out)
    torch.cuda.set_stream(torch.cuda.Stream())


def sets_device(a, b, out):
    torch.matmul(a, b, out=out)
    torch.cuda.set_device(1)


def sets_library(a, b, out):
    torch.matmul(a, b, out=out)
    torch.backends.cuda.preferred_blas_library("cublaslt")


def seeds(a, b, out):
    torch.matmul(a, b, out=out)
    torch.cuda.manual_seed(7)


def restores(a, b, out):
    """Changes what belongs to the device and puts it back."""
    with torch.cuda.stream(torch.cuda.Stream()), torch.random.fork_rng(), torch.autocast("cuda"):
        torch.cuda.manual_seed(7)
    backend = torch.backends.cuda.matmul
    was, backend.allow_tf32 = backend.allow_tf32, True
    backend.allow_tf32 = was
    add(a, b, out)


def asserts(a, b, out):
    out.copy_(a[torch.full((64,), 10**6, device=a.device)])


def hangs(a, b, out):
    torch.cuda._sleep(10**12)


def host_hangs(a, b, out):
    while True:
        time.sleep(0.01)


def greedy(a, b, out):
    torch.empty(2**45, device=a.device)
