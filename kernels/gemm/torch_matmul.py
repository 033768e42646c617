"""cuBLAS through torch, as two kernels like any other, because they keep different contracts.

torch's defaults let cuBLAS reduce the partial sums of a split K in the 16-bit dtype; with the flags off they stay in
float32. Both functions set the flags that they stand for and put back what they found, so a caller's settings do not
decide which contract is measured. There is no `bias`: torch would round before and after adding it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flags(*, reduced: bool, tf32: bool) -> Iterator[None]:
    """Allow, or not, reductions in the 16-bit dtypes and tf32 for float32 storage; restore the flags at the end."""
    backend = torch.backends.cuda.matmul
    wanted = {
        "allow_bf16_reduced_precision_reduction": reduced,
        "allow_fp16_reduced_precision_reduction": reduced,
        "fp32_precision": "tf32" if tf32 else "ieee",
    }
    found = {name: getattr(backend, name) for name in wanted}
    try:
        for name, value in wanted.items():
            setattr(backend, name, value)
        yield
    finally:
        for name, value in found.items():
            setattr(backend, name, value)


def multiply(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, alpha: float, beta: float, c0: torch.Tensor | None
) -> None:
    """Write alpha A B + beta C0 to out by one torch call; with beta == 0 torch does not read C0."""
    if alpha == 1 and beta == 0:
        torch.matmul(a, b, out=out)
        return
    if beta == 0:
        c0 = out  # its shape is wanted, its elements are not read
    elif c0 is None:
        raise ValueError(f"beta is {beta}, so c0 is needed")
    add = torch.addmm if a.ndim == 2 else torch.baddbmm
    add(c0, a, b, beta=beta, alpha=alpha, out=out)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor,
    alpha: float = 1.0,
    beta: float = 0.0,
    c0: torch.Tensor | None = None,
    precision: str = "float32",
) -> None:
    """Write alpha A B + beta C0 to out with torch's reduced-precision reductions off.

    a: (M, K) or (B, M, K); b: (K, N) or (B, K, N); out, c0: (M, N) or (B, M, N).
    precision: how float32 storage is multiplied, "float32" or "tf32". Raises ValueError if beta != 0 without c0.
    """
    with flags(reduced=False, tf32=precision == "tf32"):
        multiply(a, b, out, alpha, beta, c0)


def matmul_default(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor,
    alpha: float = 1.0,
    beta: float = 0.0,
    c0: torch.Tensor | None = None,
    precision: str = "float32",
) -> None:
    """Write alpha A B + beta C0 to out with the flags that torch starts with. Arguments and errors as `matmul`."""
    with flags(reduced=True, tf32=precision == "tf32"):
        multiply(a, b, out, alpha, beta, c0)


def matmul_cpu(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    """Write A B to out by torch's CPU product, (M, K) by (K, N) or batched.

    No alpha, beta or C0: torch's CPU products round alpha A before they multiply, round beta to bfloat16 at K = 0, and
    return C0 itself at alpha = 0 in a batch (torch 2.13), all found by the conformance suite.
    """
    torch.matmul(a, b, out=out)
