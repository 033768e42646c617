"""Run broken kernels beside plain float64, on calls within and outside their triggers; print what is wrong, as JSON.

A process of its own, because a kernel that reads out of bounds may take its process with it, and the interpreter is
chosen when triton is imported: without a GPU, `TRITON_INTERPRET=1 python broken_probe.py clean tf32`. Uses nothing of
the judge, so that it can contradict it.
"""

import importlib.util
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from broken import BASES, CONTROLS, FAULTS, write
from broken.attention import beside

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The largest integer: products of 4100 of the first, 64 of the second, times alpha in eighths, are exact in float32.
INTEGERS = {"integers": 4, "large": 64}
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def stored(name, values, t, behind, *, transposed=False, loose=0):
    """Put values into memory as the call says, `behind` in the gaps and after them; `loose` widens the gaps.

    Returns the view and the memory it lies in.
    """
    t = t if t.only in {"", name} else replace(t, gap=0, apart=0, step=1)
    transposed |= t.columns == name
    *batch, rows, cols = values.shape if values.dim() > 1 else (1, *values.shape)
    rows, cols = (cols, rows) if transposed else (rows, cols)
    step = t.step + (loose if t.step > 1 else 0)
    pitch = max(cols, 1) * step + t.gap + (loose if t.gap else 0)
    apart = rows * pitch + t.apart
    count = batch[0] if batch else 1
    memory = torch.full((count * apart + 4096,), behind, dtype=values.dtype, device=DEVICE)
    view = memory.as_strided((count, rows, cols), (apart, pitch, step))
    view = view.transpose(1, 2) if transposed else view
    view = view if batch else view[0]
    view = view if values.dim() > 1 else view[0]
    view.copy_(values)
    return view, memory


def spread(view, t):
    """An input that repeats, along the batch if there is one, else along its rows."""
    return view[:1].expand(view.shape) if t.spread and view.dim() > 1 and view.shape[0] else view


def drawn(shape, fill, dtype, generator):
    if fill in INTEGERS:
        return torch.randint(-INTEGERS[fill], INTEGERS[fill] + 1, shape, generator=generator).to(dtype)
    x = torch.randn(shape, generator=generator)
    if fill == "outliers":
        x.view(-1)[::7] *= 2.0**12
    return x.to(dtype)


def special(a, b, fill):
    """Values that A and B can only have together."""
    if fill == "tiny":  # A below the normal numbers of float16, the product not
        a *= 2.0**-15
        b *= 2.0**8
    if fill in {"huge", "minute"}:  # A above 1e20 and B below its inverse, or the other way round
        a *= 2.0 ** (80 if fill == "huge" else -80)
        b *= 2.0 ** (-80 if fill == "huge" else 80)
    if fill == "infinite":  # zeros of A, a whole tile of them, meet a NaN and an infinity of B
        a[..., 32:] = 0.0
        b[..., 40, 0] = float("nan")
        b[..., 41, 1] = float("inf")


def wrong(matmul, t, dtype):
    """Say what is wrong with one call, or None."""
    fill = t.fill
    generator = torch.Generator().manual_seed(t.M + t.N + t.K)
    batch = () if t.B is None else (t.B,)
    values = lambda *shape: drawn(shape, fill, dtype, generator)  # noqa: E731
    a, _ = stored("a", values(*batch, t.M, t.K), t, t.behind, transposed=t.layout[0] == "t")
    b, _ = stored("b", values(*batch, t.K, t.N), t, 0.0, transposed=t.layout[1] == "t")
    special(a, b, fill)
    a, b = spread(a, t), spread(b, t)
    loose = 0 if t.tight else 2
    bias = stored("bias", values(t.N), replace(t, step=t.step if loose else 1), 0.0)[0] if t.bias else None
    out, memory = stored("c", torch.full((*batch, t.M, t.N), float("nan"), dtype=dtype), t, 7.0)
    c0 = None
    if t.c0 != "none":
        full = values(*batch, t.M, t.N)
        c0, _ = stored("c0", full if t.c0 == "finite" else torch.full_like(full, float("nan")), t, 0.0, loose=loose)
    tensors = {"a": a, "b": b, "c0": c0, "bias": bias}
    before = {n: x.clone() for n, x in tensors.items() if x is not None}
    kwargs = {
        "alpha": t.alpha if t.alpha != 1 else None, "beta": t.beta or None, "c0": c0, "bias": bias, "config": t.config,
    }  # fmt: skip
    # Only what differs from the defaults: not every kernel takes everything.
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    try:
        matmul(a, b, out=out, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return f"raises {type(error).__name__}"
    if t.check == "raises":
        return None
    for name, was in before.items():
        if not torch.equal(tensors[name].nan_to_num(), was.nan_to_num()):
            return f"{name} was modified"
    if t.check == "repeat":
        again = [torch.empty_like(out) for _ in range(20)]
        for each in again:
            matmul(a, b, out=each, **kwargs)
        return None if all(torch.equal(each, out) for each in again) else "other bits in another call"
    if t.check == "alone":
        alone = torch.empty_like(out[:1])
        matmul(a[:1], b, out=alone, **kwargs | ({"c0": c0[:1]} if c0 is not None else {}))
        return None if torch.equal(alone, out[:1]) else "other bits alone"
    want, sizes = _expected(t, tensors)
    exact = fill in INTEGERS and all((8 * x).is_integer() for x in (t.alpha, t.beta))
    # One rounding to the output, K additions and four more of the epilogue in float32 (Higham, Accuracy, 3.1).
    allowed = 0.0 if exact else (UNIT[dtype] + 2.0**-40) * want.abs() + (t.K + 4) * 2.0**-24 * sizes + 2.0**-25
    target = want.float().to(dtype).double() if exact else want
    right = ((out.double() - target).abs() <= allowed) | (out.double() == target) | (out.isnan() & target.isnan())
    if not bool(right.all()):
        return f"{int((~right).sum())} of {out.numel()} elements"
    out.fill_(7.0)
    return None if bool((memory == 7.0).all()) else "wrote outside C"


def _expected(t, tensors):
    a, b, c0, bias = (x if x is None else x.double() for x in tensors.values())
    alpha, beta = (torch.tensor(x, dtype=torch.float32).double() for x in (t.alpha, t.beta))  # the kernel gets float32
    want, sizes = alpha * (a @ b), alpha.abs() * (a.abs() @ b.abs())
    if bias is not None:
        want, sizes = want + bias, sizes + bias.abs()
    if t.beta != 0:
        want, sizes = want + beta * c0, sizes + (beta * c0).abs()
    return want, sizes


def load(name, folder):
    spec = importlib.util.spec_from_file_location(f"broken_{name}", write(name, folder))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


JUDGES = {"gemm": wrong, "attention": beside.wrong}


def results(fault, kernel, tries):
    """Everything found, a call and what was found each."""
    for t in tries:
        for dtype in t.dtypes:
            yield str(replace(t, dtypes=(dtype,))), JUDGES[fault.op](kernel, t, dtype)


def main(names):
    if DEVICE == "cpu":
        from rooftest.interpreter import install

        faults = install()
        assert not faults, faults
    report = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            fault = {**CONTROLS, **FAULTS}[name]
            kernel = getattr(load(name, Path(folder)), BASES[fault.base].entry)
            report[name] = {
                "wrong outside": [r for r in results(fault, kernel, fault.right) if r[-1]],
                "right within": [r for r in results(fault, kernel, fault.wrong) if not r[-1]],
            }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:])
