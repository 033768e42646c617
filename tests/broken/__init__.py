"""Broken kernels, one slip each, by kind of fault; README.md says what they are for."""

import importlib
from pathlib import Path

from broken.attention.call import on
from broken.fault import BASES, QUIET, Fault, Try

KINDS = {
    "gemm": (
        "shape", "mask", "zero", "stride", "i32", "nan", "det", "race", "hang", "cfg", "scale", "alias", "oob", "tie",
        "data", "precision",
    ),
    "attention": (
        "shape", "mask", "zero", "stride", "nan", "det", "cfg", "scale", "alias", "oob", "tie", "data", "precision",
    ),
}  # fmt: skip
FOLDERS = {"gemm": "broken", "attention": "broken.attention"}
FAULTS = {
    fault.name: fault
    for op, kinds in KINDS.items()
    for kind in kinds
    for fault in importlib.import_module(f"{FOLDERS[op]}.{kind}").FAULTS
}
# The kernels that all others are made from: no rung may catch them.
CONTROLS = {
    "clean": Fault(
        "clean", "control", "One tile a program.", "none",
        right=(
            Try(), Try(64, alpha=1.0, beta=0.5, c0="finite"), Try(65, 33, 35, gap=3, c0="nan"),
            Try(17, 1, 31, layout="tt", alpha=0.5, beta=0.7, c0="finite", tight=False),
            Try(9, 7, 31, B=3, gap=8, apart=11), Try(9, 7, 31, B=3, spread=True), Try(9, 7, 31, spread=True, step=2),
            Try(fill="infinite"), Try(check="repeat"), Try(check="alone"),
        ),
    ),
    "split": Fault("split", "control", "K in parts, which are added in order.", "none", base="split"),
    "tiled": Fault(
        "tiled", "control", "Attention by an online softmax.", "none", base="tiled",
        right=(
            on(), on(17, 40, causal=1.0), on(40, 17, causal=1.0), on(33, 35, window=7.0, D=24, Dv=9),
            on(H=6, G=2, B=2, slopes=True, softcap=2.0, layout="stepped"), on(5, 0), on(0, 5), on(check="repeat"),
            on(B=2, check="alone"),
        ),
    ),
    "flash": Fault("flash", "control", "FlashAttention-2.", "none", base="flash", right=(on(), on(40, 17, causal=1.0))),
}  # fmt: skip


def write(name: str, folder: Path) -> Path:
    """The kernel `name`, a fault or a control, as a file in `folder`."""
    return {**CONTROLS, **FAULTS}[name].write(folder)


__all__ = ["BASES", "CONTROLS", "FAULTS", "KINDS", "QUIET", "Fault", "Try", "write"]
