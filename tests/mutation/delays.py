"""Delays of random length in a Gluon kernel, so that a race that a missing barrier allows is lost now and then.

Every warp sleeps before each statement that orders memory, for a time out of its own clock's low digits: producers and
consumers, which usually keep pace, drift apart either way. Each statement has its turns without: a delay before one may
give what another forgot to wait for the time to finish. A kernel that orders all it must is right with them too.
"""

import ast

from operators import ORDERING, called, is_jit

# 0 to 4 us: the copies of a stage take 1 to 2, so either side may come first. Every 33 us (2^15 ns, about a call of the
# ladder's) each site throws anew whether it sleeps at all: the top bit of the number of that time, scattered by site.
HELPER = '''

@gluon.jit
def sleep_a_while(site):
    """Sleep 0 to 4095 ns, or not at all."""
    gl.inline_asm_elementwise(
        "{ .reg .u32 t, s; .reg .u64 g; mov.u64 g, %globaltimer; shr.u64 g, g, 15; cvt.u32.u64 s, g; "
        "mul.lo.u32 s, s, $2; shr.s32 s, s, 31; mov.u32 t, %clock; add.u32 t, t, $1; and.b32 t, t, 4095; "
        "and.b32 t, t, s; nanosleep.u32 t; mov.u32 $0, t; }",
        "=r,r,r", [gl.program_id(0) * 977, site], dtype=gl.int32, is_pure=False, pack=1,
    )

'''
SCATTER = 0x9E3779B1  # 2^32 over the golden ratio, odd: neighbouring times differ in their top bits


def delayed(text: str) -> str:
    """The text of a Gluon module with a delay before every statement that orders memory, or that was removed."""
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    first = min(n.lineno - len(n.decorator_list) for n in tree.body if isinstance(n, ast.FunctionDef) and is_jit(n))
    spots = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and is_jit(function):
            for node in ast.walk(function):
                ordering = isinstance(node, (ast.Expr, ast.Assign)) and called(node.value) in ORDERING
                if ordering or isinstance(node, ast.Pass):
                    spots.add((node.lineno, node.col_offset))
    for number, (line, column) in enumerate(sorted(spots, reverse=True)):
        site = SCATTER * (2 * number + 1) % 2**32
        lines.insert(line - 1, " " * column + f"sleep_a_while({site - 2**32 * (site >> 31)})\n")
    lines.insert(first - 1, HELPER)
    return "".join(lines)
