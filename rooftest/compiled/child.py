"""A process that has imported torch and Triton and forks one process a kernel and generation.

Each begins in the same state: Triton keeps what it compiled by the number of the device, so one process may know one
generation only; and a compiler that aborts takes nothing with it. `python -m rooftest.compiled.child` reads one JSON
request a line, each with the folder that it writes to, and answers with the wait status.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

LIMIT_S = 300  # a large kernel takes some ten seconds
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Serves until the other side closes."""
    import torch  # noqa: F401
    import triton.experimental.gluon  # noqa: F401

    from rooftest import kernel, problem, spec  # noqa: F401
    from rooftest.compiled import capture, pretend  # noqa: F401

    warnings.simplefilter("ignore")  # Python warns of forks beside threads: numpy's BLAS has some, idle
    for text in sys.stdin:
        request: dict[str, Any] = json.loads(text)
        pid = os.fork()
        if pid == 0:
            _work(request)
        print(os.waitpid(pid, 0)[1], flush=True)  # noqa: T201 - this is how the other side knows


def _work(request: dict[str, Any]) -> None:
    from rooftest.compiled import capture

    folder = Path(request["folder"])
    log = os.open(folder / capture.LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process even inside the compiler
    signal.alarm(LIMIT_S)
    try:
        capture.run(request, folder)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
