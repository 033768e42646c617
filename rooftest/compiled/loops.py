"""The innermost loops of machine code in which work is done."""

from __future__ import annotations

from rooftest.compiled.sass import WAITS, Code, Instruction

Graph = dict[int, list[int]]  # by its first instruction, a basic block's successors


def innermost(code: Code) -> list[Instruction]:
    """The instructions in loops that hold no other loop, where a loop that only waits (for an mbarrier, for registers)
    counts as none: the loop over K waits for its operands in loops of its own.

    A loop is what its head reaches and what comes back to it (a natural loop: Aho et al., Compilers, 9.6.6), so a wait
    that the assembler has moved behind the kernel's end belongs to the loop it goes back to.
    """  # noqa: D205 - one sentence
    ends = blocks(code)
    return _instructions(code, ends, frozenset().union(*_innermost(code, ends)))


def bodies(code: Code) -> list[list[Instruction]]:
    """The same, loop by loop."""
    ends = blocks(code)
    return [_instructions(code, ends, body) for body in _innermost(code, ends)]


def _innermost(code: Code, ends: dict[int, int]) -> list[frozenset[int]]:
    found = {head: body for head, body in _loops(_graph(code, ends)).items() if _works(code, ends, body)}
    return [body for body in found.values() if not any(other < body for other in found.values())]


def _instructions(code: Code, ends: dict[int, int], body: frozenset[int]) -> list[Instruction]:
    return [each for start in sorted(body) for each in code.instructions[start : ends[start]]]


def blocks(code: Code) -> dict[int, int]:
    """Basic blocks: first instruction and one past the last."""
    count = len(code.instructions)
    starts = {0, *code.labels.values()}
    starts |= {index + 1 for index, each in enumerate(code.instructions) if each.targets or each.ends}
    ordered = sorted(start for start in starts if start < count)
    return dict(zip(ordered, [*ordered[1:], count], strict=True)) if count else {}


def _graph(code: Code, blocks: dict[int, int]) -> Graph:
    graph: Graph = {}
    for start, end in blocks.items():
        last = code.instructions[end - 1]
        to = [code.labels[name] for name in last.targets if name in code.labels]
        to += [] if last.ends else [end]
        graph[start] = [each for each in dict.fromkeys(to) if each in blocks]
    return graph


def _loops(graph: Graph) -> dict[int, frozenset[int]]:
    """The blocks of each loop, by the loop's head: found by walking depth first, in which an edge to a block that is
    still being walked closes a loop. Code that nothing reaches has none.
    """  # noqa: D205 - one sentence
    closing: dict[int, set[int]] = {}
    entered: set[int] = set()
    walked: list[tuple[int, list[int]]] = []
    path: set[int] = set()
    if graph:
        walked.append((0, list(graph[0])))
        entered.add(0)
        path.add(0)
    while walked:
        block, left = walked[-1]
        if not left:
            walked.pop()
            path.discard(block)
            continue
        to = left.pop()
        if to in path:
            closing.setdefault(to, set()).add(block)
        elif to not in entered:
            entered.add(to)
            path.add(to)
            walked.append((to, list(graph[to])))
    before: Graph = {}
    for block in entered:
        for to in graph[block]:
            before.setdefault(to, []).append(block)
    return {head: _body(head, tails, before) for head, tails in closing.items()}


def _body(head: int, tails: set[int], before: Graph) -> frozenset[int]:
    body, left = {head}, list(tails)
    while left:
        block = left.pop()
        if block not in body:
            body.add(block)
            left += before.get(block, [])
    return frozenset(body)


def _works(code: Code, blocks: dict[int, int], body: frozenset[int]) -> bool:
    kinds = {each.kind for start in body for each in code.instructions[start : blocks[start]]}
    return bool(kinds - WAITS - {None})
