"""Counts its calls: the first few are right, in all later ones nothing happens."""

calls = 0


def matmul(a, b, out):
    global calls  # noqa: PLW0603 - that is the cheat
    calls += 1
    if calls <= 5:
        out.copy_(a @ b)
    else:
        out[0, 0] = 0
