"""Delays of random length in a Gluon kernel, so that a race that a missing barrier allows is lost now and then.

Every warp sleeps before each statement that orders memory, for a time out of its own clock's low digits: producers and
consumers, which usually keep pace, drift apart either way. A kernel that orders all it must is right with them too.
"""

import ast

from operators import ORDERING, called, is_jit

# 0 to 4 us: the copies of a stage take 1 to 2, so either side may come first.
HELPER = '''

@gluon.jit
def sleep_a_while():
    """Sleep 0 to 4095 ns."""
    gl.inline_asm_elementwise(
        "{ .reg .u32 t; mov.u32 t, %clock; add.u32 t, t, $1; and.b32 t, t, 4095; nanosleep.u32 t; mov.u32 $0, t; }",
        "=r,r", [gl.program_id(0) * 977], dtype=gl.int32, is_pure=False, pack=1,
    )

'''


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
    for line, column in sorted(spots, reverse=True):
        lines.insert(line - 1, " " * column + "sleep_a_while()\n")
    lines.insert(first - 1, HELPER)
    return "".join(lines)
