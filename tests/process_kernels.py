"""Kernels that behave, and kernels that break their process; rows in test_process.py name them."""

import ctypes
import gc
import hashlib
import importlib
import io
import locale
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

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
    """Its frame names the error, which holds the frame: a circle."""
    held = state.get("held", lambda: None)
    error = ValueError("big" if held() is None else "big, and the one before is still there")
    error.tensor = torch.ones(1000)
    state["held"] = weakref.ref(error.tensor)
    raise error


def recursion(a, b, out):
    recursion(a, b, out)


def recursion_in_c(a, b, out):
    """Uses up the stack, where Python has no limit of its own for C."""
    sys.setrecursionlimit(10**9)
    sorted([0], key=lambda _: recursion_in_c(a, b, out))


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


def killed(a, b, out):
    os.kill(os.getpid(), signal.SIGKILL)


def stopped(a, b, out):
    os.kill(os.getpid(), signal.SIGSTOP)


def deaf(a, b, out):
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):
            signal.signal(number, signal.SIG_IGN)
    endless(a, b, out)


def kills_its_parent(a, b, out):
    os.kill(os.getppid(), signal.SIGKILL)
    endless(a, b, out)


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


def escapes(a, b, out):
    """A daemon: neither its parent nor its process group is the kernel's."""
    torch.matmul(a, b, out=out)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(os.environ["SIGN"]).write_text(str(os.getpid()))
            time.sleep(1000)
        os._exit(0)
    os.wait()
    while not Path(os.environ["SIGN"]).read_text():
        pass


def memory(a, b, out):
    raise MemoryError


def memory_of_the_host(a, b, out):
    torch.empty(2**50)


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
    pid = os.getpid()
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05)
            os.kill(pid, signal.SIGSEGV)
        os._exit(0)
    os.wait()


def sees_pytest(a, b, out):
    out.fill_(any(name.startswith("PYTEST_") for name in os.environ))


number = 3


RESULTS = {}


def reuses(a, b):
    """Right, but each result is written over the one before."""
    out = RESULTS.setdefault((a.shape[0], b.shape[1]), torch.empty(a.shape[0], b.shape[1]))
    return torch.matmul(a, b, out=out)


class Function(TorchFunctionMode):
    pass


class Dispatch(TorchDispatchMode):
    pass


def upward():
    ctypes.CDLL("libm.so.6").fesetround({"x86_64": 0x800, "aarch64": 0x400000}[os.uname().machine])


kept = []


def enter(mode):
    kept.append(mode)
    mode.__enter__()


# By the name of the watched state: how a kernel leaves it changed.
CHANGES = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "grad mode": lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
    "inference mode": lambda: enter(torch.inference_mode()),
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "autocast": lambda: torch.set_autocast_enabled("cpu", enabled=True),
    "function modes": lambda: enter(Function()),
    "dispatch modes": lambda: enter(Dispatch()),
    "deterministic algorithms": lambda: torch._C._set_deterministic_algorithms(mode=True),
    "fill of uninitialized memory": lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "fp32 precision of CUDA's matmul": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "fp32 precision of cuDNN's convolutions": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "fp32 precision of the CPU's matmul": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "reduced-precision reductions in fp16": lambda: setattr(
        torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False
    ),
    "reduced-precision reductions in bf16": lambda: setattr(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False
    ),
    "accumulation in fp16": lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
    "cuDNN flag": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "attention backend": lambda: torch.backends.cuda.enable_flash_sdp(enabled=False),
    "threads of torch": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "seed of torch": lambda: torch.manual_seed(7),
    "flushing of denormals": lambda: torch.set_flush_denormal(True),
    "rounding mode": upward,
    "numpy's error handling": lambda: np.seterr(all="ignore"),
    "environment variable": lambda: os.environ.update(ACME="fast"),
    "working folder": lambda: os.chdir("/"),
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "CPU affinity": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "resource limit": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    "signal handler": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 1000),
    "warnings filters": lambda: warnings.simplefilter("ignore"),
    "sys.path": lambda: sys.path.append("/nowhere"),
    "module": lambda: sys.modules.update(numpy=types.ModuleType("numpy")),
    "function": lambda: setattr(torch, "matmul", torch.mm),
    "standard stream": lambda: setattr(sys, "stdout", io.StringIO()),
    "recursion limit": lambda: sys.setrecursionlimit(5000),
    "trace function": lambda: sys.settrace(lambda *_: None),
    "garbage collection": gc.disable,
    "having child processes": lambda: subprocess.Popen(["sleep", "1000"]),
    "running thread": lambda: threading.Thread(target=time.sleep, args=(1000,), name="late", daemon=True).start(),
}


def leaving(name):
    def matmul(a, b, out):
        torch.matmul(a, b, out=out)
        CHANGES[name]()

    return matmul


def logged(name):
    """Right, and it writes down what it read and wrote."""

    def matmul(a, b, out):
        torch.matmul(a, b, out=out)
        said = hashlib.sha256(b"".join(t.contiguous().cpu().numpy().tobytes() for t in (a, b, out)))
        with Path(os.environ["LOG"], name).open("a") as log:
            log.write(said.hexdigest() + "\n")

    return matmul


LEAVES = types.SimpleNamespace(**{re.sub(r"\W", "_", name): leaving(name) for name in CHANGES})
LOGGED = types.SimpleNamespace(**{name: logged(name) for name in ("first", "middle", "last")})


def changes(a, b, out):
    """Right, but it leaves a state of the process changed."""
    torch.matmul(a, b, out=out)
    if "IMPORT" in os.environ:
        importlib.import_module(os.environ["IMPORT"])
    CHANGES[os.environ["HOW"]]()


def changes_and_raises(a, b, out):
    CHANGES[os.environ["HOW"]]()
    raise ValueError("no")


def restores(a, b, out):
    """Changes much and puts it back, draws random numbers, imports a module, and uses a thread to its end."""
    backend, folder, path = torch.backends.cuda.matmul, Path.cwd(), list(sys.path)
    backend.allow_tf32 = not (was := backend.allow_tf32)
    backend.allow_tf32 = was
    torch.set_float32_matmul_precision("high")
    torch.set_float32_matmul_precision("highest")
    thread = threading.Thread(target=random.random)
    thread.start()
    thread.join()
    os.chdir("/")
    os.chdir(folder)
    sys.path.append("/nowhere")
    sys.path[:] = path
    with warnings.catch_warnings(), np.errstate(all="ignore"), torch.random.fork_rng(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        torch.rand(3)
        import colorsys  # noqa: F401

        torch.matmul(a, b, out=out)
    torch.rand(3)
