"""MXFP8 and NVFP4 on Blackwell (sm_100): C = alpha A B^T of elements of which some along K share a scale.

COMPILED, NOT RUN, as blackwell.py: no such GPU has executed it, and no specification of the suite judges it yet.

| format | element | sharing a scale | scale |
|---|---|---|---|
| MXFP8 (OCP Microscaling 1.0) | e4m3, 1 byte | 32 | a power of two: its exponent plus 127, 1 byte |
| NVFP4 | e2m1, two a byte, the one of the lower k in the lower bits | 16 | e4m3, never negative, 1 byte |

What changes against blackwell.py: the tensor core multiplies by the scales as it multiplies the elements, if it finds
them in tensor memory beside the accumulator. The copy engine brings them with the stage that they belong to, and the
warp that multiplies starts one more copy of each, from shared to tensor memory, before the product. The copies and
products of tcgen05 that one thread starts run in the order in which they were started, so nothing waits between them.

A stage holds 128 bytes of K whatever the format, the width of a swizzled row: 128 elements with 4 scales a row, or 256
with 16. Tensor memory: two accumulators of 128 columns, and for A and B each as many columns as a row has scales; a
tile of 256 columns would leave no room for a second accumulator.

Scales come as the hardware reads them (PTX ISA, "scale factor A layout"; cuBLAS calls it the layout of 1D block scaling
factors): 512 bytes for 128 rows and 4 scales; in them the scale k of row r is byte 16 (r % 32) + 4 (r / 32) + k.

Sizes of shared memory: a stage is (128 + 128) x 128 + 2 x 512 = 33 KB, with 4 x 512 bytes of scales an operand 36 KB,
a part of C 8 KB; with two parts six stages are 214 and five are 196 of the 227 KB that a CTA may have. 2 KB more turn a
part from one row a thread to rows that lie in a line where alpha is not 1.
"""

from typing import NamedTuple

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

BLOCK = gl.constexpr(128)  # rows of A, of B, and bytes of K that a stage holds
GROUP_M = gl.constexpr(16)


class Format(NamedTuple):
    """What tcgen05 calls the elements, elements a byte, elements that share a scale, types in memory, stages.

    stages: of shared memory.
    """

    element: str
    packed: int
    sharing: int
    element_dtype: torch.dtype
    scale_dtype: torch.dtype
    stages: int

    @property
    def scale_blocks(self) -> int:
        """Blocks of 128 rows and 4 scales in a stage."""
        return BLOCK.value * self.packed // self.sharing // 4


FORMATS = {
    "mxfp8": Format("e4m3", 1, 32, torch.float8_e4m3fn, torch.uint8, 6),
    "nvfp4": Format("e2m1", 2, 16, torch.uint8, torch.float8_e4m3fn, 5),
}
GLUON_DTYPE = {torch.float8_e4m3fn: gl.float8e4nv, torch.uint8: gl.uint8}


@gluon.jit
def load(a_desc, b_desc, a_scale_desc, b_scale_desc, a_bufs, b_bufs, a_scale_bufs, b_scale_bufs, full, empty,
         M, N, k_tiles, tiles, STAGES: gl.constexpr, SCALE_BLOCKS: gl.constexpr):  # fmt: skip
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
            async_load(a_scale_desc, [row // BLOCK, k * SCALE_BLOCKS, 0, 0], bar, a_scale_bufs.index(stage))
            async_load(b_scale_desc, [column // BLOCK, k * SCALE_BLOCKS, 0, 0], bar, b_scale_bufs.index(stage))
            step += 1


@gluon.jit
def as_scales(box, SCALE_BLOCKS: gl.constexpr):
    """View blocks of 512 bytes as the scales that they are: 128 rows, 4 a block."""
    blocks = box.reshape([SCALE_BLOCKS, 32, 4, 4])
    return blocks.permute((2, 1, 0, 3)).reshape([BLOCK, 4 * SCALE_BLOCKS])


@gluon.jit
def multiply(a_bufs, b_bufs, a_scale_bufs, b_scale_bufs, full, empty, accs, a_scale, b_scale, done, drained,
             k_tiles, tiles, ELEMENT: gl.constexpr, STAGES: gl.constexpr, SCALE_BLOCKS: gl.constexpr):  # fmt: skip
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
            tcgen05_copy(as_scales(a_scale_bufs.index(stage), SCALE_BLOCKS), a_scale)
            tcgen05_copy(as_scales(b_scale_bufs.index(stage), SCALE_BLOCKS), b_scale)
            a = a_bufs.index(stage).reshape([BLOCK, BLOCK])
            b = b_bufs.index(stage).reshape([BLOCK, BLOCK]).permute((1, 0))
            tcgen05_mma_scaled(a, b, acc, a_scale, b_scale, ELEMENT, ELEMENT, use_acc=k > 0,
                               mbarriers=[empty.index(stage)])  # fmt: skip
            step += 1
        tcgen05_commit(done.index(half))
        turn += 1  # noqa: SIM113  (no enumerate in a kernel)


@gluon.jit
def allocate_scale_boxes(desc, STAGES: gl.constexpr, SCALE_BLOCKS: gl.constexpr):
    """Shared memory for a box of scales a stage."""
    return gl.allocate_shared_memory(desc.dtype, [STAGES, 1, SCALE_BLOCKS, 2, 256], desc.layout)


@gluon.jit(do_not_specialize=["M", "N", "k_bytes", "tiles"])
def gemm_scaled(a_desc, b_desc, a_scale_desc, b_scale_desc, c_desc, M, N, k_bytes, tiles, c_ptr, alpha,
                PLAIN: gl.constexpr, ELEMENT: gl.constexpr, STAGES: gl.constexpr,
                SCALE_BLOCKS: gl.constexpr):  # fmt: skip
    """One CTA, every P-th tile of C."""
    k_tiles = gl.cdiv(k_bytes, BLOCK)
    a_bufs = allocate_boxes(a_desc, STAGES)
    b_bufs = allocate_boxes(b_desc, STAGES)
    a_scale_bufs = allocate_scale_boxes(a_scale_desc, STAGES, SCALE_BLOCKS)
    b_scale_bufs = allocate_scale_boxes(b_scale_desc, STAGES, SCALE_BLOCKS)
    c_bufs = allocate_boxes(c_desc, 2)
    full, empty = allocate_barriers(STAGES, 1)
    done, drained = allocate_barriers(HALVES, 1)
    accs = allocate_tensor_memory(gl.float32, [HALVES, BLOCK, BLOCK], TensorMemoryLayout([BLOCK, BLOCK], col_stride=1))
    in_lanes: gl.constexpr = TensorMemoryScalesLayout()
    a_scale = allocate_tensor_memory(a_scale_desc.dtype, [BLOCK, 4 * SCALE_BLOCKS], in_lanes)
    b_scale = allocate_tensor_memory(b_scale_desc.dtype, [BLOCK, 4 * SCALE_BLOCKS], in_lanes)
    terms = (c_ptr, 0, 0, 0, 1, c_ptr, 0, 0, alpha, 0.0)  # step 6's: no C0, no bias

    gl.warp_specialize(
        [
            (drain, (c_desc, c_bufs, accs, done, drained, M, N, tiles, terms, BLOCK, BLOCK, GROUP_M, PLAIN)),
            (load, (a_desc, b_desc, a_scale_desc, b_scale_desc, a_bufs, b_bufs, a_scale_bufs, b_scale_bufs,
                    full, empty, M, N, k_tiles, tiles, STAGES, SCALE_BLOCKS)),
            (multiply, (a_bufs, b_bufs, a_scale_bufs, b_scale_bufs, full, empty, accs, a_scale, b_scale, done, drained,
                        k_tiles, tiles, ELEMENT, STAGES, SCALE_BLOCKS)),
        ],
        worker_num_warps=[1, 1],
        worker_num_regs=[24, 24],
    )  # fmt: skip


def pack(scales: torch.Tensor) -> torch.Tensor:
    """Return (R, S) scales of a matrix's rows as (ceil(R / 128), ceil(S / 4), 2, 256) blocks, padded with 0.

    uint8, the exponent of 2 plus 127 (MXFP8), or float8_e4m3fn (NVFP4). Padding multiplies zeros and is finite: as an
    exponent 0 is 2^-127; 255 would be NaN.
    """
    rows, columns = (triton.cdiv(size, block) for size, block in zip(scales.shape, (128, 4), strict=True))
    codes = scales.view(torch.uint8)
    whole = codes.new_zeros(128 * rows, 4 * columns)
    whole[: codes.shape[0], : codes.shape[1]] = codes
    blocks = whole.reshape(rows, 4, 32, columns, 4).permute(0, 3, 2, 1, 4).reshape(rows, columns, 2, 256)
    return blocks.view(scales.dtype)


def _describe_elements(tensor: torch.Tensor) -> TensorDescriptor:
    box = [1, BLOCK.value, BLOCK.value]
    layout = gl.NVMMASharedLayout.get_default_for(box, GLUON_DTYPE[tensor.dtype])
    strides = [tensor.stride(0) * tensor.shape[0], *tensor.stride()]
    return TensorDescriptor(tensor, [1, *tensor.shape], strides, box, layout)


def _describe_scales(tensor: torch.Tensor, blocks: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8, rank=4)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, blocks, 2, 256], layout)


def _form(a: torch.Tensor) -> Format:
    for form in FORMATS.values():
        if a.dtype == form.element_dtype:
            return form
    known = ", ".join(f"{form.element_dtype} ({name})" for name, form in FORMATS.items())
    raise ValueError(f"a is {a.dtype}: needed is one of {known}")


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    out: torch.Tensor,
    alpha: float = 1.0,
) -> None:
    """Write alpha (a scaled) (b scaled)^T to out, accumulated in float32 and rounded once.

    a: (M, K), b: (N, K), contiguous: float8_e4m3fn is MXFP8; uint8 of shapes (M, K / 2), (N, K / 2) is NVFP4, two
    elements a byte. a_scale, b_scale: as `pack` returns them, uint8 and float8_e4m3fn. out: (M, N), bfloat16 or
    float16, row-major. alpha: for NVFP4 the product of the scales that a and b have as wholes. K is a multiple of 32,
    no size is 0. Raises ValueError for anything else.
    """
    form = _form(a)
    (M, width), N = a.shape, b.shape[0]
    K = width * form.packed
    for name, tensor, shape in (("a", a, (M, width)), ("b", b, (N, width))):
        if tensor.dtype != form.element_dtype or tensor.shape != shape or not tensor.is_contiguous():
            needed = f"contiguous {form.element_dtype} {shape}"
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}: needed is {needed}")
        # A row of a tensor that a descriptor speaks of is a multiple of 16 bytes, here of 16 or 32 elements.
        if K % 32 or tensor.numel() == 0 or tensor.data_ptr() % 16:
            raise ValueError(f"{name} has K = {K}: needed are a multiple of 32, rows, and a base on 16 bytes")
    for name, tensor, rows in (("a_scale", a_scale, M), ("b_scale", b_scale, N)):
        shape = (triton.cdiv(rows, 128), triton.cdiv(K, 4 * form.sharing), 2, 256)
        if tensor.dtype != form.scale_dtype or tensor.shape != shape or not tensor.is_contiguous():
            needed = f"what pack returns, {form.scale_dtype} {shape}"
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}: needed is {needed}")
    if out.shape != (M, N) or out.dtype not in DTYPES or out.stride(1) != 1:
        raise ValueError(f"out is {out.dtype} {tuple(out.shape)}: needed are rows of 16-bit elements, {(M, N)}")
    require_descriptors(out=out[None])
    tiles = triton.cdiv(M, BLOCK.value) * triton.cdiv(N, BLOCK.value)
    sms = torch.cuda.get_device_properties(out.device).multi_processor_count
    blocks = form.scale_blocks
    gemm_scaled[(min(tiles, sms),)](
        _describe_elements(a), _describe_elements(b), _describe_scales(a_scale, blocks),
        _describe_scales(b_scale, blocks), describe(out[None], BLOCK.value, PART.value),
        M, N, width, tiles, out, alpha, alpha == 1, form.element, form.stages, blocks, num_warps=4,
    )  # fmt: skip


def example(form: Format, alpha: float, size: int = 4096) -> None:
    """Multiply two square matrices of zeros: a call to compile, as no specification says yet what else to call it with.

    Their rows lie as weights and activations do, K after K.
    """
    elements = torch.zeros(size, size // form.packed, dtype=torch.uint8, device="cuda").view(form.element_dtype)
    scales = pack(torch.zeros(size, size // form.sharing, dtype=torch.uint8, device="cuda").view(form.scale_dtype))
    out = torch.empty(size, size, dtype=torch.bfloat16, device="cuda")
    matmul(elements, elements, scales, scales, out=out, alpha=alpha)


def example_mxfp8() -> None:
    """Multiply MXFP8."""
    example(FORMATS["mxfp8"], alpha=1.0)


def example_nvfp4() -> None:
    """Multiply NVFP4, whose matrices have scales as wholes too."""
    example(FORMATS["nvfp4"], alpha=0.5)
