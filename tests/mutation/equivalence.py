"""Whether a mutant that survived is the same program: the same machine code wherever the judge calls it.

A process of its own, with Triton told that an H200 is there: `python equivalence.py FOLDER NAME < CASES` calls the
matmul of our kernel and that of the mutant in FOLDER on operands in host memory, compiles each launch for sm_90 instead
of making it, and prints "identical", "differs" or "does not compile". CASES holds the judge's cases, one a line.
"""

import importlib
import os
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace

SM90 = 90
LIMIT_S = 240.0
TABLE = Path(__file__).with_name("equivalent.toml")


def compared(folder: str, name: str, cases, limit_s: float = LIMIT_S) -> str:
    """What the machine code of the mutant in `folder` is to ours, in a fresh process."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_DISABLE_LINE_INFO": "1"}
    command = [sys.executable, __file__, folder, name]
    try:
        done = subprocess.run(
            command, input="\n".join(map(str, cases)), env=environment, capture_output=True, text=True,
            timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not compared in {limit_s:.0f} s"
    words = done.stdout.splitlines()
    return words[-1] if words else f"not compared: {done.stderr.strip().splitlines()[-1:]}"


@cache
def arguments() -> list[dict]:
    """The entries of the table."""
    return tomllib.loads(TABLE.read_text())["equivalent"]


def argued(mutant, device: str) -> str | None:
    """Why a mutant computes the same for every input of the contract, if that is written down."""
    for entry in arguments():
        where = {"modules": mutant.module, "functions": mutant.function, "operators": mutant.operator}
        where["devices"] = device.split(":", maxsplit=1)[0]
        fits = all(value in entry[key] for key, value in where.items() if key in entry)
        fits = fits and any(piece in mutant.at for piece in entry.get("at", [""]))
        if fits and f"{mutant.before} -> {mutant.after}" in entry.get("edits", [f"{mutant.before} -> {mutant.after}"]):
            return entry["because"]
    return None


def pretend() -> list:
    """Make Triton compile where it would launch; returns the list into which it puts digests of the machine code."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    from rooftest.compiled.elf import code_digest

    target = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _device: 0,
        get_current_target=lambda: GPUTarget("cuda", SM90, 32),
        get_active_torch_device=lambda: torch.device("cpu"),
    )
    triton.runtime.driver.set_active(target)
    torch.cuda.get_device_properties = lambda _device: SimpleNamespace(multi_processor_count=132)
    made, run = [], JITFunction.run

    def compile_only(self, *args, grid, warmup, **kwargs):
        cubin = run(self, *args, grid=grid, warmup=True, **kwargs).asm["cubin"]
        made.append(code_digest(cubin, self.fn.__name__))

    JITFunction.run = compile_only
    return made


def main(folder: str, name: str) -> str:
    """Ours and the mutant's, case after case, until they differ."""
    import torch
    from rooftest_kernels import gemm  # noqa: F401 - ours comes from where it is installed

    from rooftest import case as cases
    from rooftest.problem import lay_out
    from rooftest.spec import load

    made = pretend()
    sys.path.insert(0, folder)
    both = [importlib.import_module(f"{package}.gemm.{name}").matmul for package in ("rooftest_kernels", "mutated")]
    memory = torch.empty(2**20, dtype=torch.uint8)
    for line in sys.stdin.read().splitlines():
        case = cases.parse(line)
        problem = lay_out(load(case.op), case)
        if problem.span_bytes > memory.numel():
            memory = torch.empty(problem.span_bytes, dtype=torch.uint8)
        tensors = {p.name: p.view(memory) for p in problem.placements}
        arguments = {("out" if n == "c" else n): t for n, t in tensors.items()} | case.params
        arguments |= {"config": case.config} if case.config else {}
        if case.dtype in ("float32", "tf32") and name == "step4_dot":
            arguments["precision"] = case.dtype
        found = []
        for matmul in both:
            made.clear()
            try:
                matmul(**arguments)
            except Exception as error:  # noqa: BLE001 - a compiler's errors have no common name
                return "does not compile" if matmul is both[1] else f"not compared: {error!r}"[:200]
            found.append(list(made))
        if found[0] != found[1]:
            return "differs"
    return "identical"


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
