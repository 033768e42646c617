"""The control on a GPU: no cheat."""

import torch


def matmul(a, b, out):
    torch.matmul(a, b, out=out)
