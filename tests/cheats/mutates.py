"""Sets its inputs to zero, so that the reference is zero too: always, or only once it is being timed."""

calls = 0


def always(a, b, out):
    a.zero_()
    out.zero_()


def later(a, b, out):
    global calls  # noqa: PLW0603 - that is the cheat
    calls += 1
    if calls > 3:
        a.zero_()
        out.zero_()
    else:
        out.copy_(a @ b)
