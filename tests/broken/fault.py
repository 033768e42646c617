"""What a fault is: the edits that turn a correct kernel into a broken one, where it strikes, and calls that show it."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent
KERNELS = FOLDER.parents[1] / "kernels"


@dataclass(frozen=True)
class Base:
    """A correct kernel: its op, the function to call, what its row says, the files it is made of in their order."""

    op: str
    entry: str
    row: dict[str, Any]
    files: tuple[Path, ...]

    def source(self) -> str:
        """All of it in one file, so that an edit may change any part: what the parts import from each other goes."""
        text = "".join(file.read_text() for file in self.files)
        parts = "|".join(file.stem for file in self.files)
        return re.sub(rf"^from rooftest_kernels\.\w+\.({parts}) import (\([^)]*\)|.*)\n", "", text, flags=re.MULTILINE)


def _gemm(*files: Path) -> Base:
    return Base("gemm", "matmul", {"args": {"c": "out"}}, files)


def _attention(step: str) -> Base:
    row = {"args": {"o": "out"}, "configs": "CONFIGS", "claims": ["deterministic", "batch-invariant"]}
    return Base(
        "attention", "attention", row, tuple(KERNELS / f"attention/{n}.py" for n in ("operands", "scores", step))
    )


BASES = {
    "clean": _gemm(FOLDER / "clean.py"),
    "split": _gemm(FOLDER / "split.py"),
    "lost_update": _gemm(FOLDER / "lost_update.py"),
    "torch_default": _gemm(FOLDER / "torch_default.py"),
    "step5": _gemm(KERNELS / "gemm/step5_pipeline.py"),
    "tiled": _attention("step2_tiled"),
    "flash": _attention("step3_flash"),
}


@dataclass(frozen=True)
class Try:
    """One call of a GEMM: sizes, dtypes and what else a trigger may speak of.

    `gap` and `apart`: elements after each row, and after each matrix of a batch; `step`: the inner stride; `spread`:
    inputs repeat, along the batch if there is one, else along the rows; `tight`: what is optional has the same layout
    as C; `only`: the one tensor that is so strided, if not all; `columns`: what is stored column after column, C or C0;
    `behind`: what lies in A's gaps and after it. `check`: "value" (C is right), "repeat" (the same bits again), "alone"
    (a row by itself has the same bits) or "raises".
    """

    M: int = 32
    N: int = 48
    K: int = 64
    B: int | None = None
    dtypes: tuple = (torch.float32,)
    layout: str = "nn"
    gap: int = 0
    apart: int = 0
    step: int = 1
    spread: bool = False
    alpha: float = -1.5
    beta: float = 0.0
    c0: str = "none"  # or "finite", "nan"
    bias: bool = True
    tight: bool = True
    only: str = ""
    columns: str = ""
    behind: float = float("nan")
    fill: str = "integers"  # or "large" (integers too), "normal", "outliers", "tiny", "huge", "minute", "infinite"
    config: str | None = None
    check: str = "value"


# Outside every trigger of a multiple of the tile; the second needs C0.
QUIET = (Try(), Try(alpha=1.0, beta=0.5, c0="finite"))


@dataclass(frozen=True)
class Fault:
    """One broken kernel. `lines`: public cases of the same kind in the list that README.md speaks of, or none of them.

    `edits`: pairs of old and new text; the old one stands exactly once in the base. `right`: calls outside the
    trigger, which must be right; `wrong`: calls within, which must be wrong (each is a Try, of attention an Attend).
    `places`: where it can exist, and if that is one place only, `why`. `row`: keys of its row; `waits`: the part of the
    suite that catches it where examples can't; `missed`: why nothing does; `rung`: the one that is there for it, which
    is tried first.
    """

    name: str
    kind: str
    about: str
    trigger: str
    edits: tuple[tuple[str, str], ...] = ()
    lines: tuple[int, ...] = ()
    right: tuple[Any, ...] = QUIET
    wrong: tuple[Any, ...] = ()
    base: str = "clean"
    places: tuple[str, ...] = ("cpu", "gpu")
    why: str = ""
    row: dict = field(default_factory=dict)
    waits: str = ""
    missed: str = ""
    rung: str = "contract"

    @property
    def op(self) -> str:
        """The op whose kernel it is."""
        return BASES[self.base].op

    def source(self) -> str:
        """The text of the broken kernel."""
        text = BASES[self.base].source()
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} stands {text.count(old)} times in {self.base}, not once")
            text = text.replace(old, new)
        return f"# {self.about}\n# Trigger: {self.trigger}\n{text}"

    def write(self, folder: Path) -> Path:
        """The broken kernel as a file in `folder`."""
        path = folder / f"{self.name}.py"
        path.write_text(self.source())
        return path
