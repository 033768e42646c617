"""One row of A against a large B: a matrix-vector product, in plain Triton.

Every element of B is used once, so the time is that of reading B: 2 K N bytes at the bandwidth of DRAM. Tensor cores
have nothing to add, and neither have shared memory and its barriers: each thread loads 16 bytes of B straight into
registers, multiplies them by the row of A, which stays in the L1 cache, and adds up in float32. What counts is how
many loads are in flight. By Little's law 4.3 TB/s times about 1 us are 4.3 MB, 32 KB an SM. Of 8192 elements a program
of 128 threads has 8 loads a thread in flight, 16 KB, and 4 such programs fit on an SM: twice what is needed.

Used by step 8, whose other kernel takes two rows and more. Domain: M = 1, B contiguous along K, any size and alignment.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from rooftest_kernels.gemm.descriptors import DTYPES
from rooftest_kernels.gemm.operands import Operands, operands


class Config(NamedTuple):
    """Columns of B a program, elements of K that it reads at a time, and the most registers a thread; 4 warps."""

    block_n: int
    block_k: int
    registers: int

    def programs(self, sms: int) -> int:
        """Return how many programs of 128 threads run at once: an SM has 65536 registers."""
        return sms * (65536 // (128 * self.registers))


# None spills. Left to itself the compiler takes up to 91 registers for the last, so that fewer programs fit on an SM:
# 17.5 us at N = 6144 instead of 14.0.
CONFIGS = {
    "4x2048": Config(4, 2048, 128),
    "8x1024": Config(8, 1024, 128),
    "8x512": Config(8, 512, 80),
}


def pick(N: int, sms: int) -> Config:
    """Choose the fewest columns a program with which all run at once; past 6336 columns on 132 SMs, the fewest again.

    The last wave, which leaves SMs idle, is then one of many: of 13.6 at N = 28672.
    """
    for config in CONFIGS.values():
        if triton.cdiv(N, config.block_n) <= config.programs(sms):
            return config
    return CONFIGS["4x2048"]


@triton.jit(
    do_not_specialize=["N", "stride_cz", "stride_cn", "stride_c0z", "stride_c0n", "stride_bias"],
    do_not_specialize_on_alignment=["out_ptr", "c0_ptr", "bias_ptr"],
)
def gemv(a_ptr, b_ptr, out_ptr, c0_ptr, bias_ptr, N, K, alpha, beta,
         stride_az, stride_bz, stride_bn, stride_cz, stride_cn, stride_c0z, stride_c0n, stride_bias,
         BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """BLOCK_N elements of C: a running sum for every (n, k) of the block, added up along K at the end."""
    blocks = tl.cdiv(N, BLOCK_N)
    z = (tl.program_id(0) // blocks).to(tl.int64)
    n = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_ptr += z * stride_az
    b_ptr += z * stride_bz
    b_rows = n.to(tl.int64)[:, None] * stride_bn
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in range(0, K, BLOCK_K):
        in_k = start + k < K
        b = tl.load(b_ptr + b_rows + (start + k)[None, :], (n < N)[:, None] & in_k[None, :], 0.0)
        a = tl.load(a_ptr + start + k, in_k, 0.0)
        acc += b.to(tl.float32) * a.to(tl.float32)[None, :]
    n = n.to(tl.int64)
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
    gemv[(triton.cdiv(ops.N, config.block_n) * ops.B,)](
        ops.a, ops.b, ops.out, ops.c0, ops.bias, ops.N, ops.K, alpha, beta,
        ops.a.stride(0), ops.b.stride(0), ops.b.stride(2), ops.out.stride(0), ops.out.stride(2),
        0 if ops.c0 is None else ops.c0.stride(0), 0 if ops.c0 is None else ops.c0.stride(2),
        0 if ops.bias is None else ops.bias.stride(0), config.block_n, config.block_k,
        num_warps=4, maxnreg=config.registers,
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
