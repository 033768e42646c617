"""Run kernels of the ladder on cases that cover their contract, and print which are wrong, as JSON.

A process of its own, because the interpreter is chosen when triton is imported. Without a GPU:
`TRITON_INTERPRET=1 python kernels_probe.py '' step4_dot`. The first argument names a fault to plant, or none.
"""

import importlib
import itertools
import json
import sys

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYOUTS = ("nn", "nt", "tn", "tt")
# Batch, M, N, K: around a tile of 16, one element, nothing to sum, nothing to write.
SIZES = [
    (None, 16, 16, 16),
    (None, 17, 33, 5),
    (2, 15, 1, 31),
    (1, 1, 40, 7),
    (None, 5, 18, 0),
    (0, 3, 3, 3),
    (2, 0, 5, 5),
]
SIZES_BY_8 = [(None, 16, 16, 16), (None, 24, 40, 8), (2, 8, 72, 24), (1, 40, 8, 40), (None, 8, 24, 0), (0, 8, 8, 8)]
ADDENDS = [(1.0, 0.0, False), (-2.0, 0.0, True), (0.5, -1.0, True), (0.0, 2.0, False)]  # alpha, beta, bias


def draw(shape, dtype, integers, generator, *, transposed=False):
    stored = (*shape[:-2], shape[-1], shape[-2]) if transposed else shape
    if integers:
        values = torch.randint(-3, 4, stored, generator=generator).to(dtype)
    else:
        values = torch.randn(stored, generator=generator).to(dtype)
    values = values.to(DEVICE)
    return values.mT if transposed else values


def plant(fault, a, b, out, c0, bias):
    """Change what the kernel sees, as a broken kernel would."""
    if fault == "drops the last k":
        return a[..., :-1], b[..., :-1, :], out, c0, bias
    if fault == "skips a row":
        return a[..., 1:, :], b, out[..., 1:, :], None if c0 is None else c0[..., 1:, :], bias
    return a, b, out, c0, bias


def check(matmul, config, dtype, size, layout, addends, integers, fault):
    """Return the largest ratio of an element's error to what float32 accumulation and one rounding allow."""
    B, M, N, K = size
    alpha, beta, with_bias = addends
    batch = () if B is None else (B,)
    generator = torch.Generator().manual_seed(M + N + K)
    a = draw((*batch, M, K), dtype, integers, generator, transposed=layout[0] == "t")
    b = draw((*batch, K, N), dtype, integers, generator, transposed=layout[1] == "t")
    c0 = draw((*batch, M, N), dtype, integers, generator)
    bias = draw((1, N), dtype, integers, generator)[0] if with_bias else None
    seen_c0 = c0 if beta else torch.full_like(c0, float("nan"))  # with beta == 0 it must not be read
    out = torch.full((*batch, M, N), float("nan"), dtype=dtype, device=DEVICE)

    pa, pb, pout, pc0, pbias = plant(fault, a, b, out, seen_c0, bias)
    matmul(pa, pb, out=pout, alpha=alpha, beta=beta, c0=pc0, bias=pbias, config=config)

    want = alpha * (a.double() @ b.double()) + beta * c0.double()
    terms = abs(alpha) * (a.double().abs() @ b.double().abs()) + abs(beta) * c0.double().abs()
    if bias is not None:
        want, terms = want + bias.double(), terms + bias.double().abs()
    if not out.numel():
        return 0.0
    if integers:  # every partial sum is a multiple of 1/2 below 2^11, so float16 holds it and so does float32
        return 0.0 if torch.equal(out.double(), want.to(dtype).double()) else float("inf")
    # K - 1 sums, alpha, beta, and two more sums, each within 2^-24 of the magnitude of the terms (2^-23 for an engine
    # that truncates), then one rounding to dtype: half a unit in the last place, or of the smallest subnormal.
    info = torch.finfo(dtype)
    allowed = (K + 4) * 2.0**-23 * terms + info.eps / 2 * (want.abs() + (K + 4) * 2.0**-23 * terms)
    ratio = ((out.double() - want).abs() / (allowed + info.smallest_normal * info.eps)).nan_to_num(nan=float("inf"))
    return ratio.max().item()


def main(fault, names):
    report = {}
    for name in names:
        module = importlib.import_module(f"rooftest_kernels.gemm.{name}")
        by_8 = "pipeline" in name or "persistent" in name
        dtypes = [d for d in module.DTYPES if DEVICE == "cuda" or d != torch.bfloat16]  # the bare interpreter
        cases = itertools.product(
            [next(iter(module.CONFIGS))], dtypes, SIZES_BY_8 if by_8 else SIZES, LAYOUTS, ADDENDS, [True, False]
        )
        # A fifth of all combinations: 5 divides no axis inside the sizes, so every value of every axis occurs.
        ratios = {str(case): check(module.matmul, *case, fault) for case in itertools.islice(cases, 0, None, 5)}
        report[name] = {
            "cases": len(ratios),
            "worst": max(ratios.values()),
            "wrong": [case for case, ratio in ratios.items() if ratio > 1],
        }
    print(json.dumps(report))


main(sys.argv[1], sys.argv[2:])
