"""A kernel's facts for people, as a table, and for programs, as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from rooftest.compiled.facts import PTXAS, Facts

WIDTH = 24  # the longest name of a row that is common, "mma.sync 16816.F32.BF16", and a space


def render(facts: Facts) -> str:
    """The facts as lines of text; of the instructions those that the kernel has."""
    upper = "" if facts.spills_from == PTXAS or not _spilled(facts) else " at most, arrays in local memory included"
    rows = {
        "kernel": f"{facts.kernel}, {facts.generation}, compiler {facts.compiler}",
        "threads a CTA": f"{facts.threads}",
        "registers a thread": f"{facts.registers}",
        "spills a thread": f"{facts.spill_store_bytes} B stored, {facts.spill_load_bytes} B loaded{upper}",
        "stack a thread": f"{facts.stack_bytes} B",
        "shared memory a CTA": f"{facts.static_shared_bytes} B static, {facts.dynamic_shared_bytes} B dynamic",
        "code": f"{facts.code_bytes} B",
        "CTAs an SM": f"{facts.occupancy.ctas_per_sm}, limited by {facts.occupancy.limited_by}",
        "instructions": f"{'in the kernel':>13}  {'in innermost loops':>18}",
    }
    rows |= {
        f"  {name}": f"{count:>13}  {facts.in_loop.get(name, 0):>18}"
        for name, count in facts.instructions.items()
        if count
    }
    wide = max(WIDTH, *map(len, rows))
    return "\n".join(f"{name:{wide}}  {value}" for name, value in rows.items())


def as_json(found: Sequence[Facts]) -> str:
    """The facts of kernels as a JSON list of objects, with the names of Facts as keys."""
    return json.dumps([dataclasses.asdict(each) for each in found], indent=2)


def _spilled(facts: Facts) -> int:
    return facts.spill_store_bytes + facts.spill_load_bytes
