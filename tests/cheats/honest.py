"""The control: no cheat."""


def matmul(a, b, out):
    out.copy_(a @ b)
