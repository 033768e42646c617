"""Launches nothing once it has a result."""

calls = 0


def matmul(a, b, out):
    global calls  # noqa: PLW0603 - that is the cheat
    calls += 1
    if calls <= 2:
        out.copy_(a @ b)
