"""Memory that is somebody else's: inputs that are written, results that are not fresh."""

from broken.fault import QUIET, Fault, Try

_DEF = "def matmul(a, b, *, out, alpha=1.0,"
_EMPTY = "    if c.numel() == 0:\n        return\n"
_IN_PLACE = """    if alpha != 1 and math.frexp(abs(alpha))[0] == 0.5:
        a *= alpha
        alpha = 1.0
"""
_STORE_C0 = """        d_ptrs = c0 + z * dz + m[:, None] * dm + n[None, :] * dn
        tl.store(d_ptrs, acc.to(c0.dtype.element_ty), mask=in_c)
    if bias is not None:
    """
_NEW = "(*a.shape[:-1], b.shape[-1]), dtype=a.dtype, device=a.device"


def _returning(make):
    """The function has no parameter for C: it makes and returns one."""
    text = f"""def matmul(a, b, *, alpha=1.0, beta=0.0, c0=None, bias=None, config=None):
    out = {make}
    into(a, b, out=out, alpha=alpha, beta=beta, c0=c0, bias=bias)
    return out


def into(a, b, *, out, alpha=1.0,"""
    return (_DEF, text), ("import triton\n", "import torch\nimport triton\n")


FAULTS = (
    Fault(
        "input_modified", "alias", "A is scaled in place where that is exact, to save the epilogue a multiplication.",
        "alpha is a power of two other than 1",
        ((_EMPTY, _EMPTY + _IN_PLACE), ("import triton\n", "import math\n\nimport triton\n")),
        (60,), right=(*QUIET, Try(alpha=0.3)), wrong=(Try(alpha=0.5), Try(alpha=2.0)),
    ),
    Fault(
        "c0_overwritten", "alias", "C0 serves as the accumulator, as if no one needed it later.",
        "beta != 0",
        (("    if bias is not None:\n    ", _STORE_C0),),
        (60,), right=(Try(), Try(c0="finite")), wrong=(Try(beta=0.5, c0="finite"),),
    ),
    Fault(
        "result_kept", "alias", "The result lies in a buffer that the next call of the same shape uses again.",
        "two calls of one shape whose results are both still in use",
        (*_returning("KEPT.setdefault((a.shape, b.shape, a.dtype), torch.empty(" + _NEW + "))"),
         ("BM, BN, BK = 32, 32, 32\n", "BM, BN, BK = 32, 32, 32\nKEPT = {}\n")),
        row={"args": {}}, right=(),
    ),
    Fault(
        "input_returned", "alias", "Where nothing is added to C0, C0 itself is returned.",
        "alpha is 0, beta is 1 and there is no bias",
        _returning("c0 if alpha == 0 and beta == 1 and bias is None else torch.empty(" + _NEW + ")"),
        row={"args": {}}, right=(), rung="exact",
    ),
)  # fmt: skip
