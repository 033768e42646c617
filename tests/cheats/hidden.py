"""Keeps its one result where state hides: in a closure, a default, a context, a generator, a thread."""

import contextvars
import threading


def _closure():
    kept = None

    def matmul(a, b, out):
        nonlocal kept
        kept = a @ b if kept is None or kept.shape != out.shape else kept
        out.copy_(kept)

    return matmul


closure = _closure()


def default(a, b, out, kept=[]):  # noqa: B006 - that is the cheat
    if not kept or kept[0].shape != out.shape:
        kept[:] = [a @ b]
    out.copy_(kept[0])


CONTEXT = contextvars.ContextVar("kept", default=None)


def context(a, b, out):
    if CONTEXT.get() is None or CONTEXT.get().shape != out.shape:
        CONTEXT.set(a @ b)
    out.copy_(CONTEXT.get())


def _generate():
    kept, (a, b, shape) = None, (yield)
    while True:
        kept = a @ b if kept is None or kept.shape != shape else kept
        a, b, shape = yield kept


GENERATOR = _generate()
next(GENERATOR)


def generator(a, b, out):
    out.copy_(GENERATOR.send((a, b, out.shape)))


LOCAL = threading.local()


def thread_local(a, b, out):
    if getattr(LOCAL, "kept", None) is None or LOCAL.kept.shape != out.shape:
        LOCAL.kept = a @ b
    out.copy_(LOCAL.kept)
