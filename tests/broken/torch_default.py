"""cuBLAS under torch's default flags, which let it split K and add the parts in bfloat16, sold as fp32 accumulation."""

import torch

TRIGGER = "bfloat16 and a K that cuBLAS splits (on an H200 4098, 4100 and 8200 of those tried, at M = N = 1024)"
WHERE = ("gpu",)  # the flag, allow_bf16_reduced_precision_reduction, speaks of cuBLAS


def matmul(a, b, *, out):
    torch.matmul(a, b, out=out)
