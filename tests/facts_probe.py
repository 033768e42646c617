"""Compile kernels for several generations without a GPU, and write their machine code and PTX into a folder.

A process of its own, because kernels of the ladder are replaced by compilers of themselves. `python facts_probe.py
FOLDER` writes NAME.cubin and NAME.ptx for each kernel.
"""

import importlib
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

GENERATIONS = (80, 90, 100, 120)
LADDER = (("step3_register", "gemm_register", 80), ("step6_specialised", "gemm_specialised", 90))


@triton.jit
def product(a_ptr, b_ptr, c_ptr, steps, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    at = rows[:, None] * BLOCK + rows[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(steps):
        a = tl.load(a_ptr + step * BLOCK * BLOCK + at)
        acc = tl.dot(a, tl.load(b_ptr + step * BLOCK * BLOCK + at), acc)
    tl.store(c_ptr + at, acc.to(tl.bfloat16))


@triton.jit
def copy(a_ptr, c_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c_ptr + at, tl.load(a_ptr + at))


class Compiler:
    """Stands where a kernel was: a launch compiles, and keeps what came of it."""

    def __init__(self, kernel, arch):
        self.kernel, self.arch, self.compiled = kernel, arch, None

    def __getitem__(self, _grid):
        return self.launch

    def launch(self, *args, **kwargs):
        options = {name: kwargs.pop(name) for name in ("num_warps", "maxnreg") if name in kwargs}
        signature, constants = {}, {}
        for index, (name, value) in enumerate(self.kernel.signature.bind(*args, **kwargs).arguments.items()):
            if value is None or self.kernel.params[index].is_constexpr:
                signature[name], constants[(index,)] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[name] = "*bf16"
            elif hasattr(value, "block_shape"):
                signature[name] = f"tensordesc<bf16{value.block_shape},{value.layout!r}>"
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
        source = GluonASTSource(self.kernel, signature, constants)
        self.compiled = triton.compile(source, target=GPUTarget("cuda", self.arch, 32), options=options)


def write(folder, name, compiled):
    (folder / f"{name}.cubin").write_bytes(compiled.asm["cubin"])
    (folder / f"{name}.ptx").write_text(compiled.asm["ptx"])


def plain(kernel, arch, block, **options):
    pointers = [name for name in kernel.arg_names if name.endswith("_ptr")]
    signature = {**dict.fromkeys(kernel.arg_names, "i32"), **dict.fromkeys(pointers, "*bf16"), "BLOCK": "constexpr"}
    constants = {(kernel.arg_names.index("BLOCK"),): block}
    aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in pointers}
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def main(folder):
    for arch in GENERATIONS:
        write(folder, f"product_{arch}", plain(product, arch, 64, num_warps=4))
    write(folder, "copy_90", plain(copy, 90, 1024, num_warps=4))
    write(folder, "squeezed_80", plain(product, 80, 128, num_warps=4, maxnreg=40))
    torch.cuda.get_device_properties = lambda _device: type("H200", (), {"multi_processor_count": 132})
    a = torch.empty(512, 512, dtype=torch.bfloat16)
    for name, kernel, arch in LADDER:
        module = importlib.import_module(f"rooftest_kernels.gemm.{name}")
        compiler = Compiler(getattr(module, kernel), arch)
        setattr(module, kernel, compiler)
        module.matmul(a, a, out=torch.empty_like(a), config=list(module.CONFIGS)[-1])
        write(folder, name, compiler.compiled)


main(Path(sys.argv[1]))
