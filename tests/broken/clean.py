"""The control that most faults are made from, by a single slip each; no rung may catch this one."""

import triton
import triton.language as tl

BM, BN, BK = 32, 32, 32


@triton.jit
def gemm(
    a, b, c, c0, bias, M, N, K, alpha, beta,
    az, am, ak, bz, bk, bn, cz, cm, cn, dz, dm, dn, bias_n,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    tiles_n = tl.cdiv(N, BN)
    z = tl.program_id(1).to(tl.int64)
    m = (tl.program_id(0) // tiles_n * BM + tl.arange(0, BM)).to(tl.int64)
    n = (tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)).to(tl.int64)
    k = tl.arange(0, BK).to(tl.int64)
    in_m, in_n = m < M, n < N
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(0, K, BK):
        in_k = k < K - k0
        a_tile = tl.load(
            a + z * az + m[:, None] * am + (k0 + k)[None, :] * ak, mask=in_m[:, None] & in_k[None, :], other=0.0
        )
        b_tile = tl.load(
            b + z * bz + (k0 + k)[:, None] * bk + n[None, :] * bn, mask=in_k[:, None] & in_n[None, :], other=0.0
        )
        acc = tl.dot(a_tile, b_tile, acc, input_precision="ieee")
    in_c = in_m[:, None] & in_n[None, :]
    acc = acc * alpha
    if c0 is not None:
        acc += beta * tl.load(c0 + z * dz + m[:, None] * dm + n[None, :] * dn, mask=in_c, other=0.0).to(tl.float32)
    if bias is not None:
        acc += tl.load(bias + n * bias_n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    tl.store(c + z * cz + m[:, None] * cm + n[None, :] * cn, acc.to(c.dtype.element_ty), mask=in_c)


def matmul(a, b, *, out, alpha=1.0, beta=0.0, c0=None, bias=None, config=None):
    a, b, c, d = (t if t is None or t.ndim == 3 else t[None] for t in (a, b, out, c0))
    if beta == 0:
        d = None
    B, M, K = a.shape
    N = b.shape[2]
    if c.numel() == 0:
        return
    tiles = triton.cdiv(M, BM) * triton.cdiv(N, BN)
    gemm[(tiles, B)](
        a, b, c, d, bias, M, N, K, alpha, beta,
        *a.stride(), *b.stride(), *c.stride(), *(d.stride() if d is not None else (0, 0, 0)),
        bias.stride(0) if bias is not None else 0,
        BM=BM, BN=BN, BK=BK,
    )  # fmt: skip
