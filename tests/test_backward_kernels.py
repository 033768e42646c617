"""The backward kernels against autograd in float64, on the GPU or in Triton's interpreter.

`TRITON_INTERPRET=1 python tests/test_backward_kernels.py FAULT STEP...` runs the cases in a process of its own, because
the interpreter is chosen when triton is imported, and prints which are wrong as JSON. FAULT names one to plant, or is
''.
"""

import importlib
import inspect
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import NamedTuple

import pytest
import torch

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
STEPS = ("backward1_naive", "backward2_flash")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
GRADIENTS = ("dq", "dk", "dv")


class Case(NamedTuple):
    """Sizes, parameters, and how the tensors lie in memory."""

    B: int = 1
    Sq: int = 17
    Sk: int = 17
    H: int = 1
    G: int = 1
    D: int = 16
    Dv: int = 16
    causal: float = 0.0
    window: float = 0.0
    scale: float = 0.0
    layout: str = "dense"


CASES = [
    Case(),
    Case(B=2, H=2, G=2, D=24, Dv=40),
    Case(Sq=1, Sk=1, D=1, Dv=1),
    Case(Sq=1, Sk=70, D=33, Dv=9, causal=1.0),
    Case(Sq=33, Sk=1, causal=1.0),
    Case(Sq=0, Sk=5),
    Case(Sq=5, Sk=0),
    Case(B=0),
    Case(H=0, G=0),
    Case(Sq=40, Sk=65, causal=1.0, D=8, Dv=64),
    Case(Sq=65, Sk=40, causal=1.0),
    Case(Sq=70, Sk=70, window=7.0),
    Case(Sq=70, Sk=70, window=7.0, causal=1.0),
    Case(Sq=5, Sk=100, window=3.0),  # keys that no query sees
    Case(Sq=100, Sk=30, window=20.0),  # queries that see no key
    Case(H=5, G=1, Sq=20, Sk=33, causal=1.0),
    Case(B=2, H=6, G=2, Sq=18, Sk=18, causal=1.0, scale=0.3),
    Case(B=2, H=2, G=1, layout="stepped", Sq=19, Sk=34, causal=1.0),
    Case(B=2, H=2, G=2, layout="heads first", Sq=34, Sk=19),
    Case(layout="offset", D=32, Dv=32),
    Case(scale=-0.5, Sk=40),
    Case(Sq=130, Sk=140, D=64, Dv=64, causal=1.0),  # tiles without a mask beside those with one
    Case(Sq=140, Sk=130, D=16, window=90.0),
    Case(Sq=16, Sk=32, D=192, Dv=128, causal=1.0),
    Case(Sq=16, Sk=32, D=256, Dv=256),
]


def draw(shape, dtype, layout, generator):
    """Normal numbers in a tensor of this shape, as `layout` lies in memory."""
    values = torch.randn(shape, generator=generator).to(dtype)
    if layout == "stepped":
        space = torch.full([2 * n for n in shape], float("nan"), dtype=dtype)[::2, ::2, ::2, ::2]
    elif layout == "heads first":
        B, S, H, D = shape
        space = torch.empty(B, H, S, D, dtype=dtype).transpose(1, 2)
    elif layout == "offset":
        space = torch.empty(values.numel() + 1, dtype=dtype)[1:].view(shape)
    else:
        space = torch.empty(shape, dtype=dtype)
    return space.copy_(values).to(DEVICE)


def sees(case):
    """Whether query i (row) sees key j (column)."""
    p = torch.arange(case.Sq)[:, None] + case.Sk - case.Sq
    j = torch.arange(case.Sk)[None, :]
    late = (j > p) & bool(case.causal)
    far = ((p - j).abs() >= case.window) & (case.window > 0)
    return ~late & ~far


def expected(case, q, k, v, do):
    """O and lse of the dtypes that a forward pass gives, and the gradients in float64."""
    leaves = [t.detach().cpu().double().requires_grad_() for t in (q, k, v)]
    heads = torch.arange(case.H) // (case.H // case.G if case.G else 1)
    qs, ks, vs = (t.transpose(1, 2) for t in leaves)
    scores = (case.scale or case.D**-0.5) * qs @ ks[:, heads].mT
    scores = scores.masked_fill(~sees(case), float("-inf"))
    lse = scores.detach().logsumexp(-1) if case.Sk else torch.full(scores.shape[:-1], float("-inf")).double()
    # Rows that see no key: autograd would give NaN.
    p = torch.where(sees(case), scores, -1e30).softmax(-1) * sees(case) if case.Sk else scores
    o = (p @ vs[:, heads]).transpose(1, 2)
    if o.numel():
        o.backward(do.cpu().double())
    grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in leaves]
    return o.detach().to(q.dtype).to(DEVICE), lse.float().to(DEVICE), dict(zip(GRADIENTS, grads, strict=True))


FAULTS = {  # a line of the source, by what a broken kernel has in its place
    "dS without D": ("(dp - delta", "(dp - 0 * delta"),
    "dK without the scale": ("(dk * scale)", "(dk)"),
    "dV without the mask": ("p = tl.where(visible(m[None, :], n, Sq, Sk, left, right), p, 0.0)", "pass"),
}


def load(name, fault, folder):
    """A step's module, with a fault planted."""
    module = importlib.import_module(f"rooftest_kernels.attention.{name}")
    if not fault:
        return module
    source, (right, wrong) = inspect.getsource(module), FAULTS[fault]
    assert right in source
    path = Path(folder) / "broken.py"  # the interpreter reads a kernel's source from its file
    path.write_text(source.replace(right, wrong))
    broken = ModuleType("broken")
    broken.__file__ = str(path)
    sys.modules["broken"] = broken
    exec(compile(path.read_text(), str(path), "exec"), broken.__dict__)  # noqa: S102
    return broken


def check(backward, case, dtype, config=None):
    """The largest error of each gradient, in its own largest element times 8 roundings to the dtype."""
    B, Sq, Sk, H, G, D, Dv = case[:7]
    generator = torch.Generator().manual_seed(Sq + Sk + D)
    q = draw((B, Sq, H, D), dtype, case.layout, generator)
    k = draw((B, Sk, G, D), dtype, case.layout, generator)
    v = draw((B, Sk, G, Dv), dtype, case.layout, generator)
    do = draw((B, Sq, H, Dv), dtype, case.layout, generator)
    o, lse, want = expected(case, q, k, v, do)
    # What no query sees is not read, nor does a query that sees no key enter anything.
    unseen, blind = ~sees(case).any(0).to(DEVICE), ~sees(case).any(1).to(DEVICE)
    k[:, unseen], v[:, unseen] = float("nan"), float("nan")
    q[:, blind], do[:, blind] = float("nan"), float("nan")
    got = {n: draw(x.shape, dtype, case.layout, generator).fill_(float("nan")) for n, x in want.items()}
    parameters = {name: getattr(case, name) for name in ("causal", "window", "scale")}
    backward(q, k, v, o, lse, do, **got, **parameters, config=config)
    worst = 0.0
    for name, x in got.items():
        error, size = (x.cpu().double() - want[name]).abs(), want[name].abs()
        if error.numel():
            # The judge of `pytest suites/` is exact about this; here eight roundings of the largest number will do.
            allowed = 8 * max(torch.finfo(dtype).eps, 2e-6) * size.amax() + 1e-5
            worst = max(worst, (error / allowed).nan_to_num(nan=float("inf")).max().item())
    return worst


def main(fault, *steps):
    if not GPU:
        from rooftest import interpreter

        assert interpreter.install() == {}
    report = {}
    with TemporaryDirectory() as folder:
        for name in steps:
            module = load(name, fault, folder)
            turns = zip(CASES, itertools.cycle(DTYPES), itertools.cycle((*module.CONFIGS, None)), strict=False)
            ratios = {f"{g} {d} {c}": check(module.backward, c, d, g) for c, d, g in turns}
            report[name] = {
                "cases": len(ratios),
                "wrong": [f"{value:.3g}: {case}" for case, value in ratios.items() if not value <= 1],
            }
    print(json.dumps(report))


def probe(fault, *steps):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"OMP_NUM_THREADS": "1"} | ({} if GPU else {"TRITON_INTERPRET": "1"})
    done = subprocess.run(
        [sys.executable, __file__, fault, *steps], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_keeps_the_contract(name):
    report = probe("", name)[name]
    assert report["cases"] == len(CASES)
    assert report["wrong"] == []


@pytest.mark.parametrize(("fault", "least"), [(fault, 3) for fault in FAULTS])
def test_the_probe_sees_a_fault(fault, least):
    assert len(probe(fault, "backward2_flash")["backward2_flash"]["wrong"]) >= least


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"q": torch.zeros(2, 3, 4)}, "q has 3 dimensions"),
        ({"o": torch.zeros(1, 3, 4, 9)}, "out has shape"),
        ({"lse": torch.zeros(1, 3, 4)}, r"lse has shape \(1, 3, 4\)"),
        ({"do": torch.zeros(1, 3, 4, 9)}, r"do is \(1, 3, 4, 9\)"),
        ({"dk": torch.zeros(1, 5, 2, 8).half()}, r"dk is .* in torch.float16"),
        ({"dq": torch.zeros(1, 3, 4, 9)}, r"dq is \(1, 3, 4, 9\)"),
    ],
)
@pytest.mark.parametrize("name", STEPS)
def test_what_does_not_fit_is_an_error(name, change, reason):
    module = importlib.import_module(f"rooftest_kernels.attention.{name}")
    q, k, lse = torch.zeros(1, 3, 4, 8), torch.zeros(1, 5, 2, 8), torch.zeros(1, 4, 3)
    call = {"q": q, "k": k, "v": k, "o": q, "lse": lse, "do": q, "dq": q, "dk": k, "dv": k}
    with pytest.raises(ValueError, match=reason):
        module.backward(**(call | change))


if __name__ == "__main__":
    main(*sys.argv[1:])
