"""What this machine has: a GPU that works, none, or one that is broken."""

from __future__ import annotations

import os
import warnings

from rooftest.errors import UsageError

NO_GPU = "no CUDA device: properties run under Triton's interpreter, timing is left out"
NO_TIMING = "no CUDA device: timing is left out"
_MEND = "mend it, or pass --roof-device cpu or interpreter to judge without it"


def gpu() -> str | None:
    """The GPU that torch can use, "cuda:0"; None if there is none.

    Raises UsageError where a GPU is there and can't be used: a run that was meant for it shall not fall back silently.
    """
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if available:
        try:
            torch.zeros(1, device="cuda:0").item()
        except RuntimeError as error:
            raise UsageError(f"CUDA is present but broken: {_line(error)}; {_MEND}") from None
        return "cuda:0"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if torch.version.cuda is None or hidden:
        return None
    seen = _seen_by_nvml()
    if seen:
        why = _line(caught[0].message) if caught else "torch.cuda.is_available() is False"
        raise UsageError(f"CUDA is present but broken: NVML lists {seen} GPU(s), torch can use none ({why}); {_MEND}")
    return None


def _seen_by_nvml() -> int:
    """GPUs that the driver lists; 0 where there is no driver."""
    from rooftest import nvml

    try:
        return len(nvml.gpus())
    except nvml.NvmlMissingError:
        return 0


def _line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
