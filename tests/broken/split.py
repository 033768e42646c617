"""The control of those that split K: each program writes a part of its own, and the parts are added in order."""

import torch
import triton
import triton.language as tl

BM, BN, BK, PARTS = 32, 32, 32, 4


@triton.jit
def gemm(
    a, b, work, M, N, K, K_part,
    az, am, ak, bz, bk, bn, wp, wz, wm, wn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    tiles_n = tl.cdiv(N, BN)
    z = tl.program_id(1).to(tl.int64)
    tile, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    m = (tile // tiles_n * BM + tl.arange(0, BM)).to(tl.int64)
    n = (tile % tiles_n * BN + tl.arange(0, BN)).to(tl.int64)
    k = tl.arange(0, BK).to(tl.int64)
    in_m, in_n = m < M, n < N
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(part * K_part, tl.minimum(K, (part + 1) * K_part), BK):
        in_k = k < K - k0
        a_tile = tl.load(
            a + z * az + m[:, None] * am + (k0 + k)[None, :] * ak, mask=in_m[:, None] & in_k[None, :], other=0.0
        )
        b_tile = tl.load(
            b + z * bz + (k0 + k)[:, None] * bk + n[None, :] * bn, mask=in_k[:, None] & in_n[None, :], other=0.0
        )
        acc = tl.dot(a_tile, b_tile, acc, input_precision="ieee")
    in_c = in_m[:, None] & in_n[None, :]
    w = work + part * wp + z * wz + m[:, None] * wm + n[None, :] * wn
    tl.store(w, acc, mask=in_c)


def matmul(a, b, *, out, alpha=1.0, beta=0.0, c0=None, bias=None, config=None):
    a, b, c, d = (t if t is None or t.ndim == 3 else t[None] for t in (a, b, out, c0))
    if beta == 0:
        d = None
    B, M, K = a.shape
    N = b.shape[2]
    if c.numel() == 0:
        return
    tiles = triton.cdiv(M, BM) * triton.cdiv(N, BN)
    work = torch.empty((PARTS, *c.shape), dtype=torch.float32, device=c.device)
    gemm[(PARTS * tiles, B)](
        a, b, work, M, N, K, triton.cdiv(triton.cdiv(K, BK), PARTS) * BK,
        *a.stride(), *b.stride(), *work.stride(),
        BM=BM, BN=BN, BK=BK, PARTS=PARTS,
    )  # fmt: skip
    total = work[0]
    for part in work[1:]:
        total += part
    total *= alpha
    if d is not None:
        total += beta * d.float()
    if bias is not None:
        total += bias.float()
    c.copy_(total)
