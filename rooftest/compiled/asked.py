"""The bytes that machine code asks of global memory for each multiply-add, as its instructions say them.

Every trip of an innermost loop that multiplies does w multiply-adds a warp and asks for b bytes, so W multiply-adds ask
for W b / w, whatever the trip counts. Loads of threads are counted with their width, whether or not a predicate passes
them over. Bulk copies name no size; but the barrier that waits for them is told their bytes, a literal in PTX: a trip
takes what one barrier waits for, and all warps that may multiply share it. A kernel that takes the same stage in two
trips asks for less; one that copies nothing in a loop, or loads ahead of it, for more.

What is asked for is no time. Caches answer a part of it (a thread's loads may hit L1, lanes may want the same bytes),
boxes outside a tensor are filled with zeros, and no device file says how fast an SM takes bytes from the L2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rooftest.compiled import bound, loops, sass
from rooftest.compiled.sass import Code

THREADS = frozenset({"load 16 bytes", "load narrower", "cp.async"})
BULK = frozenset({"bulk tensor copy in", "bulk copy"})
AWAITED = re.compile(r"\bmbarrier\.arrive\.expect_tx\.[^;]*, (?P<bytes>\d+);")
PRODUCERS = 4  # warps: wgmma is a whole warpgroup's, and the one that copies takes no part in it


def per_mac(code: Code, threads: int, ptx: str | None = None) -> float | None:
    """Bytes asked for each multiply-add by a kernel of so many threads a CTA.

    None where nothing is known: no loop multiplies with instructions of which we know how much each does, nothing is
    loaded in loops, or bulk copies are and there is no PTX that says how large they are.
    """
    bodies = loops.bodies(code)
    counted = bound.counter(each.kind for each in code.instructions)
    if counted is None:
        return None
    macs = [sum(pair[0] for each in body if (pair := counted(each)) is not None) for body in bodies]
    multiplying = [(body, done) for body, done in zip(bodies, macs, strict=True) if done]
    if not multiplying:
        return None
    loads = min(_loaded(body) / done for body, done in multiplying)
    copying = [body for body in bodies if any(each.kind in BULK for each in body)]
    if not copying:
        return loads or None
    stages = [int(found["bytes"]) for found in AWAITED.finditer(ptx or "")]
    apart = all(body not in copying for body, _ in multiplying)
    warps = threads // bound.LANES - (PRODUCERS if apart else 0)
    if not stages or warps < 1:
        return None
    return loads + min(stages) / (warps * max(done for _, done in multiplying))


def least(kernels: Sequence[float | None], flop: float, fewest: float) -> float | None:
    """Bytes that a call asks for at least, whichever of its kernels does the work; None if one is unknown, or the work.

    `fewest`: what it must read. Where tiles hang over a matrix most of their multiply-adds may be nobody's work, and
    what is asked for the others be less than that.
    """
    known = [each for each in kernels if each is not None]
    return max(fewest, min(known) * flop / 2) if flop and known and len(known) == len(kernels) else None


def _loaded(body: Sequence[sass.Instruction]) -> int:
    """Bytes that a warp asks for in one trip."""
    return bound.LANES * sum(sass.moved_bytes(body, kind) for kind in THREADS)
