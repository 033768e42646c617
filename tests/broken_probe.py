"""Run the broken GEMMs beside plain float64, on cases within and outside their triggers; print what is wrong, as JSON.

A process of its own, because a kernel that reads out of bounds may take its process with it, and the interpreter is
chosen when triton is imported: without a GPU, `TRITON_INTERPRET=1 python broken_probe.py clean tf32`. Uses nothing of
the judge, so that it can contradict it.
"""

import importlib.util
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FOLDER = Path(__file__).with_name("broken")
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
ALL = tuple(UNIT)


@dataclass(frozen=True)
class Try:
    """One call: sizes, dtypes and what else a trigger may speak of. `behind` is what lies after A."""

    M: int = 32
    N: int = 48
    K: int = 64
    dtypes: tuple = (torch.float32, torch.bfloat16)
    layout: str = "nn"
    gap: int = 0
    alpha: float = -1.5
    beta: float = 0.0
    c0: str = "none"  # or "finite", "nan"
    bias: bool = True
    behind: float = float("nan")
    fill: str = "both"  # or "integers"


# Outside every trigger of a multiple of the tile; the second needs C0.
QUIET = (Try(), Try(alpha=1.0, beta=0.5, c0="finite"))

# For each kernel: calls that must be right, and calls that must be wrong.
TRIES = {
    "clean": (
        (
            Try(dtypes=ALL),
            Try(64, dtypes=ALL, alpha=1.0, beta=0.5, c0="finite"),
            Try(65, 33, 35, gap=3, c0="nan"),
            Try(17, 1, 31, layout="tt", alpha=0.5, beta=0.7, c0="finite"),
        ),
        (),
    ),
    "last_k_dropped": ((*QUIET, Try(33, 17, 46)), (Try(K=63), Try(K=1))),
    "k_tail_unmasked": ((*QUIET, Try(33, 17, 32)), (Try(K=63), Try(K=40))),
    "bf16_accumulation": (
        (Try(K=32), Try(K=64, dtypes=(torch.float32,))),
        # integers whose partial sums float16 holds are right by luck
        (Try(K=640, dtypes=(torch.bfloat16,)), Try(K=640, dtypes=(torch.float16,), fill="normal")),
    ),
    "tf32": (
        (Try(dtypes=(torch.float16, torch.bfloat16)), Try(fill="integers")),
        (Try(dtypes=(torch.float32,), fill="normal"),),
    ),
    "swapped_strides": (
        (*QUIET, Try(K=48, layout="nt"), Try(layout="tn")),
        (Try(layout="nt"), Try(K=48, layout="nt", gap=8)),
    ),
    "alpha_ignored": ((*QUIET, Try(alpha=0.5)), (Try(beta=0.5, c0="finite"),)),
    "c0_read": ((*QUIET, Try(c0="finite")), (Try(c0="nan"),)),
    "tile_skipped": ((*QUIET, Try(16, 16), Try(16, 32)), (Try(48, 48), Try(33, 33))),
    "read_times_zero": ((*QUIET, Try(K=63, behind=1.0)), (Try(K=63),)),
    "rows_unwritten": ((*QUIET, Try(M=1), Try(M=34)), (Try(M=65), Try(M=33))),
    "input_modified": ((*QUIET, Try(alpha=0.3)), (Try(alpha=0.5), Try(alpha=2.0))),
    "lost_update": ((Try(K=32), Try(K=17, beta=0.5, c0="finite")), (Try(), Try(K=33))),
    # large enough for a GPU to run both halves of many tiles at once
    "torch_default": (
        (Try(alpha=1.0, bias=False), Try(256, 256, 1024, alpha=1.0, bias=False)),
        (Try(1024, 1024, 4100, dtypes=(torch.bfloat16,), alpha=1.0, bias=False, fill="integers"),),
    ),
    "race": ((Try(K=32), Try(K=17, beta=0.5, c0="finite")), (Try(256, 256, 512), Try(512, 512, 512))),
}


def stored(values, gap, behind, *, transposed=False):
    """Put a matrix into memory with `gap` elements between its rows, `behind` in the gaps and after it."""
    rows, cols = values.shape[::-1] if transposed else values.shape
    memory = torch.full((rows * (cols + gap) + 4096,), behind, dtype=values.dtype, device=DEVICE)
    view = memory[: rows * (cols + gap)].view(rows, cols + gap)[:, :cols]
    view = view.T if transposed else view
    return view.copy_(values)


def wrong(matmul, t, dtype, fill):
    """Say what is wrong with one call, or None."""
    generator = torch.Generator().manual_seed(t.M + t.N + t.K)

    def values(*shape):
        if fill == "normal":
            return torch.randn(shape, generator=generator).to(dtype)
        # at most 4100 * 16 * 2 + 8, in steps of a quarter: all but the last rounding is exact in float32
        return torch.randint(-4, 5, shape, generator=generator).to(dtype)

    a = stored(values(t.M, t.K), t.gap, t.behind, transposed=t.layout[0] == "t")
    b = stored(values(t.K, t.N), t.gap, 0.0, transposed=t.layout[1] == "t")
    bias = values(t.N).to(DEVICE) if t.bias else None
    out = stored(torch.full((t.M, t.N), float("nan"), dtype=dtype), t.gap, 0.0)
    c0 = None
    if t.c0 != "none":
        c0 = stored(
            values(t.M, t.N) if t.c0 == "finite" else torch.full((t.M, t.N), float("nan"), dtype=dtype), t.gap, 0.0
        )
    before = a.clone(), b.clone()
    alpha, beta = (torch.tensor(x, dtype=torch.float32).double() for x in (t.alpha, t.beta))  # the kernel gets float32
    want, sizes = alpha * (a.double() @ b.double()), alpha.abs() * (a.double().abs() @ b.double().abs())
    if t.bias:
        want, sizes = want + bias.double(), sizes + bias.double().abs()
    if t.beta != 0:
        want, sizes = want + beta * c0.double(), sizes + (beta * c0.double()).abs()
    # Only what differs from the defaults: not every kernel takes everything.
    given = {"alpha": t.alpha if t.alpha != 1 else None, "beta": t.beta or None, "c0": c0, "bias": bias}
    matmul(a, b, out=out, **{name: value for name, value in given.items() if value is not None})
    if not (torch.equal(a, before[0]) and torch.equal(b, before[1])):
        return "an input was modified"
    exact = fill == "integers" and all((8 * x).is_integer() for x in (t.alpha, t.beta))
    # One rounding to the output, K additions and four more of the epilogue in float32 (Higham, Accuracy, 3.1).
    allowed = 0.0 if exact else (UNIT[dtype] + 2.0**-40) * want.abs() + (t.K + 4) * 2.0**-24 * sizes + 2.0**-25
    error = (out.double() - (want.float().to(dtype).double() if exact else want)).abs()
    if not bool((error <= allowed).all()):
        return f"{int((~(error <= allowed)).sum())} of {out.numel()} elements"
    return None


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def results(matmul, tries):
    """Everything found, one line a call: case, dtype, fill, finding."""
    for t in tries:
        for dtype in t.dtypes:
            for fill in ("integers", "normal") if t.fill == "both" else (t.fill,):
                yield str(replace(t, dtypes=(dtype,))), fill, wrong(matmul, t, dtype, fill)


def main(names):
    if DEVICE == "cpu":
        from rooftest.interpreter import install

        faults = install()
        assert not faults, faults
    report = {}
    for name in names:
        quiet, loud = TRIES[name]
        matmul = load(name).matmul
        report[name] = {
            "wrong outside": [r for r in results(matmul, quiet) if r[-1]],
            "right within": [r for r in results(matmul, loud) if not r[-1]],
        }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:])
