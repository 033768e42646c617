"""Fewer bits on the way than the contract says."""

import torch

from broken.fault import Fault, Try

_DOT = 'acc = tl.dot(a_tile, b_tile, acc, input_precision="ieee")'

FAULTS = (
    Fault(
        "tf32", "precision", "float32 is multiplied in tf32, which `tl.dot` does unless told otherwise.",
        "float32 elements with more than 10 mantissa bits",
        ((_DOT, "acc = tl.dot(a_tile, b_tile, acc)"),),
        right=(Try(dtypes=(torch.float16, torch.bfloat16)), Try()),
        wrong=(Try(dtypes=(torch.float32,), fill="normal"),),
    ),
    Fault(
        "bf16_accumulation", "precision", "The sum passes through the output's dtype before every step along K.",
        "16-bit tensors and K > 32",
        ((_DOT, _DOT.replace("b_tile, acc", "b_tile, acc.to(c.dtype.element_ty).to(tl.float32)")),),
        right=(Try(K=32), Try(K=64, dtypes=(torch.float32,))),
        # integers whose partial sums float16 holds are right by luck
        wrong=(Try(K=640, dtypes=(torch.bfloat16,)), Try(K=640, dtypes=(torch.float16,), fill="normal")),
    ),
    Fault(
        "torch_default", "precision", "cuBLAS under torch's default flags, which let it add parts of K in bfloat16.",
        "bfloat16 and a K that cuBLAS splits (on an H200 4098, 4100 and 8200 of those tried, at M = N = 1024)",
        base="torch_default", right=(Try(alpha=1.0, bias=False), Try(256, 256, 1024, alpha=1.0, bias=False)),
        wrong=(Try(1024, 1024, 4100, dtypes=(torch.bfloat16,), alpha=1.0, bias=False),),
        places=("gpu",), why="the flag, allow_bf16_reduced_precision_reduction, speaks of cuBLAS",
    ),
)  # fmt: skip
