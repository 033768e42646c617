"""Compile kernels of the ladder without a GPU, and print what their machine code holds, as JSON.

A process of its own, because the kernels are replaced by compilers of themselves, and a compiler that aborts takes its
process along. `python hopper_probe.py ARCH MODULE KERNEL CONFIG...` calls MODULE.matmul once for each configuration, on
operands in no real memory. `CONFIG+terms`: transposed operands, alpha, C0 and bias. `CONFIG/N`: N registers a thread.
"""

import importlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

OPCODES = ("HGMMA", "UTCHMMA", "LDTM", "USETMAXREG", "UTMALDG", "UTMASTG", "STSM", "STL", "LDL")
DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
OPTIONS = ("num_warps", "maxnreg")


class Compiler:
    """Stands where a kernel was: a launch compiles, and keeps the machine code."""

    def __init__(self, kernel, arch):
        self.kernel, self.arch = kernel, arch
        self.compiled = self.maxnreg = None

    def __getitem__(self, _grid):
        return self.launch

    def launch(self, *args, **kwargs):
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        if self.maxnreg:
            options["maxnreg"] = self.maxnreg
        bound = self.kernel.signature.bind(*args, **kwargs).arguments
        signature, constants = {}, {}
        for index, (name, value) in enumerate(bound.items()):
            if value is None or self.kernel.params[index].is_constexpr:
                signature[name], constants[(index,)] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[name] = "*" + DTYPE_NAMES[value.dtype]
            elif hasattr(value, "block_shape"):
                signature[name] = f"tensordesc<{DTYPE_NAMES[value.base.dtype]}{value.block_shape},{value.layout!r}>"
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
        source = GluonASTSource(self.kernel, signature, constants)
        self.compiled = triton.compile(source, target=GPUTarget("cuda", self.arch, 32), options=options)


def sass(cubin):
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, check=True).stdout


def main(arch, name, kernel, *configs):
    module = importlib.import_module(f"rooftest_kernels.gemm.{name}")
    torch.cuda.get_device_properties = lambda _device: type("GPU", (), {"multi_processor_count": 132})
    compiler = Compiler(getattr(module, kernel), int(arch))
    setattr(module, kernel, compiler)
    a = torch.empty(512, 512, dtype=torch.bfloat16)
    found = {}
    for asked in configs:
        config, _, most = asked.partition("/")
        config, _, terms = config.partition("+")
        compiler.maxnreg = int(most or 0)
        rest = {"alpha": 2.0, "beta": 1.0, "c0": a, "bias": a[0]} if terms else {}
        factor = a.mT if terms else a
        module.matmul(factor, factor, out=torch.empty_like(a), config=config, **rest)
        code = sass(compiler.compiled.asm["cubin"])
        found[asked] = {opcode: len(re.findall(rf"\b{opcode}\b", code)) for opcode in OPCODES}
        found[asked]["shared_bytes"] = compiler.compiled.metadata.shared
        found[asked]["tensor_columns"] = getattr(compiler.compiled.metadata, "tmem_size", 0)
    print(json.dumps(found))


main(*sys.argv[1:])
