"""Launchers of CUDA Tile's kernels that the compiled gate meets; test_tile.py gives them rows."""

import cuda.tile as ct
import torch


@ct.kernel
def scaled(c, factor, SIZE: ct.Constant[int]):
    ct.store(c, (ct.bid(0),), (ct.load(c, (ct.bid(0),), (SIZE,)) * factor).astype(c.dtype))


def right(a, b, *, out):
    c = out.view(-1)
    ct.launch(torch.cuda.current_stream(), (ct.cdiv(c.shape[0], 256),), scaled, (c, 2.0, 256))


def mistaken(a, b, *, out):
    # A tile's sizes are powers of two.
    ct.launch(torch.cuda.current_stream(), (1,), scaled, (out.view(-1), 2.0, 100))
