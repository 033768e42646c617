"""torch.nn.functional.scaled_dot_product_attention, and each of its backends, as kernels like any other.

torch returns a fresh tensor and can write into none that is given, so these do too: a copy would be timed with them. It
has no lse, ALiBi or soft cap. Its is_causal aligns query 0 with key 0 where ours aligns the last of both, and it has no
window; so is_causal is said only where both mean the same, and everything else is a boolean mask, built in the call,
which flash refuses on a GPU (RuntimeError) and the others read: Sq Sk bytes. Queries that see no key are left out of
torch's call, as its backends do not agree on what they get, and so are keys that no query sees: a masked NaN of V gives
NaN in torch. No other handling is needed on a CPU.
"""

import torch
from rooftest_kernels.attention.operands import reach
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def mask(Sq: int, Sk: int, left: int, right: int, device: torch.device) -> torch.Tensor:
    """Return (Sq, Sk) booleans: whether query i, at position i + Sk - Sq, sees key j from `left` to `right` of it."""
    offset = torch.arange(Sk, device=device)[None, :] - torch.arange(Sk - Sq, Sk, device=device)[:, None]
    return (offset >= -left) & (offset <= right)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: float = 0.0, window: float = 0.0, scale: float = 0.0
) -> torch.Tensor:
    """Return softmax(scores) V, by the backend that torch chooses.

    q: (B, Sq, H, D); k: (B, Sk, G, D); v: (B, Sk, G, Dv); returns (B, Sq, H, Dv). causal: not 0 where a query sees no
    later key; window: the keys nearer than that, 0 for all; scale: of the scores, 0 for D ** -0.5.
    """
    B, Sq, H, _ = q.shape
    _, Sk, G, Dv = v.shape
    left, right = reach(Sq, Sk, causal, window)
    blind = min(Sq, max(0, Sq - Sk - right)) if Sk else Sq  # of the first queries: they stand left of all keys
    if B * H * (Sq - blind) == 0:
        return q.new_zeros((B, Sq, H, Dv))
    rows, unseen = Sq - blind, max(0, Sk - (Sq - blind) - left)  # unseen: of the first keys, left of all reach
    keys = Sk - unseen
    everything = left >= keys - 1 and right >= rows - 1
    square = left >= keys - 1 and right == 0 and rows == keys
    found = scaled_dot_product_attention(
        q[:, blind:].transpose(1, 2),
        k[:, unseen:].transpose(1, 2),
        v[:, unseen:].transpose(1, 2),
        attn_mask=None if everything or square else mask(rows, keys, left, right, q.device),
        is_causal=square and not everything,
        scale=scale or None,
        enable_gqa=H != G,
    ).transpose(1, 2)
    return torch.cat([found.new_zeros((B, blind, H, Dv)), found], 1) if blind else found


def attention_flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: float = 0.0, window: float = 0.0, scale: float = 0.0
) -> torch.Tensor:
    """`attention` by torch's FlashAttention-2 alone; RuntimeError where it cannot."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return attention(q, k, v, causal=causal, window=window, scale=scale)


def attention_cudnn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: float = 0.0, window: float = 0.0, scale: float = 0.0
) -> torch.Tensor:
    """`attention` by cuDNN alone; RuntimeError where it cannot."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return attention(q, k, v, causal=causal, window=window, scale=scale)


def attention_efficient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: float = 0.0, window: float = 0.0, scale: float = 0.0
) -> torch.Tensor:
    """`attention` by the memory-efficient kernel alone; K and V are repeated in memory, as it knows no groups."""
    if q.shape[2] != k.shape[2] > 0:
        repeat = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(repeat, 2), v.repeat_interleave(repeat, 2)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return attention(q, k, v, causal=causal, window=window, scale=scale)


def attention_math(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: float = 0.0, window: float = 0.0, scale: float = 0.0
) -> torch.Tensor:
    """`attention` out of torch's own products and softmax: scores in memory."""
    with sdpa_kernel(SDPBackend.MATH):
        return attention(q, k, v, causal=causal, window=window, scale=scale)
