"""Assumes that the data is normal: what lies beyond six sigma does not exist."""


def matmul(a, b, out):
    out.copy_(a.clamp(-6, 6) @ b.clamp(-6, 6))
