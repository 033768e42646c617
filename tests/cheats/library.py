"""Says it is a kernel and calls a library."""


def matmul(a, b, out):
    out.copy_(a @ b)
