"""In a mutant's process on a GPU: a call from which the device does not come back ends the process.

The grader's time limit must leave time to compile; this one begins when the launch has returned, so it can be short.
"""

import functools
import os
import threading
import time

import torch

# A call takes milliseconds; with a dozen hung neighbours, each of which has the device for some milliseconds in turn,
# tenths of a second.
LIMIT_S = 2.0
_launched: list = []  # when the last launch returned, and its stream


def watched(matmul):
    """`matmul`, watched by a thread that is started once in a process."""
    if not any(t.name == __name__ for t in threading.enumerate()):
        threading.Thread(target=_watch, name=__name__, daemon=True).start()

    @functools.wraps(matmul)
    def call(*args, **kwargs):
        _launched.clear()  # what this call compiles takes its time
        result = matmul(*args, **kwargs)
        _launched[:] = [time.monotonic(), torch.cuda.current_stream()]
        return result

    return call


def _watch() -> None:
    while True:
        time.sleep(0.1)
        match list(_launched):
            case [begun, stream] if time.monotonic() - begun > LIMIT_S:
                if not stream.query():
                    print(f"the device hung for {LIMIT_S:g} s", flush=True)
                    os._exit(9)
                _launched.clear()
