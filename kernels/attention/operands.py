"""What every step does before its kernels start: read the sizes, refuse nonsense, say as numbers who sees whom."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST_COLUMNS = 256  # of D and Dv: a row of Q, K, V and the output lies in one block
MOST_ROWS = 2**28  # of Sq and Sk: a position plus a reach stays within int32
VECTOR_BYTES = 16  # the widest load of a thread

# Triton compiles a kernel anew for every integer that is 1 and every one that is a multiple of 16: of some 30 sizes and
# strides nearly every call. So the kernels name these to it as not to be looked at, and what makes a kernel faster is
# said by a few constants that the host works out (vector, is_full, index_type). Of Q, K, V and the output it looks at
# the address, which is a multiple of 16 bytes in nearly every call.
SIZES_AND_STRIDES = [
    "stride_qb", "stride_qm", "stride_qh", "stride_qd",
    "stride_kb", "stride_kn", "stride_kg", "stride_kd",
    "stride_vb", "stride_vn", "stride_vg", "stride_vd",
    "stride_ob", "stride_om", "stride_oh", "stride_od",
    "has_lse", "stride_lb", "stride_lh", "stride_lm",
    "stride_slopes",
    "rows", "H", "R", "Sq", "Sk", "D", "Dv", "left", "right",
]  # fmt: skip
SMALL = ["lse_ptr", "slopes_ptr"]


class Operands(NamedTuple):
    """The tensors of one call, and its parameters as the kernels take them.

    Fields
        q: (B, Sq, H, D); k: (B, Sk, G, D); v: (B, Sk, G, Dv); out: (B, Sq, H, Dv); any strides.
        lse: (B, H, Sq) float32, or None where it is not asked for.
        slopes: (H,) float32, or None.
        B, H, G, Sq, Sk, D, Dv: the sizes; all but D and Dv may be 0. Head h reads key-value head h // (H // G).
        left, right: query i stands at position p = i + Sk - Sq and sees the keys p - left to p + right.
        scale, softcap: of the scores; softcap 0 is none.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None
    slopes: torch.Tensor | None
    B: int
    H: int
    G: int
    Sq: int
    Sk: int
    D: int
    Dv: int
    left: int
    right: int
    scale: float
    softcap: float


def reach(Sq: int, Sk: int, causal: float, window: float) -> tuple[int, int]:
    """Return how many keys left and right of its own position a query sees; Sq + Sk stands for all of them."""
    everything = Sq + Sk
    near = int(min(window, everything)) - 1 if window > 0 else everything
    return near, 0 if causal else near


def operands(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    slopes: torch.Tensor | None,
    causal: float,
    window: float,
    scale: float,
    softcap: float,
) -> Operands:
    """Return the operands of out = softmax(scores) V, with the scale and the reach worked out.

    Shapes and dtypes as in Operands; q, k, v and out have one of DTYPES. scale 0 stands for D ** -0.5, window and
    softcap 0 for none. Raises ValueError where shapes, dtypes or parameters do not fit.
    """
    for name, tensor in {"q": q, "k": k, "v": v}.items():
        if tensor.ndim != 4:
            raise ValueError(f"{name} has {tensor.ndim} dimensions: it must have 4 (batch, position, head, column)")
    if q.dtype not in DTYPES or {k.dtype, v.dtype, out.dtype} != {q.dtype}:
        raise ValueError(
            f"q, k, v, out are {q.dtype}, {k.dtype}, {v.dtype}, {out.dtype}: all must have one dtype out of "
            + ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        )
    B, Sq, H, D = q.shape
    _, Sk, G, Dv = v.shape
    if H % G if G else H:
        raise ValueError(f"q has {H} heads and k {G}: every head of k must serve the same number of heads of q")
    if not 1 <= min(D, Dv) <= max(D, Dv) <= MOST_COLUMNS:
        raise ValueError(f"D is {D} and Dv is {Dv}: both must be from 1 to {MOST_COLUMNS}")
    if max(Sq, Sk) > MOST_ROWS:
        raise ValueError(f"Sq is {Sq} and Sk is {Sk}: at most {MOST_ROWS}")
    if window != window // 1 or softcap < 0:
        raise ValueError(f"window is {window} and softcap {softcap}: a whole number, and one that is not negative")
    expected = {
        "k": (k, (B, Sk, G, D)), "v": (v, (B, Sk, G, Dv)), "out": (out, (B, Sq, H, Dv)),
        "lse": (lse, (B, H, Sq)), "slopes": (slopes, (H,)),
    }  # fmt: skip
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: with q {tuple(q.shape)} it must be {shape}")
    for name, tensor in {"lse": lse, "slopes": slopes}.items():
        if tensor is not None and tensor.dtype != torch.float32:
            raise ValueError(f"{name} is {tensor.dtype}: it must be float32")
    left, right = reach(Sq, Sk, causal, window)
    return Operands(q, k, v, out, lse, slopes, B, H, G, Sq, Sk, D, Dv, left, right, scale or D**-0.5, softcap)


def lse_arguments(ops: Operands) -> tuple:
    """Return a kernel's arguments lse_ptr, has_lse and the strides of lse.

    One compiled kernel takes a call with and without lse: where there is none its store is masked (has_lse == 0), and
    out, which stands in for it, is not written.
    """
    return (ops.out, 0, 0, 0, 0) if ops.lse is None else (ops.lse, 1, *ops.lse.stride())


def slopes_arguments(ops: Operands) -> tuple:
    """Return a kernel's arguments slopes_ptr and stride_slopes; a constant of it says whether there are any."""
    return (ops.out, 0) if ops.slopes is None else (ops.slopes, ops.slopes.stride(0))


def arguments(ops: Operands) -> tuple:
    """Return the arguments of a kernel that does all at once, q_ptr to softcap; there must be a head (H > 0)."""
    return (
        ops.q, *ops.q.stride(), ops.k, *ops.k.stride(), ops.v, *ops.v.stride(), ops.out, *ops.out.stride(),
        *lse_arguments(ops), *slopes_arguments(ops), ops.H, ops.H // ops.G, ops.Sq, ops.Sk, ops.D, ops.Dv,
        ops.left, ops.right, float(ops.scale), float(ops.softcap),
    )  # fmt: skip


def columns(size: int) -> int:
    """Return the block that D or Dv is padded to: the next power of two, 16 at least, as `tl.dot` asks."""
    return max(16, triton.next_power_of_2(size))


def index_type(*tensors: torch.Tensor) -> tl.dtype:
    """Return int32 where every offset within one head of these (B, S, H, D) tensors fits, else int64."""
    largest = max((t.shape[1] - 1) * abs(t.stride(1)) + (t.shape[3] - 1) * abs(t.stride(3)) for t in tensors)
    return tl.int32 if largest < 2**31 else tl.int64


def vector(*tensors: torch.Tensor) -> int:
    """Return how many elements of these (B, S, H, D) tensors may be read or written at a time.

    As many as are in 16 bytes where each one's last dimension has stride 1 and a multiple of that as its extent, and
    the other strides and the bases are multiples too; else 1. The tensors have one dtype.
    """
    count = VECTOR_BYTES // tensors[0].element_size()
    for tensor in tensors:
        # A dimension of size 1 is never stepped along.
        steps = [s for n, s in zip(tensor.shape[:3], tensor.stride()[:3], strict=True) if n > 1]
        whole = all(n % count == 0 for n in (tensor.shape[3], *steps))
        if not whole or tensor.stride(3) != 1 or tensor.data_ptr() % VECTOR_BYTES:
            return 1
    return count


@triton.jit
def known(batch, row, head, VECTOR: tl.constexpr):
    """Return the four strides of a tensor of which `vector` said VECTOR > 1, so that the compiler sees it too."""
    return batch // VECTOR * VECTOR, row // VECTOR * VECTOR, head // VECTOR * VECTOR, 1


def is_full(ops: Operands) -> bool:
    """Return whether D and Dv fill their blocks, so that no column needs a mask."""
    return columns(ops.D) == ops.D and columns(ops.Dv) == ops.Dv
