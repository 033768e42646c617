"""The attention kernels against softmax(scores) V written out in float64, on the GPU or in Triton's interpreter.

`TRITON_INTERPRET=1 python tests/test_attention_kernels.py STEP...` runs the cases in a process of its own, because the
interpreter is chosen when triton is imported, and prints which are wrong, as JSON, then which are with faults planted.
`python tests/test_attention_kernels.py hopper CONFIG` compiles the Hopper kernel and prints its instructions.
"""

import importlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import triton

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
STEPS = ("step1_naive", "step2_tiled", "step3_flash")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


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
    softcap: float = 0.0
    slopes: bool = False
    layout: str = "dense"
    spread: float = 1.0  # of the elements of Q and K


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
    Case(Sq=65, Sk=40, D=20),
    Case(Sq=70, Sk=70, window=7.0),
    Case(Sq=70, Sk=70, window=7.0, causal=1.0),
    Case(Sq=5, Sk=100, window=3.0),
    Case(Sq=100, Sk=30, window=20.0, causal=1.0),
    Case(Sq=35, Sk=35, window=1.0),
    Case(Sq=35, Sk=35, window=1e9, causal=1.0),
    Case(H=5, G=1, Sq=20, Sk=33, causal=1.0),
    Case(B=2, H=8, G=1, Sq=3, Sk=34),
    Case(B=2, H=6, G=2, Sq=18, Sk=18, causal=1.0, slopes=True),
    Case(Sk=50, softcap=2.0, spread=2.0),
    Case(Sk=50, softcap=50.0, slopes=True, causal=1.0, window=20.0),
    Case(H=2, G=2, slopes=True, Sk=40),
    Case(B=2, H=2, G=1, layout="stepped", Sq=19, Sk=34, causal=1.0),
    Case(B=2, H=2, G=2, layout="heads first", Sq=34, Sk=19, slopes=True),
    Case(layout="offset", D=32, Dv=32),
    Case(scale=1.0, spread=8.0, D=64, Sk=60, causal=1.0),
    Case(scale=-0.5, Sk=40),
    Case(Sq=66, Sk=130, D=64, Dv=64, causal=1.0),  # tiles without a mask on both sides of one tile
    Case(Sq=130, Sk=200, D=16, window=90.0),
    Case(Sq=16, Sk=32, D=128, Dv=128),
    Case(Sq=16, Sk=32, D=192, Dv=128, causal=1.0),
    Case(Sq=16, Sk=32, D=256, Dv=256, causal=1.0),
]
SDPA_CASES = [case for case in CASES if not case.slopes and not case.softcap]  # torch has neither


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
    return ~late & ~far, (p - j).abs().double()


def expected(case, q, k, v, slopes):
    """Output and lse in float64, and the error that float32 scores and two roundings to the dtype may leave in each."""
    u = torch.finfo(q.dtype).eps / 2
    repeat = case.H // case.G if case.G else 1
    q, k, v = (t.cpu().double().transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(repeat, 1) for t in (k, v))
    scale = case.scale or case.D**-0.5
    mask, distance = sees(case)
    s, size = scale * q @ k.mT, abs(scale) * q.abs() @ k.mT.abs()
    if case.softcap:
        s = case.softcap * torch.tanh(s / case.softcap)
    if slopes is not None:
        bias = slopes.cpu().double()[:, None, None] * distance
        s, size = s - bias, size + bias
    s = s.masked_fill(~mask, float("-inf"))
    lse = torch.logsumexp(s, -1) if case.Sk else torch.full(s.shape[:-1], float("-inf"), dtype=torch.float64)
    p = torch.exp(s - lse.masked_fill(lse == float("-inf"), 0.0)[..., None])
    # A score is D products and their sums, the scale, the cap (2^-21, 8 times 2^-24) and the slope; the exponential of
    # one is as wrong, relatively, as the score is absolutely. Then Sk shares are added, the sum divides.
    wrong = (case.D + 24) * 2.0**-24 * size.masked_fill(~mask, 0).amax(-1) if case.Sk else torch.zeros_like(lse)
    relative = 2 * wrong + (case.Sk + 16) * 2.0**-24
    weight = p @ v.abs()
    # P and the output are rounded; the third is for the sum of shares, which may be taken before or after rounding.
    # float16 has no shares below 2^-24: each may be off by half of that.
    floor = 2.0**-25 * (mask.double() @ v.abs() + 1) if q.dtype == torch.float16 else 2.0**-130
    allowed = (3 * u + relative[..., None]) * weight + floor
    lse_allowed = relative + 2.0**-22 * lse.masked_fill(lse == float("-inf"), 0.0).abs() + 2.0**-22
    return (p @ v).transpose(1, 2), allowed.transpose(1, 2), lse, lse_allowed


FAULTS = {  # what a broken kernel would see, and in how many cases at least that shows
    "one key too few": (lambda call: {"k": call["k"][:, 1:], "v": call["v"][:, 1:]}, 25),
    "the last head of K for all": (lambda call: {"k": call["k"][:, :, -1:], "v": call["v"][:, :, -1:]}, 4),
    "no mask": (lambda _: {"causal": 0.0, "window": 0.0}, 15),
}


def ratio(found, want, allowed):
    """The largest error over what is allowed; infinite where one is NaN or infinite and the other is not."""
    found = found.cpu().double()
    if not found.numel():
        return 0.0
    error = torch.where(found == want, 0.0, (found - want).abs() / allowed)
    return error.nan_to_num(nan=float("inf")).max().item()


def check(attention, case, dtype, fault="", config=None, *, has_lse=True):
    """The largest ratio of an element's error to what is allowed, of the output and of lse."""
    B, Sq, Sk, H, G, D, Dv = case[:7]
    generator = torch.Generator().manual_seed(Sq + Sk + D)
    q = case.spread * draw((B, Sq, H, D), dtype, "dense", generator)
    q = draw((B, Sq, H, D), dtype, case.layout, generator).copy_(q)
    k = draw((B, Sk, G, D), dtype, case.layout, generator).mul_(case.spread)
    v = draw((B, Sk, G, Dv), dtype, case.layout, generator)
    slopes = torch.rand(H, generator=generator).to(DEVICE) if case.slopes else None
    want = expected(case, q, k, v, slopes)
    # What no query sees is not read.
    unseen = ~sees(case)[0].any(0).to(DEVICE)
    k[:, unseen], v[:, unseen] = float("nan"), float("nan")
    out = draw((B, Sq, H, Dv), dtype, case.layout, generator).fill_(float("nan"))
    lse = torch.full((B, H, Sq), float("nan"), device=DEVICE)
    call = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "slopes": slopes}
    call |= {name: getattr(case, name) for name in ("causal", "window", "scale", "softcap")}
    if fault:
        call |= FAULTS[fault][0](call)
    attention(**call, config=config)
    return max(ratio(out, *want[:2]), ratio(lse, *want[2:]) if has_lse else 0.0)


def main(*steps):
    if not GPU:
        from rooftest import interpreter

        assert interpreter.install() == {}
    report = {}
    for name, fault in [*((step, "") for step in steps), *((steps[-1], fault) for fault in FAULTS)]:
        module = importlib.import_module(f"rooftest_kernels.attention.{name}")
        # Every case in one dtype and configuration; 3 and the number of configurations walk through all of them.
        turns = zip(CASES, itertools.cycle(DTYPES), itertools.cycle(module.CONFIGS), strict=False)
        ratios = {
            f"{config} {dtype} {case}": check(module.attention, case, dtype, fault, config)
            for case, dtype, config in turns
        }
        report[fault or name] = [f"{value:.3g}: {case}" for case, value in ratios.items() if not value <= 1]
    print(json.dumps(report))


@pytest.fixture(scope="module")
def report():
    """What is wrong of each step, and of the last one with each fault."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"OMP_NUM_THREADS": "1"} | ({} if GPU else {"TRITON_INTERPRET": "1"})
    done = subprocess.run(
        [sys.executable, __file__, *STEPS], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_keeps_the_contract(name, report):
    assert report[name] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_sees_a_fault(fault, report):
    assert len(report[fault]) >= FAULTS[fault][1]


@pytest.mark.parametrize("backend", ["attention", "attention_math", *(["attention_efficient"] if GPU else [])])
def test_torch_means_the_same(backend):
    module = importlib.import_module("rooftest_kernels.attention.torch_sdpa")

    def call(q, k, v, *, out, lse, slopes, causal, window, scale, softcap, config):
        out.copy_(getattr(module, backend)(q, k, v, causal=causal, window=window, scale=scale))

    for case, dtype in zip(SDPA_CASES, itertools.cycle(DTYPES), strict=False):
        assert check(call, case, dtype, has_lse=False) <= 1, (case, dtype)


@pytest.mark.parametrize(
    ("case", "masked", "causal"),
    [
        (Case(Sq=8, Sk=8, causal=1.0), False, True),
        (Case(Sq=8, Sk=8), False, False),
        (Case(Sq=1, Sk=8, causal=1.0), False, False),  # the last query sees every key
        (Case(Sq=9, Sk=8, causal=1.0), False, True),  # without the query that sees none
        (Case(Sq=8, Sk=9, causal=1.0), True, False),
        (Case(Sq=8, Sk=8, causal=1.0, window=3.0), True, False),
        (Case(Sq=8, Sk=8, causal=1.0, window=8.0), False, True),
        (Case(Sq=1, Sk=8, causal=1.0, window=3.0), False, False),  # nor the keys that it does not see
    ],
)
def test_torch_is_asked_for_a_mask_only_where_it_needs_one(case, masked, causal, monkeypatch):
    module = importlib.import_module("rooftest_kernels.attention.torch_sdpa")
    asked = {}
    original = module.scaled_dot_product_attention
    monkeypatch.setattr(
        module, "scaled_dot_product_attention", lambda *t, **how: asked.update(how) or original(*t, **how)
    )
    q, k = torch.zeros(1, case.Sq, 2, 8), torch.zeros(1, case.Sk, 2, 8)
    module.attention(q, k, k, causal=case.causal, window=case.window)
    assert (asked["attn_mask"] is not None, asked["is_causal"]) == (masked, causal)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"q": torch.zeros(2, 3, 4)}, "q has 3 dimensions"),
        ({"k": torch.zeros(1, 5, 2, 8).half()}, "one dtype out of"),
        ({"k": torch.zeros(1, 5, 2, 9)}, r"k has shape \(1, 5, 2, 9\)"),
        ({"v": torch.zeros(1, 5, 3, 8)}, "4 heads and k 3"),
        ({"v": torch.zeros(1, 5, 0, 8)}, "4 heads and k 0"),
        ({"v": torch.zeros(1, 5, 2, 257)}, "Dv is 257"),
        ({"out": torch.zeros(1, 3, 4, 9)}, "out has shape"),
        ({"lse": torch.zeros(1, 3, 4)}, r"lse has shape \(1, 3, 4\)"),
        ({"lse": torch.zeros(1, 4, 3).half()}, "lse is torch.float16"),
        ({"slopes": torch.zeros(2)}, "slopes has shape"),
        ({"window": 2.5}, "a whole number"),
        ({"softcap": -1.0}, "not negative"),
    ],
)
@pytest.mark.parametrize("name", STEPS)
def test_what_does_not_fit_is_an_error(name, change, reason):
    module = importlib.import_module(f"rooftest_kernels.attention.{name}")
    q, k, out = torch.zeros(1, 3, 4, 8), torch.zeros(1, 5, 2, 8), torch.zeros(1, 3, 4, 8)
    with pytest.raises(ValueError, match=reason):
        module.attention(**({"q": q, "k": k, "v": k, "out": out} | change))


HOPPER = {"q": (2, 300, 8, 128), "k": (2, 400, 2, 128), "v": (2, 400, 2, 128), "out": (2, 300, 8, 128)}


def hopper_call(change):
    shapes = HOPPER | {name: value for name, value in change.items() if name in HOPPER}
    call = {name: torch.empty(shape, dtype=torch.float16, device="meta") for name, shape in shapes.items()}
    return call | {name: value for name, value in change.items() if name not in HOPPER}


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ({}, True),
        ({"causal": 1.0, "lse": torch.empty(2, 8, 300, device="meta"), "scale": 2.0}, True),
        ({"lse": torch.empty(2, 300, 8, device="meta").mT}, False),
        ({"k": (2, 200, 2, 128), "v": (2, 200, 2, 128)}, True),
        ({"k": (2, 200, 2, 128), "v": (2, 200, 2, 128), "causal": 1.0}, False),  # the first 100 queries see no key
        ({"k": (2, 0, 2, 128), "v": (2, 0, 2, 128)}, False),
        ({"v": (2, 400, 2, 64), "out": (2, 300, 8, 64)}, False),
        ({"window": 100.0}, False),
        ({"softcap": 30.0}, False),
        ({"slopes": torch.empty(8, device="meta")}, False),
        ({"scale": -1.0}, False),
        ({"k": torch.empty(2, 400, 2, 132, dtype=torch.float16, device="meta")[..., :128]}, False),
        ({"k": torch.empty(1, 400, 2, 128, dtype=torch.float16, device="meta").expand(2, -1, -1, -1)}, False),
    ],
)
def test_hopper_takes_its_domain_and_leaves_the_rest(change, taken, monkeypatch):
    step3 = importlib.import_module("rooftest_kernels.attention.step3_flash")
    step4 = importlib.import_module("rooftest_kernels.attention.step4_hopper")
    launched = []
    monkeypatch.setattr(step3, "launch", lambda *_: launched.append("step3"))
    monkeypatch.setattr(step4, "launch", lambda *_: launched.append("step4"))
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda _: 0)
    tensors = {name: value for name, value in change.items() if isinstance(value, torch.Tensor)}
    plain = {name: value for name, value in change.items() if name not in tensors}
    step4.attention(**(hopper_call(plain) | tensors))
    assert launched == ["step4" if taken else "step3"]


@pytest.mark.parametrize(
    ("B", "H", "G", "Sk", "heads"), [(4, 32, 32, 4096, 8), (2, 32, 8, 8192, 16), (1, 7, 7, 16384, 1)]
)
def test_heads_that_fit_the_l2_are_walked_together(B, H, G, Sk, heads):
    step3 = importlib.import_module("rooftest_kernels.attention.step3_flash")
    operands = importlib.import_module("rooftest_kernels.attention.operands").operands
    call = hopper_call({"q": (B, 8, H, 128), "out": (B, 8, H, 128), "k": (B, Sk, G, 128), "v": (B, Sk, G, 128)})
    found = step3.together(operands(*call.values(), None, None, 0.0, 0.0, 0.0, 0.0))
    assert found == heads
    assert B * H % found == 0


def compile_hopper(config):
    """Print the instructions of the Hopper kernel at D = 128, without a GPU."""
    from rooftest.compiled import capture

    with tempfile.TemporaryDirectory() as name:
        recorder = capture.Recorder(Path(name), "sm_90", compiles=True)
        module = importlib.import_module("rooftest_kernels.attention.step4_hopper")
        with recorder.mode:
            q = torch.empty(2, 4096, 4, 128, dtype=torch.bfloat16, device="cuda")
            module.attention(q, q, q, out=torch.empty_like(q), config=config)
        (cubin,) = Path(name).glob("*.cubin")
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        print(subprocess.run([tool, "-sass", cubin], capture_output=True, text=True, check=True).stdout)


def test_hopper_exponentiates_while_the_tensor_cores_multiply():
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, __file__, "hopper", "128"], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ("HGMMA.64x128x16", "UTMALDG.4D", "UTMASTG.4D", "USETMAXREG"))
    # Both consumers have two loops, and each of them a wait for the scores and, behind it, one for P V.
    waits = re.split(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1", done.stdout)[1:]
    between = [re.split(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x0", part)[0] for part in waits]
    assert len(between) == 4
    # 64 scores a thread, and the factors of its two rows.
    assert [part.count("MUFU.EX2") for part in between] == [66] * 4
    assert not any(word in part for part in between for word in ("STL", "LDL", "HGMMA"))


if __name__ == "__main__":
    if sys.argv[1] == "hopper":
        compile_hopper(sys.argv[2])
    else:
        main(*sys.argv[1:])
