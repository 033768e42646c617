"""Compile kernels of the ladder for sm_90 without a GPU, and print what their machine code holds, as JSON.

A process of its own, because the kernels are replaced by compilers of themselves. `python hopper_probe.py MODULE
KERNEL CONFIG...` calls MODULE.matmul once for each configuration, on operands in no real memory.
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

OPCODES = ("HGMMA", "USETMAXREG", "UTMALDG", "UTMASTG", "STSM", "STL", "LDL")
DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
OPTIONS = ("num_warps", "maxnreg")


class Compiler:
    """Stands where a kernel was: a launch compiles, and keeps the machine code."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.compiled = None

    def __getitem__(self, _grid):
        return self.launch

    def launch(self, *args, **kwargs):
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
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
        self.compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def sass(cubin):
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, check=True).stdout


def main(name, kernel, *configs):
    module = importlib.import_module(f"rooftest_kernels.gemm.{name}")
    torch.cuda.get_device_properties = lambda _device: type("H200", (), {"multi_processor_count": 132})
    compiler = Compiler(getattr(module, kernel))
    setattr(module, kernel, compiler)
    a = torch.empty(512, 512, dtype=torch.bfloat16)
    found = {}
    for config in configs:
        module.matmul(a, a, out=torch.empty_like(a), config=config)
        code = sass(compiler.compiled.asm["cubin"])
        found[config] = {opcode: len(re.findall(rf"\b{opcode}\b", code)) for opcode in OPCODES}
        found[config]["shared_bytes"] = compiler.compiled.metadata.shared
    print(json.dumps(found))


main(*sys.argv[1:])
