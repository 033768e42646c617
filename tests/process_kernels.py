"""Kernels that behave, and kernels that break their process; rows in test_process.py name them."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch

CONFIGS = {"small": 1, "large": 2}
state = {"calls": 0}


def matmul(a, b, *, out, alpha=1.0, config=None):
    torch.matmul(a, b, out=out)
    out *= alpha


def returning(a, b):
    return a @ b


def positional(a, b, /, out):
    torch.matmul(a, b, out=out)


def repacked(a, b, out):
    torch.matmul(a, b["transposed"].t(), out=out)


def repack(b):
    return {"transposed": b.t().contiguous()}


def pair(a, b):
    return a @ b, a


def wrong_shape(a, b):
    return (a @ b).t()


def wrong_dtype(a, b):
    return (a @ b).double()


def alias(a, b):
    a.copy_(a @ b)
    return a


def nothing(a, b):
    return None


class Lazy(torch.Tensor):
    pass


def subclass(a, b):
    return (a @ b).as_subclass(Lazy)


def undefined(a, b):
    """Writes nothing to what it allocates."""
    made = {
        "empty": lambda: torch.empty(a.shape[0], b.shape[1]),
        "empty_like": lambda: torch.empty_like(a @ b),
        "new_empty": lambda: a.new_empty(a.shape[0], b.shape[1]),
        "empty_strided": lambda: torch.empty_strided((a.shape[0], b.shape[1]), (b.shape[1], 1)),
    }
    return made[os.environ["HOW"]]()


def counted(a, b, out):
    """Its state: how often it was called in this process."""
    state["calls"] += 1
    out.fill_(state["calls"])


def raises(a, b, out):
    raise ValueError("K must be a multiple of 16\nand more lines")


def raises_in_torch(a, b, out):
    def inner(x):
        return x.view(3, 5, 7)

    inner(a[:1, :1])


def asserts(a, b, out):
    assert a.shape[1] % 16 == 0


def unprintable(a, b, out):
    class E(Exception):
        def __str__(self):
            raise TypeError("no")

    raise E


def holds_tensor(a, b, out):
    error = ValueError("big")
    error.tensor = torch.ones(1000)
    raise error


def recursion(a, b, out):
    recursion(a, b, out)


def segfault(a, b, out):
    print("about to read address 0", file=sys.stderr)
    ctypes.string_at(0)


def aborts(a, b, out):
    os.write(2, b"LLVM ERROR: Cannot select: intrinsic\n")
    os.abort()


def leaves(a, b, out):
    os._exit(3)


def exits(a, b, out):
    sys.exit(3)


def interrupts(a, b, out):
    raise KeyboardInterrupt


def endless(a, b, out):
    while True:
        pass


def endless_with_sign(a, b, out):
    Path(os.environ["SIGN"]).touch()
    endless(a, b, out)


def endless_with_child(a, b, out):
    print(subprocess.Popen(["sleep", "1000"]).pid)
    while True:
        time.sleep(0.01)


def forks_endless(a, b, out):
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(5)


def forks(a, b, out):
    """Both sides return from the call."""
    os.fork()
    torch.matmul(a, b, out=out)


def memory(a, b, out):
    raise MemoryError


def memory_of_torch(a, b, out):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")


def floods(a, b, out):
    for _ in range(2**13):
        print("x" * 1000)
    print("the last line")
    torch.matmul(a, b, out=out)


def floods_then_dies(a, b, out):
    floods(a, b, out)
    os._exit(7)


def floods_forever(a, b, out):
    while True:
        os.write(1, b"y" * 65536)


def closes_everything(a, b, out):
    os.closerange(0, 1000)
    while True:
        time.sleep(0.01)


def garbles(a, b, out):
    for fd in range(3, 1000):
        with suppress(OSError):
            os.write(fd, b'{"seconds": 0}\n')


def dies_later(a, b, out):
    torch.matmul(a, b, out=out)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGSEGV)).start()


def sees_pytest(a, b, out):
    out.fill_(any(name.startswith("PYTEST_") for name in os.environ))


number = 3


RESULTS = {}


def reuses(a, b):
    """Right, but each result is written over the one before."""
    out = RESULTS.setdefault((a.shape[0], b.shape[1]), torch.empty(a.shape[0], b.shape[1]))
    return torch.matmul(a, b, out=out)
