"""One row of A against a large B: a matrix-vector product, in plain Triton.

Every element of B is used once, so the time is that of reading B: 2 K N bytes at the bandwidth of DRAM. Tensor cores
have nothing to add, and neither have shared memory and its barriers: each thread loads 16 bytes of B straight into
registers, multiplies them by the row of A, which stays in the L1 cache, and adds up in float32. What counts is how
many loads are in flight. By Little's law 4.3 TB/s times about 1 us are 4.3 MB, 32 KB an SM; at 64 registers a thread,
1024 threads fit on an SM, and with 4 loads of 16 bytes each they have 64 KB in flight.

Used by step 8, whose other kernel takes two rows and more. Domain: M = 1, B contiguous along K, any size and alignment.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from rooftest_kernels.gemm.descriptors import DTYPES
from rooftest_kernels.gemm.operands import Operands, operands


class Config(NamedTuple):
    """Columns of B a program, elements of K that it reads at a time; 4 warps, 4 loads of 16 bytes a thread."""

    block_n: int
    block_k: int


CONFIGS = {
    "4x1024": Config(4, 1024),
    "8x512": Config(8, 512),
    "16x256": Config(16, 256),
}
PROGRAMS_PER_SM = 8  # 4 warps of 64 registers a thread: 8 programs fill the 65536 registers of an SM


def pick(N: int, sms: int) -> Config:
    """Choose the fewest columns a program with which all programs run at once; past that, 16."""
    for config in CONFIGS.values():
        if config.block_n * PROGRAMS_PER_SM * sms >= N:
            return config
    return CONFIGS["16x256"]


@triton.jit(do_not_specialize=["N"])
def kernel(a_ptr, b_ptr, out_ptr, c0_ptr, bias_ptr, N, K, alpha, beta,
           stride_az, stride_bz, stride_bn, stride_cz, stride_cn, stride_c0z, stride_c0n, stride_bias,
           BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """BLOCK_N elements of C: a running sum for every (n, k) of the block, added up along K at the end."""
    z = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    b_rows = b_ptr + z * stride_bz + n[:, None] * stride_bn
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in range(0, K, BLOCK_K):
        in_k = start + k < K
        b = tl.load(b_rows + (start + k)[None, :], (n < N)[:, None] & in_k[None, :], 0.0)
        a = tl.load(a_ptr + z * stride_az + start + k, in_k, 0.0)
        acc += b.to(tl.float32) * a.to(tl.float32)[None, :]
    c = alpha * tl.sum(acc, 1)
    if c0_ptr is not None:
        c += beta * tl.load(c0_ptr + z * stride_c0z + n * stride_c0n, n < N, 0.0).to(tl.float32)
    if bias_ptr is not None:
        c += tl.load(bias_ptr + n * stride_bias, n < N, 0.0).to(tl.float32)
    tl.store(out_ptr + z * stride_cz + n * stride_cn, c.to(out_ptr.dtype.element_ty), n < N)


def takes(ops: Operands) -> bool:
    """Return whether this kernel is made for the operands: one row, all of it and of B contiguous along K."""
    return ops.M == 1 and ops.K > 0 and ops.N > 0 and ops.B > 0 and ops.a.stride(2) == 1 and ops.b.stride(1) == 1


def launch(ops: Operands, alpha: float, beta: float, config: Config | None = None) -> None:
    """Compute C for operands that `takes` accepts."""
    sms = torch.cuda.get_device_properties(ops.out.device).multi_processor_count
    config = config or pick(ops.N, sms)
    kernel[(triton.cdiv(ops.N, config.block_n), ops.B)](
        ops.a, ops.b, ops.out, ops.c0, ops.bias, ops.N, ops.K, alpha, beta,
        ops.a.stride(0), ops.b.stride(0), ops.b.stride(2), ops.out.stride(0), ops.out.stride(2),
        0 if ops.c0 is None else ops.c0.stride(0), 0 if ops.c0 is None else ops.c0.stride(2),
        0 if ops.bias is None else ops.bias.stride(0), *config, num_warps=4,
    )  # fmt: skip


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor,
    alpha: float = 1.0,
    beta: float = 0.0,
    c0: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    config: str | Config | None = None,
) -> None:
    """Write alpha A B + beta C0 + bias to out for one row of A, accumulated in float32 and rounded once.

    a: (1, K) or (B, 1, K); b: (K, N) or (B, K, N), contiguous along K; out, c0: like C; bias: (N,); bfloat16 or
    float16. config: a name out of CONFIGS, a Config, or None for `pick`'s choice. Raises ValueError otherwise.
    """
    ops = operands(a, b, out, beta, c0, bias, DTYPES)
    if not takes(ops):
        raise ValueError(f"a is {tuple(a.shape)}, b has strides {tuple(b.stride())}: this needs one row, b along K")
    launch(ops, alpha, beta, CONFIGS[config] if isinstance(config, str) else config)
