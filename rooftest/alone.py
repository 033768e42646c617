"""Run cases of one kernel in this process, each tensor in an allocation alone: for a tool that starts what it watches.

`python -m rooftest.alone FILE`, a JSON file as rooftest.sanitize writes it. A line is printed before each case, so that
what the tool reports next belongs to it, and one at the end: without that one the cases did not all run.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from rooftest.arena import Placement

CASE, DONE = "rooftest: case ", "rooftest: all cases ran"


def main(path: str) -> None:
    """Runs every case of the file; what the kernel raises ends the process."""
    message: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    sys.path[:] = message["path"]
    import torch

    from rooftest.case import parse
    from rooftest.kernel import Kernel
    from rooftest.problem import draw, lay_out
    from rooftest.spec import load

    device = message["device"]
    kernel = Kernel(message["row"], message["args"], message["outputs"], message["laid_out"])
    spec = load(message["op"])
    for number, each in enumerate(message["cases"]):
        case = parse(each["case"])
        problem = lay_out(spec, case)
        # Drawn and laid out on the host: no kernel but the one in question runs on the device.
        tensors = place(problem.placements, draw(spec, case, "cpu"), device)
        print(f"{CASE}{number}", flush=True)  # noqa: T201 - this is how the other side knows
        kernel.bind(tensors, each["scalars"]).run()
        if device != "cpu":
            torch.cuda.synchronize()
    print(DONE, flush=True)  # noqa: T201


def place(
    placements: tuple[Placement, ...], values: Mapping[str, torch.Tensor], device: str
) -> dict[str, torch.Tensor]:
    """Each tensor at the end of an allocation of its own, as far from aligned as it was placed.

    Inputs have NaN (integers -1) in the gaps between their rows; outputs are not written at all, so that reading one is
    seen.
    """
    import torch

    from rooftest.arena import write
    from rooftest.problem import ALIGN_BYTES

    tensors = {}
    for p in placements:
        lead = p.offset_bytes % ALIGN_BYTES // p.itemsize
        count, dtype = lead + p.extent_bytes // p.itemsize, getattr(torch, p.dtype)
        if p.name in values:
            there = torch.full((count,), math.nan if dtype.is_floating_point else -1, dtype=dtype)
            write(there.as_strided(p.shape, p.stride, lead), values[p.name])
            there = there.to(device)
        else:
            there = torch.empty(count, dtype=dtype, device=device)
        tensors[p.name] = there.as_strided(p.shape, p.stride, lead)
    return tensors


if __name__ == "__main__":
    main(sys.argv[1])
