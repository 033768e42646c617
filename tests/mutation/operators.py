"""What a slip in a kernel looks like: a table of operators over Triton, Gluon and launcher source, and their mutants.

A mutant is a text with one edit. Every operator sees every node of a module and yields the texts that may stand there
instead; where a node lies decides the mutant's group. Not mutated: what decides speed only (layouts, warps, stages, the
choice of a tile) and what refuses calls outside the contract, which no case makes.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

LANGUAGES = {"tl", "gl"}
NARROWER = {"bfloat16", "float16"}
BOUNDS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITES = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot}
OPPOSITES |= {ast.IsNot: ast.Is}
DIVISIONS = {ast.FloorDiv: ast.Mod, ast.Mod: ast.FloorDiv}
EXTREMES = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min"}
# Statements that only order memory; a mutant of one races rather than computes something else.
ORDERING = {"wait", "arrive", "expect", "init", "fence_async_shared", "meet", "store_wait", "warpgroup_mma_wait"}
# Speed only: a layout says which thread does what, a hint repeats what the host has checked.
SPEED_CALLS = {"multiple_of", "along", "vectors", "blocks", "NVMMADistributedLayout", "BlockedLayout", "SliceLayout"}
SPEED_CALLS |= {"with_identity_for", "MBarrierLayout", "get_default_for", "convert_layout", "Config"}
SPEED_WORDS = {"flatten", "is_async", "num_warps", "num_stages", "maxnreg", "worker_num_warps", "worker_num_regs"}
SPEED_FUNCTIONS = {"pick", "programs", "along", "vectors", "blocks"}
REFUSALS = {"obstacle", "require_descriptors"}
WIDTHS = {"index_type"}  # choose how wide an offset is: another choice is wrong past 2^31 elements only
# Sizes and axes: another number there is a program that does not compile.
STATIC_CALLS = {"arange", "reshape", "permute", "transpose", "allocate_shared_memory", "slice", "full", "zeros"}
STATIC_CALLS |= {"program_id", "num_programs", "sum", "warp_specialize"}


@dataclass(frozen=True)
class Place:
    """Where a node lies: the function, its arguments, its group, and whether a number there is a size or an axis."""

    function: str = ""
    arguments: tuple[str, ...] = ()
    group: str = ""
    static: bool = False


@dataclass(frozen=True)
class Operator:
    """One kind of slip; `edits` yields what may stand in place of a node. `alone`: mutants in a group of their own."""

    name: str
    about: str
    edits: Callable[[ast.AST, Place], Iterator[str]]
    alone: str | None = None


@dataclass(frozen=True)
class Mutant:
    """A module's text with one edit at `line`; `key` names it within its module, whatever moves around it."""

    module: str
    operator: str
    function: str
    line: int
    before: str
    after: str
    group: str
    text: str
    number: int = 0  # which of several equal edits in one function
    at: str = ""  # the line of the source

    @property
    def key(self) -> str:
        """`module function operator #number: before -> after`."""
        return f"{self.module} {self.function} {self.operator} #{self.number}: {self.before} -> {self.after}"


def called(node: ast.AST) -> str:
    """The last part of the name of what a call calls; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def changed(node: ast.AST, **fields: object) -> str:
    """The text of a copy of `node` with other fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return ast.unparse(other)


def _compare(table: dict[type, type]) -> Callable[[ast.AST, Place], Iterator[str]]:
    def edits(node: ast.AST, _place: Place) -> Iterator[str]:
        if isinstance(node, ast.Compare) and type(node.ops[0]) in table:
            yield changed(node, ops=[table[type(node.ops[0])](), *node.ops[1:]])

    return edits


def _negated(node: ast.AST, place: Place) -> Iterator[str]:
    yield from _compare(OPPOSITES)(node, place)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield ast.unparse(node.operand)
    if isinstance(node, (ast.If, ast.IfExp)) and isinstance(node.test, (ast.Name, ast.Call, ast.Attribute)):
        yield changed(node, test=ast.UnaryOp(ast.Not(), node.test))


def _without(node: ast.Call, words: set[str], positions: int) -> str:
    return changed(node, args=node.args[:positions], keywords=[k for k in node.keywords if k.arg not in words])


def _mask_dropped(call: str, positions: int) -> Callable[[ast.AST, Place], Iterator[str]]:
    def edits(node: ast.AST, place: Place) -> Iterator[str]:
        if place.group != "host" and called(node) == call and isinstance(node.func.value, ast.Name):
            masked = len(node.args) > positions or any(k.arg == "mask" for k in node.keywords)
            if node.func.value.id in LANGUAGES and masked:
                yield _without(node, {"mask", "other"}, positions)

    return edits


def _one_side(kind: type, *, right: bool = True) -> Callable[[ast.AST, Place], Iterator[str]]:
    def edits(node: ast.AST, _place: Place) -> Iterator[str]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, kind):
            if isinstance(node.left, ast.List) or (isinstance(node.right, ast.Constant) and kind is ast.BitAnd):
                return
            yield ast.unparse(node.left)
            if right:
                yield ast.unparse(node.right)

    return edits


def _ranges(node: ast.AST, _place: Place) -> Iterator[str]:
    if called(node) in ("range", "static_range") and not isinstance(node.args[0], ast.Starred):
        end = 0 if len(node.args) == 1 else 1
        for sign in (ast.Add(), ast.Sub()):
            other = ast.BinOp(node.args[end], sign, ast.Constant(1))
            yield changed(node, args=[*node.args[:end], other, *node.args[end + 1 :]])


def _offsets(node: ast.AST, place: Place) -> Iterator[str]:
    if called(node) == "arange" and place.group != "host":
        yield f"({ast.unparse(node)} + 1)"


def _strides(node: ast.AST, place: Place) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id.startswith("stride_"):
        siblings = [a for a in place.arguments if a[:-1] == node.id[:-1] and a != node.id]
        yield from siblings[-1:]  # rows for columns and columns for rows: the batch comes first
    if called(node) == "stride" and not node.args and place.group == "host":
        yield f"{ast.unparse(node.func.value)}.transpose(-1, -2).stride()"


def _steps(node: ast.AST, _place: Place) -> Iterator[str]:
    if called(node) == "range" and len(node.args) == 3:
        for op in (ast.Mult(), ast.FloorDiv()):
            yield changed(node, args=[*node.args[:2], ast.BinOp(node.args[2], op, ast.Constant(2))])


def _doubled(node: ast.AST, _place: Place) -> Iterator[str]:
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield changed(node, value=ast.BinOp(ast.Constant(2), ast.Mult(), node.value))


def _others(node: ast.AST, place: Place) -> Iterator[str]:
    if place.group == "host" or called(node) != "load":
        return
    one = ast.Constant(1.0)
    if any(k.arg == "other" for k in node.keywords):
        yield changed(node, keywords=[ast.keyword(k.arg, one) if k.arg == "other" else k for k in node.keywords])
    elif len(node.args) == 3:
        yield changed(node, args=[*node.args[:2], one])


def _precision(node: ast.AST, place: Place) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and node.attr == "float32" and getattr(node.value, "id", "") in LANGUAGES:
        yield from (changed(node, attr=name) for name in sorted(NARROWER))
    if isinstance(node, ast.keyword) and node.arg in ("input_precision", "PRECISION"):
        yield f"{node.arg}='tf32'"
    if called(node) == "dot" and not any(k.arg == "input_precision" for k in node.keywords):
        yield changed(node, keywords=[*node.keywords, ast.keyword("input_precision", ast.Constant("tf32"))])


def _narrow(node: ast.AST, place: Place) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and node.attr == "int64" and getattr(node.value, "id", "") in LANGUAGES:
        yield changed(node, attr="int32")


def _scaling(node: ast.AST, _place: Place) -> Iterator[str]:
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
        yield "pass"
    yield from _one_side(ast.Mult)(node, _place)


def _identity(node: ast.AST, place: Place) -> Iterator[str]:
    if called(node) == "zeros" and place.group != "host":
        yield f"({ast.unparse(node)} + 1)"
    if called(node) == "float" and isinstance(node.args[0], ast.Constant) and node.args[0].value == "-inf":
        yield "0.0"


def _programs(node: ast.AST, _place: Place) -> Iterator[str]:
    if called(node) == "program_id" and isinstance(node.args[0], ast.Constant):
        yield changed(node, args=[ast.Constant((node.args[0].value + 1) % 2)])
    if isinstance(node, ast.BinOp) and type(node.op) in DIVISIONS:
        yield changed(node, op=DIVISIONS[type(node.op)]())


def _unordered(node: ast.AST, place: Place) -> Iterator[str]:
    if place.group == "host":
        return
    if isinstance(node, ast.Expr) and called(node.value) in ORDERING:
        yield "pass"
    if called(node) == "warpgroup_mma_wait":
        yield changed(node, keywords=[_one_more(k) if k.arg == "num_outstanding" else k for k in node.keywords])
    if called(node) == "atomic_add":
        yield changed(node, func=ast.Attribute(node.func.value, "store"))


def _one_more(word: ast.keyword) -> ast.keyword:
    return ast.keyword(word.arg, ast.Constant(word.value.value + 1))


def _numbers(node: ast.AST, place: Place) -> Iterator[str]:
    if isinstance(node, ast.Constant) and type(node.value) in (int, bool) and not place.static:
        yield repr(not node.value if isinstance(node.value, bool) else node.value + 1)


def _addends(node: ast.AST, place: Place) -> Iterator[str]:
    if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield "pass"
    yield from _one_side(ast.Add)(node, place)
    yield from _one_side(ast.Sub, right=False)(node, place)


def _swapped(node: ast.AST, _place: Place) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in ("alpha", "beta"):
        yield {"alpha": "beta", "beta": "alpha"}[node.id]


def _rounded(node: ast.AST, _place: Place) -> Iterator[str]:
    if called(node) == "cdiv":
        yield ast.unparse(ast.BinOp(node.args[0], ast.FloorDiv(), node.args[1]))


def _extremes(node: ast.AST, _place: Place) -> Iterator[str]:
    if called(node) in EXTREMES and len(node.args) == 2:
        name = EXTREMES[called(node)]
        func = replace_name(node.func, name)
        yield changed(node, func=func)


def replace_name(func: ast.expr, name: str) -> ast.expr:
    """A function's name with another last part."""
    return ast.Attribute(func.value, name) if isinstance(func, ast.Attribute) else ast.Name(name)


OPERATORS = (
    Operator("boundary", "< for <=, > for >=, and back", _compare(BOUNDS)),
    Operator("condition", "== for !=, in for not in, a condition negated", _negated),
    Operator("load mask dropped", "a load without its mask", _mask_dropped("load", 1)),
    Operator("store mask dropped", "a store without its mask", _mask_dropped("store", 2)),
    Operator("mask widened", "one side of an & dropped", _one_side(ast.BitAnd)),
    Operator("range", "the end of a range one off", _ranges),
    Operator("offset", "tl.arange one off", _offsets),
    Operator("stride", "a stride for its sibling, a tensor's strides transposed", _strides),
    Operator("step", "the step of a range doubled or halved", _steps),
    Operator("doubled", "what is added to a sum or a pointer doubled", _doubled),
    Operator("other", "1 for 0 where a load is masked", _others),
    Operator("precision", "bfloat16 and float16 for float32, tf32 for the exact product", _precision),
    Operator("narrow index", "int32 for int64", _narrow, alone="huge"),
    Operator("scaling", "a factor dropped", _scaling),
    Operator("identity", "a sum that starts at 1, a maximum at 0", _identity),
    Operator("program", "another program id, // for % and back", _programs),
    Operator("unordered", "a barrier, wait or fence removed, an atomic made a store", _unordered, alone="racing"),
    Operator("constant", "an integer one larger, a flag negated", _numbers),
    Operator("addend", "an addend dropped", _addends),
    Operator("swapped", "alpha for beta and back", _swapped),
    Operator("rounding", "cdiv rounded down", _rounded),
    Operator("extreme", "min for max and back", _extremes),
)


def is_jit(node: ast.FunctionDef) -> bool:
    """Whether a function runs on the device."""
    return any(ast.unparse(d).startswith(("triton.jit", "gluon.jit")) for d in node.decorator_list)


def refuses(node: ast.AST) -> bool:
    """Whether a node only turns down calls outside the contract."""
    inside = isinstance(node, ast.If) and all(isinstance(s, ast.Raise) for s in node.body)
    return isinstance(node, ast.Raise) or (inside and not node.orelse)


def places(node: ast.AST, place: Place) -> Iterator[tuple[ast.AST, Place]]:
    """Every node in which a slip may lie, with its place."""
    if refuses(node) or called(node) in SPEED_CALLS or isinstance(node, (ast.ClassDef, ast.Import, ast.ImportFrom)):
        return
    if isinstance(node, ast.FunctionDef) and node.name not in SPEED_FUNCTIONS | REFUSALS:
        names = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        group = "device" if is_jit(node) else "host"
        place = Place(place.function or node.name, tuple(a.arg for a in names), place.group or group)
        for statement in node.body:
            yield from places(statement, place)
        return
    if not place.group and not isinstance(node, ast.Module):
        return  # constants of the module: tiles and names
    if isinstance(node, ast.keyword) and node.arg in SPEED_WORDS:
        return
    if isinstance(node, (ast.Expr, ast.Assign)) and called(node.value) in ORDERING and place.group == "device":
        place = replace(place, group="racing")
    if called(node) in STATIC_CALLS or isinstance(node, ast.Subscript):
        place = replace(place, static=True)
    elif isinstance(node, ast.Call):
        place = replace(place, static=False)
    yield node, place
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.operator, ast.cmpop, ast.expr_context)) and child is not _annotation(node):
            yield from places(child, place)


def _annotation(node: ast.AST) -> ast.AST | None:
    return node.annotation if isinstance(node, ast.AnnAssign) else None


def mutants(module: str, text: str, operators: tuple[Operator, ...] = OPERATORS) -> list[Mutant]:
    """Every mutant of a module's text, in the order of its lines."""
    data, lines, made, seen = text.encode(), text.splitlines(), [], {}
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, place in places(ast.parse(text), Place()):
        if not hasattr(node, "col_offset"):
            continue
        group = "huge" if place.function in WIDTHS else place.group
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        for operator in operators:
            for found in operator.edits(node, place):
                # A compound statement spans lines: its indentation goes in front of all but the first.
                edit = found.replace("\n", "\n" + " " * node.col_offset)
                new = f"({edit})" if isinstance(node, ast.expr) else edit
                mutated = data[:begin] + new.encode() + data[end:]
                before, after = (short(x) for x in (data[begin:end].decode(), edit))
                same = (place.function, operator.name, before, after)
                seen[same] = seen.get(same, -1) + 1
                made.append(
                    Mutant(module, operator.name, place.function, node.lineno, before, after,
                           operator.alone or group, mutated.decode(), seen[same], lines[node.lineno - 1].strip())
                )  # fmt: skip
    return sorted(made, key=lambda m: m.line)


def short(text: str) -> str:
    """A piece of source on one line; of a compound statement the head."""
    head = text.split(":\n", maxsplit=1)[0] if text.startswith("if ") else text
    return " ".join(head.split())
