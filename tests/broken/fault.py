"""What a fault is: the edits that turn a correct kernel into a broken one, where it strikes, and calls that show it."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

FOLDER = Path(__file__).parent
BASES = {
    "clean": FOLDER / "clean.py",
    "split": FOLDER / "split.py",
    "lost_update": FOLDER / "lost_update.py",
    "torch_default": FOLDER / "torch_default.py",
    "step5": FOLDER.parents[1] / "kernels/gemm/step5_pipeline.py",
}


@dataclass(frozen=True)
class Try:
    """One call: sizes, dtypes and what else a trigger may speak of.

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
    trigger, which must be right; `wrong`: calls within, which must be wrong. `places`: where it can exist, and if
    that is one place only, `why`. `row`: keys of its row; `waits`: the part of the suite that catches it where
    examples can't; `rung`: the one that is there for it, which is tried first.
    """

    name: str
    kind: str
    about: str
    trigger: str
    edits: tuple[tuple[str, str], ...] = ()
    lines: tuple[int, ...] = ()
    right: tuple[Try, ...] = QUIET
    wrong: tuple[Try, ...] = ()
    base: str = "clean"
    places: tuple[str, ...] = ("cpu", "gpu")
    why: str = ""
    row: dict = field(default_factory=dict)
    waits: str = ""
    rung: str = "contract"

    def source(self) -> str:
        """The text of the broken kernel."""
        text = BASES[self.base].read_text()
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} stands {text.count(old)} times in {self.base}.py, not once")
            text = text.replace(old, new)
        return f"# {self.about}\n# Trigger: {self.trigger}\n{text}"

    def write(self, folder: Path) -> Path:
        """The broken kernel as a file in `folder`."""
        path = folder / f"{self.name}.py"
        path.write_text(self.source())
        return path
