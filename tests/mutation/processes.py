"""Kernel processes for many mutants: one takes over what the last one left whole, and a hung device ends it soon.

On a GPU a fresh process costs a second, nearly all of it for its CUDA context, and most mutants die by their first
call. What died with its process, or hung it, gets no successor in it.
"""

from pathlib import Path
from unittest.mock import patch

from rooftest import process
from rooftest.bench import Bench

WATCHED = "from watch import watched\nfrom {package}.gemm.{name} import matmul as bare\n\nmatmul = watched(bare)\n"
_spare: list = []


class Handed(process.KernelProcess):
    """A kernel's process that starts in the one that the last kernel has left, if there is one."""

    def _start(self) -> None:
        if self._child is None and self._import_error is None and _spare:
            with patch.object(process, "_Child", lambda _device: _spare.pop()):
                super()._start()
        else:
            super()._start()

    def close(self) -> None:
        """Leaves a process that answers to the next kernel."""
        if self._child is not None:
            _spare.append(self._child)
        self._child = None
        super().close()


class Brief(Bench):
    """A bench that does not look for the tensor past whose end a call crashed: that takes a crash for each."""

    def _crashes(self, *_args) -> bool:
        return False


def end() -> None:
    """Ends the process that waits for a kernel."""
    while _spare:
        _spare.pop().end(0.0)


def call(folder: str, package: str, name: str, device: str) -> str:
    """What the row of a planted kernel calls."""
    if not device.startswith("cuda"):
        return f"{package}.gemm.{name}:matmul"
    Path(folder, package, f"watched_{name}.py").write_text(WATCHED.format(package=package, name=name))
    return f"{package}.watched_{name}:matmul"
