"""MXFP8 on Blackwell (sm_100): C = A B^T of 8-bit elements, of which every 32 along K share a scale, a power of two.

COMPILED, NOT RUN, as blackwell.py: no such GPU has executed it, and no specification of the suite judges it yet.

What changes against blackwell.py: the tensor core multiplies by the scales as it multiplies the elements, if it finds
them in tensor memory beside the accumulator. The copy engine brings them with the stage that they belong to, and the
warp that multiplies starts one more copy of each, from shared to tensor memory, before the product. The copies and
products of tcgen05 that one thread starts run in the order in which they were started, so nothing waits between them.

Tensor memory: two accumulators of 128 columns, and the scales of 128 rows and 128 elements of K, 4 columns for A and 4
for B; a tile of 256 columns would leave no room for a second accumulator.

Scales come as the hardware reads them (PTX ISA, "scale factor A layout"; cuBLAS calls it the layout of 1D block scaling
factors): 512 bytes for 128 rows and 4 scales; in them the scale k of row r is byte 16 (r % 32) + 4 (r / 32) + k.

Sizes of shared memory: a stage is (128 + 128) x 128 + 2 x 512 = 33 KB, a part of C 8 KB; six stages and two parts are
214 of the 227 KB that a CTA may have.
"""

import torch
import triton
from rooftest_kernels.gemm.blackwell import HALVES, PART, drain
from rooftest_kernels.gemm.descriptors import DTYPES, async_load, describe, require_descriptors
from rooftest_kernels.gemm.step6_specialised import allocate_barriers, allocate_boxes
from rooftest_kernels.gemm.step7_persistent import tile_origin
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    mbarrier,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma_scaled,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

BLOCK = gl.constexpr(128)  # rows of A, of B, and elements of K that a stage holds: one block of 512 scales each
STAGES = gl.constexpr(6)
GROUP_M = gl.constexpr(16)
SHARING = 32  # elements along K that share a scale
BLOCK_BYTES = 512  # of scales


@gluon.jit
def load(a_desc, b_desc, a_scale_desc, b_scale_desc, a_bufs, b_bufs, a_scale_bufs, b_scale_bufs, full, empty,
         M, N, k_tiles, tiles):  # fmt: skip
    """The producer warp: step 7's, with two boxes of scales a stage."""
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        _, row, column = tile_origin(tile, M, N, BLOCK, BLOCK, GROUP_M)
        for k in range(k_tiles):
            stage = step % STAGES
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
            mbarrier.expect(bar, 2 * a_desc.block_type.nbytes + 2 * a_scale_desc.block_type.nbytes)
            async_load(a_desc, [0, row, k * BLOCK], bar, a_bufs.index(stage))
            async_load(b_desc, [0, column, k * BLOCK], bar, b_bufs.index(stage))
            async_load(a_scale_desc, [row // BLOCK, k, 0, 0], bar, a_scale_bufs.index(stage))
            async_load(b_scale_desc, [column // BLOCK, k, 0, 0], bar, b_scale_bufs.index(stage))
            step += 1


@gluon.jit
def as_scales(box):
    """View the 512 bytes of a block as the (128, 4) scales that they are."""
    return box.reshape([32, 4, 4]).permute((1, 0, 2)).reshape([BLOCK, 4])


@gluon.jit
def multiply(a_bufs, b_bufs, a_scale_bufs, b_scale_bufs, full, empty, accs, a_scale, b_scale, done, drained,
             k_tiles, tiles):  # fmt: skip
    """The warp that multiplies: blackwell.py's, with two copies of scales before each product."""
    step = 0
    turn = 0
    for _tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        half = turn % HALVES
        acc = accs.index(half)
        mbarrier.wait(drained.index(half), ((turn // HALVES) & 1) ^ 1)
        for k in range(k_tiles):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            tcgen05_copy(as_scales(a_scale_bufs.index(stage)), a_scale)
            tcgen05_copy(as_scales(b_scale_bufs.index(stage)), b_scale)
            a = a_bufs.index(stage).reshape([BLOCK, BLOCK])
            b = b_bufs.index(stage).reshape([BLOCK, BLOCK]).permute((1, 0))
            tcgen05_mma_scaled(a, b, acc, a_scale, b_scale, "e4m3", "e4m3", use_acc=k > 0,
                               mbarriers=[empty.index(stage)])  # fmt: skip
            step += 1
        tcgen05_commit(done.index(half))
        turn += 1  # noqa: SIM113  (no enumerate in a kernel)


@gluon.jit(do_not_specialize=["M", "N", "K", "tiles"])
def gemm_scaled(a_desc, b_desc, a_scale_desc, b_scale_desc, c_desc, M, N, K, tiles):
    """One CTA, every P-th tile of C."""
    k_tiles = gl.cdiv(K, BLOCK)
    a_bufs = allocate_boxes(a_desc, STAGES)
    b_bufs = allocate_boxes(b_desc, STAGES)
    a_scale_bufs = gl.allocate_shared_memory(gl.uint8, [STAGES, 1, 1, 2, 256], a_scale_desc.layout)
    b_scale_bufs = gl.allocate_shared_memory(gl.uint8, [STAGES, 1, 1, 2, 256], b_scale_desc.layout)
    c_bufs = allocate_boxes(c_desc, 2)
    full, empty = allocate_barriers(STAGES, 1)
    done, drained = allocate_barriers(HALVES, 1)
    accs = allocate_tensor_memory(gl.float32, [HALVES, BLOCK, BLOCK], TensorMemoryLayout([BLOCK, BLOCK], col_stride=1))
    a_scale = allocate_tensor_memory(gl.uint8, [BLOCK, 4], TensorMemoryScalesLayout())
    b_scale = allocate_tensor_memory(gl.uint8, [BLOCK, 4], TensorMemoryScalesLayout())

    gl.warp_specialize(
        [
            (drain, (c_desc, c_bufs, accs, done, drained, M, N, tiles, (), BLOCK, BLOCK, GROUP_M, True)),
            (load, (a_desc, b_desc, a_scale_desc, b_scale_desc, a_bufs, b_bufs, a_scale_bufs, b_scale_bufs,
                    full, empty, M, N, k_tiles, tiles)),
            (multiply, (a_bufs, b_bufs, a_scale_bufs, b_scale_bufs, full, empty, accs, a_scale, b_scale, done, drained,
                        k_tiles, tiles)),
        ],
        worker_num_warps=[1, 1],
        worker_num_regs=[24, 24],
    )  # fmt: skip


def pack(scales: torch.Tensor) -> torch.Tensor:
    """Return (R, K / 32) scales of a matrix's rows as (ceil(R / 128), ceil(K / 128), 2, 256) blocks, padded with 0.

    uint8: the exponent of 2, plus 127. Padding multiplies zeros, and 0 is 2^-127; 255 would be NaN.
    """
    rows, columns = (triton.cdiv(size, block) for size, block in zip(scales.shape, (128, 4), strict=True))
    whole = scales.new_zeros(128 * rows, 4 * columns)
    whole[: scales.shape[0], : scales.shape[1]] = scales
    return whole.reshape(rows, 4, 32, columns, 4).permute(0, 3, 2, 1, 4).reshape(rows, columns, 2, 256)


def _describe_elements(tensor: torch.Tensor) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for([1, BLOCK.value, BLOCK.value], gl.float8e4nv)
    strides = [tensor.stride(0) * tensor.shape[0], *tensor.stride()]
    return TensorDescriptor(tensor, [1, *tensor.shape], strides, [1, BLOCK.value, BLOCK.value], layout)


def _describe_scales(tensor: torch.Tensor) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8, rank=4)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 1, 2, 256], layout)


def matmul(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor, *, out: torch.Tensor
) -> None:
    """Write (a scaled) (b scaled)^T to out, accumulated in float32 and rounded once.

    a: (M, K), b: (N, K), float8_e4m3fn, contiguous; a_scale, b_scale: as `pack` returns them; out: (M, N), bfloat16 or
    float16, row-major. K is a multiple of 32, no size is 0. Raises ValueError for anything else.
    """
    (M, K), N = a.shape, b.shape[0]
    for name, tensor, shape in (("a", a, (M, K)), ("b", b, (N, K))):
        if tensor.dtype != torch.float8_e4m3fn or tensor.shape != shape or not tensor.is_contiguous():
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}: needed is contiguous e4m3 {shape}")
        if K % SHARING or tensor.numel() == 0 or tensor.data_ptr() % 16:
            raise ValueError(f"{name} has K = {K}: needed are a multiple of {SHARING}, rows, and a base on 16 bytes")
    for name, tensor, rows in (("a_scale", a_scale, M), ("b_scale", b_scale, N)):
        shape = (triton.cdiv(rows, BLOCK.value), triton.cdiv(K, BLOCK.value), 2, BLOCK_BYTES // 2)
        if tensor.dtype != torch.uint8 or tensor.shape != shape or not tensor.is_contiguous():
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}: needed is what pack returns, {shape}")
    if out.shape != (M, N) or out.dtype not in DTYPES or out.stride(1) != 1:
        raise ValueError(f"out is {out.dtype} {tuple(out.shape)}: needed are rows of 16-bit elements, {(M, N)}")
    require_descriptors(out=out[None])
    tiles = triton.cdiv(M, BLOCK.value) * triton.cdiv(N, BLOCK.value)
    sms = torch.cuda.get_device_properties(out.device).multi_processor_count
    gemm_scaled[(min(tiles, sms),)](
        _describe_elements(a), _describe_elements(b), _describe_scales(a_scale), _describe_scales(b_scale),
        describe(out[None], BLOCK.value, PART.value), M, N, K, tiles, num_warps=4,
    )  # fmt: skip
