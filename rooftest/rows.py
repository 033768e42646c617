"""A kernel's row: the one way in, for our kernels and for a user's.

Rows stand in `[tool.rooftest.kernels."name"]` of pyproject.toml or of a file named with `--roof-rows`. A row says where
the kernel is, what part of the contract it takes (its domain) and what it claims beyond the contract.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rooftest.compiled import expect
from rooftest.errors import UsageError
from rooftest.spec import STRIDES, Spec, load

# What a kernel can say of itself beyond the contract; each is tested where claimed, by the rung named.
CLAIMS = {
    "deterministic": "the same inputs give the same bits, in any process state (rung determinism)",
    "batch-invariant": "a row's result does not depend on the rows beside it, bit for bit (rung determinism)",
    "single-launch": "one call is one kernel launch (rung contract, on a GPU)",
    "capturable": "runs under CUDA graph capture and replays on new contents (rung contract, on a GPU)",
    "stream-safe": "runs on the caller's current stream, on two at once, without host synchronisation (rung contract)",
}
DEVICES = ("cuda", "cpu", "interpreter")
CONTRACTS = ("fp32", "partials")  # how products are accumulated; see rooftest.engines
OUTSIDE = ("raises", "undefined")
# All that a row of an op without a reference can say.
UNJUDGED = ("op", "call", "compiled", "requires", "renamed_from")
SECTIONS = ("kernels", "xfail")  # what [tool.rooftest] may hold
BEST = 1.5  # efficiency is a share of the measured ceiling, about 1 at best; 80 means a percentage
# What a name can't hold: it is one word of a printed case (no space, no =), in double quotes of a shell (" $ ` \\), one
# part of an id (/), and an id is matched by globs (* ? [ ]).
_NO_NAME = re.compile(r"""[\s="'$`\\/*?\[\]]""")


@dataclass(frozen=True)
class Row:
    """One kernel. `call` is "module:function" or "path.py:function"; see docs/rows.md for every key."""

    name: str
    op: str
    call: str
    prepare: str | None = None
    requires: Mapping[str, str] = field(default_factory=dict)  # optional packages: the command that installs each
    args: Mapping[str, str] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    strides: tuple[str, ...] = ("dense",)
    devices: tuple[str, ...] = ("cuda",)
    arch: tuple[int, ...] = ()
    multiple: Mapping[str, int] = field(default_factory=dict)
    vector: int = 1  # the contiguous extent of every operand is a multiple of this many elements
    at_least: Mapping[str, int] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)
    tile: Mapping[str, int] = field(default_factory=dict)
    configs: str | None = None
    outside: str = "undefined"
    without: tuple[str, ...] = ()  # optional axes and inputs of the op that the kernel does not take
    contract: str = "fp32"
    claims: tuple[str, ...] = ()
    efficiency: Mapping[str, float] = field(default_factory=dict)
    compiled: Mapping[str, expect.Expected] = field(default_factory=dict)  # by generation
    workloads: tuple[str, ...] = ("*",)
    peer: bool = False
    renamed_from: tuple[str, ...] = ()
    root: str = ""  # the folder that "path.py:function" is relative to

    @property
    def spec(self) -> Spec:
        """The specification of this row's op."""
        return load(self.op)

    def multiples(self, layout: str) -> dict[str, int]:
        """What the size of each axis must be a multiple of in this layout; axes that are free are left out."""
        needed = dict(self.multiple)
        for name, letter in zip(self.spec.laid_out, layout, strict=False):  # with nothing laid out it is but a word
            axis = self.spec.inputs[name].axes[-2 if letter == "t" else -1]
            needed[axis] = math.lcm(needed.get(axis, 1), self.vector)
        return {axis: m for axis, m in needed.items() if m > 1}

    def admits(self, dtype: str, layout: str, sizes: Mapping[str, int]) -> bool:
        """Whether a case with this dtype, layout and sizes lies in the domain."""
        inside = all(sizes.get(a, 0) % m == 0 for a, m in self.multiples(layout).items())
        inside &= all(a in sizes and sizes[a] >= low for a, low in self.at_least.items())
        inside &= not set(self.without) & set(sizes)
        inside &= all(sizes.get(a, high) <= high for a, high in self.at_most.items())
        return inside and dtype in self.dtypes and layout in self.layouts


_KEYS = {f.name: f for f in fields(Row) if f.name not in ("name", "root")}
_TUPLES = {n for n, f in _KEYS.items() if str(f.type).startswith("tuple")}
_MAPS = {n for n, f in _KEYS.items() if str(f.type).startswith("Mapping")}
# Lists that may not be empty, and what stands in for them where the key is left out.
_FILLED = {"dtypes": "all of the op's", "layouts": "all of the op's"} | {
    n: f"{list(getattr(Row, n))}" for n in ("strides", "devices", "workloads")
}


def _one_of(where: str, key: str, values: tuple[Any, ...], known: tuple[Any, ...]) -> None:
    for value in values:
        if value not in known:
            near = difflib.get_close_matches(str(value), [str(k) for k in known], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"{where}: {key} {value!r} is none of {', '.join(map(str, known))}{hint}")


def _value(where: str, key: str, value: Any) -> Any:
    """The value of a key as its field's annotation says; raises UsageError if it is of another kind or out of range."""
    kind = str(_KEYS[key].type)
    if key in _TUPLES:
        value = (value,) if isinstance(value, str) else value  # one name is a list of one
        if not isinstance(value, (list, tuple)):
            raise UsageError(f"{where}: {key} must be a list, not {value!r}")
        if not value and key in _FILLED:
            raise UsageError(f"{where}: {key} = [] leaves nothing; without the key it is {_FILLED[key]}")
        for item in value:
            _item(where, key, kind, item)
        return tuple(value)
    if key in _MAPS:
        if not isinstance(value, Mapping):
            raise UsageError(f"{where}: {key} must be a table such as {{K = 64}}, not {value!r}")
        for name, item in value.items():
            _item(where, f"{key}.{name}", kind.partition(",")[2], item)
        return dict(value)
    _item(where, key, kind, value)
    return value


def _item(where: str, key: str, kind: str, value: Any) -> None:
    """One value; `kind` is the part of an annotation that holds its type's name."""
    flag, least = isinstance(value, bool), 0 if key.startswith("at_") else 1
    if "bool" in kind:
        fits, words = flag, "true or false"
    elif "int" in kind:
        fits, words = isinstance(value, int) and not flag and value >= least, f"a whole number from {least} up"
    elif "float" in kind:
        fits, words = isinstance(value, (int, float)) and not flag and 0 < value <= BEST, f"above 0 and up to {BEST}"
    else:
        fits, words = isinstance(value, str) and value != "", "a string"
    if not fits:
        raise UsageError(f"{where}: {key} must be {words}, not {value!r}")


def parse_row(name: str, table: Mapping[str, Any], source: str, root: str = "") -> Row:
    """A row from its TOML table.

    Raises UsageError naming `source`, the row and the key that is unknown, missing or of the wrong kind.
    """
    where = f'{source}: kernel "{name}"'
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: a row is a table of keys, not {table!r}")
    _one_of(where, "key", tuple(table), tuple(_KEYS))
    for key in ("op", "call"):
        if not isinstance(table.get(key), str):
            raise UsageError(f'{where}: needs {key} = "..." ')
    if ":" not in table["call"]:
        raise UsageError(f'{where}: call {table["call"]!r} must read "module:function" or "path.py:function"')
    if not name or _NO_NAME.search(name):
        raise UsageError(f"""{where}: a kernel's name is one word without = / " ' $ ` \\ * ? [ ]""")
    values = {key: _value(where, key, value) for key, value in table.items() if key != "compiled"}
    values |= {"compiled": expect.parse(where, table["compiled"])} if "compiled" in table else {}
    try:
        spec = load(table["op"])
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    if spec.reference is None:
        _unjudged(where, table)
    values = {"dtypes": spec.precisions, "layouts": spec.layouts} | values
    _one_of(where, "dtype", values["dtypes"], spec.precisions)
    _one_of(where, "layout", values["layouts"], spec.layouts)
    _one_of(where, "claim", values.get("claims", ()), tuple(CLAIMS))
    _one_of(where, "stride", values.get("strides", ()), STRIDES)
    _one_of(where, "device", values.get("devices", ()), DEVICES)
    _one_of(where, "contract", (values.get("contract", "fp32"),), CONTRACTS)
    _one_of(where, "outside", (values.get("outside", "undefined"),), OUTSIDE)
    optional = (*spec.optional_axes, *spec.optional, *spec.params)
    _one_of(where, "optional part", values.get("without", ()), optional)
    _one_of(where, "renamed tensor", tuple(values.get("args", {})), (*spec.tensors, *spec.params))
    for key in ("multiple", "at_least", "at_most", "tile"):
        _one_of(where, f"{key} axis", tuple(values.get(key, {})), tuple(spec.axes))
    for axis, span in spec.axes.items():
        low = max(span.low, values.get("at_least", {}).get(axis, span.low))
        high = min(span.high, values.get("at_most", {}).get(axis, span.high))
        if low > high:
            raise UsageError(f"{where}: at_least and at_most leave no size of {axis}: {low} to {high}")
    for glob in values.get("workloads", ()):
        if not any(fnmatchcase(workload.name, glob) for workload in spec.workloads):
            known = ", ".join(workload.name for workload in spec.workloads)
            raise UsageError(f"{where}: workloads {glob!r} matches none of {spec.op}'s: {known}")
    return Row(name=name, root=root, **values)


def _unjudged(where: str, table: Mapping[str, Any]) -> None:
    """Raise UsageError for a key that nobody would look at, or where nothing is left to look at."""
    op = table["op"]
    for key in table:
        if key not in UNJUDGED:
            raise UsageError(f"{where}: of op {op!r} only machine code is judged, {key} says nothing: remove it")
    if not table.get("compiled"):
        raise UsageError(
            f"{where}: op {op!r} needs compiled = {{ sm_90 = {{ spills = 0 }} }} or the like: nothing else is judged"
        )


def section(path: Path) -> Mapping[str, Any]:
    """The table `[tool.rooftest]` of a TOML file, empty if it has none.

    Raises UsageError if the file can't be read, or the table is none or holds an unknown key.
    """
    try:
        found: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: is no TOML: {error}") from None
    for key in ("tool", "rooftest"):
        found = found.get(key, {})
        if not isinstance(found, Mapping):
            raise UsageError(f"{path.name}: {key} must be a table, as in [tool.rooftest], not {found!r}")
    _one_of(f"{path.name}: [tool.rooftest]", "key", tuple(found), SECTIONS)
    return found


def read_rows(path: Path) -> dict[str, Row]:
    """All rows of a TOML file (`[tool.rooftest.kernels]`), none if it has no such table.

    Raises UsageError if the file can't be read or a row is wrong.
    """
    found = section(path).get("kernels", {})
    if not isinstance(found, Mapping):
        raise UsageError(f'{path.name}: kernels must be tables, as in [tool.rooftest.kernels."name"], not {found!r}')
    return {name: parse_row(name, table, path.name, str(path.parent)) for name, table in found.items()}


def earlier(row: Row, path: Path, revision: str) -> Row:
    """The row of that name, or of one that it was renamed from, in the same file of an earlier revision.

    Only this one is parsed: others may be of a harness that knew other keys. Raises UsageError if it can't be had.
    """
    if not path.is_file():
        raise UsageError(f"{revision} has no {path.name} where the row of {row.name} stands")
    found = section(path).get("kernels", {})
    name = next((name for name in (row.name, *row.renamed_from) if name in found), None)
    if name is None:
        raise UsageError(
            f'{path.name} of {revision} has no kernel "{row.name}"; if it had another name, say renamed_from = ["..."]'
        )
    return parse_row(name, found[name], f"{path.name} of {revision}", str(path.parent))


def peers(spec: Spec) -> dict[str, Row]:
    """The kernels that every run of an op brings along for comparison."""
    return {
        name: parse_row(name, {"op": spec.op, **table}, f"specs/{spec.op}.py") for name, table in spec.peers.items()
    }


def one_off(text: str, root: str) -> Row:
    """The row behind `--roof-kernel gemm=mylib.ops:matmul`.

    Raises UsageError if the text does not read so.
    """
    op, equals, call = text.partition("=")
    if not equals or ":" not in call:
        raise UsageError(f'--roof-kernel {text!r} must read OP=MODULE:FUNCTION, such as "gemm=mylib.ops:matmul"')
    place, _, function = call.rpartition(":")
    name = f"{Path(place).name.removesuffix('.py')}.{function}"
    table = {"op": op, "call": call, "devices": list(DEVICES)}
    return parse_row(name, table, f"--roof-kernel {text}", root)
