"""The words in which a specification is written: axes, tensors, parameters, workloads.

A specification is data plus one reference function. Everything else (which sizes to draw, how tensors are laid out, how
many bytes must move, what a kernel's signature may contain) is derived from it, so an op is declared once.
"""

from __future__ import annotations

import functools
import importlib
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from rooftest.errors import UsageError

FLOATS = ("float32", "tf32", "float16", "bfloat16")
STRIDES = ("dense", "padded", "ragged", "stepped", "offset", "broadcast", "transposed")  # see rooftest.problem


@dataclass(frozen=True)
class Axis:
    """A dimension and the sizes that the contract admits, both ends included.

    `few`: it counts problems beside each other (heads, sequences), so that sizes are drawn up to this only. `short`: as
    many on every device, of an axis that multiplies the size of another (pages, each of many keys).
    """

    low: int
    high: int
    few: int = 0
    short: int = 0


@dataclass(frozen=True)
class Tensor:
    """A tensor of the contract: its axes in order; an axis in brackets is there only when the case has that axis.

    "G*R" is one dimension, of as many as both axes together. `precision`: the format that it has in every case (None:
    that of the case). An optional output is asked for as an optional input is given, and is a parameter of the kernel.

    `values(drawn, sizes, generator)` gives an input of int32, such as a table, which no fill could: `drawn` are the
    inputs declared before it. It never repeats (stride 0). `unread(drawn)`, of all inputs, says where one of floats
    must not be read (a mask that broadcasts to its shape): there it is NaN.
    """

    axes: tuple[str, ...]
    optional: bool = False
    unread_if: tuple[str, float] | None = None  # (param, value): with that value the contract forbids reading it
    precision: str | None = None
    values: Callable[[Mapping[str, Any], Mapping[str, int], Any], Any] | None = None
    unread: Callable[[Mapping[str, Any]], Any] | None = None

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape under `sizes`; optional axes that the case does not have are left out."""
        here = [a.strip("[]") for a in self.axes if not (a.startswith("[") and a.strip("[]") not in sizes)]
        return tuple(math.prod(sizes[factor] for factor in a.split("*")) for a in here)


def tensor(axes: str, **fields: Any) -> Tensor:
    """`tensor("[B] M K")`: axes by name, the last one contiguous in layout n; `fields` are those of Tensor."""
    return Tensor(tuple(axes.split()), **fields)


@dataclass(frozen=True)
class Workload:
    """A named case with concrete sizes, taken from a real model; `smoke` ones are timed by default."""

    name: str
    sizes: Mapping[str, int]
    layout: str
    smoke: bool = False
    params: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Large:
    """A case with a tensor, or an offset in one, past 2^31 elements; `rooftest.large` runs it where a GPU has room.

    `pitch`: elements from row to row, at least, of the tensors that a layout speaks of and of outputs; such a case is
    for rows that take padded strides.
    """

    name: str
    sizes: Mapping[str, int]
    layout: str
    given: tuple[str, ...] = ()
    params: Mapping[str, float] = field(default_factory=dict)
    pitch: int = 0


@dataclass(frozen=True)
class Law:
    """A metamorphic law that holds bit for bit, for a deterministic kernel, because its algebra is exact.

    `change` makes the second call's inputs from the first's (in place is fine: they are copies); `wrong` says where the
    second output breaks the law, given the first. It says nothing where `unless` (a parameter and a value) holds.
    """

    name: str
    about: str
    change: Callable[[dict[str, Any]], dict[str, Any]]
    wrong: Callable[[Any, Any], Any]
    unless: tuple[str, float] | None = None


@dataclass(frozen=True)
class Spec:
    """The contract of an op.

    `reference(values, params, contract)` maps input names to error-carrying values to outputs before their last
    rounding; None: there is nothing to judge by but machine code. `laid_out` names the tensors that the letters of a
    layout speak of, in order; `params` maps a scalar to the values that are drawn for it, its default first, and `free`
    those that may be any number to the largest binary exponent, either sign, that is drawn beside these values;
    `contraction` is the axis of which a product's sum is made, `summed` other axes that results are sums over, such as
    attention's keys: either may be 0 or long where the rest is short. `laws` are the metamorphic laws. The inputs named
    in `derived` are not drawn but made from the others, such as a forward pass's results for the backward pass:
    `derive(inputs, params)` returns them by name in float64, and each is rounded to its format.
    """

    op: str
    version: int
    axes: Mapping[str, Axis]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    reference: Callable[..., dict[str, Any]] | None
    flop: Callable[[SimpleNamespace], int]
    workloads: tuple[Workload, ...]
    laid_out: tuple[str, ...]
    layouts: tuple[str, ...] = ("n",)
    optional_axes: tuple[str, ...] = ()
    params: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    free: Mapping[str, int] = field(default_factory=dict)
    contraction: str | None = None
    summed: tuple[str, ...] = ()
    independent: str | None = None  # an axis along which the op does the same to each index, such as the rows of A
    unfit: tuple[str, ...] = ()  # fills of which the contract says nothing
    tokens: tuple[str, ...] = ()  # axes whose sizes multiply to the number of tokens that a call is about
    separate: tuple[str, ...] = ()  # axes of the outputs of which any indices can be judged by themselves
    large: tuple[Large, ...] = ()
    precisions: tuple[str, ...] = FLOATS
    laws: tuple[Law, ...] = ()
    derived: tuple[str, ...] = ()
    derive: Callable[..., dict[str, Any]] | None = None
    peers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Inputs and outputs by name."""
        return {**self.inputs, **self.outputs}

    @property
    def optional(self) -> tuple[str, ...]:
        """The tensors that a case may have or not: `Case.given` lists those that it has."""
        return tuple(n for n, t in self.tensors.items() if t.optional)

    def only(self, values: Mapping[str, Any], index: Any, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Of tensors by name, the part with these indices (a tensor of integers) of the independent axis."""
        out = {}
        for name, value in values.items():
            axes = self.axes_of(name, sizes)
            place = axes.index(self.independent) if self.independent in axes else None
            out[name] = value if place is None else value.index_select(place, index)
        return out

    def axes_of(self, name: str, sizes: Mapping[str, int]) -> list[str]:
        """The axes of a tensor, in order, that a case with these sizes has."""
        declared = self.tensors[name].axes
        return [a.strip("[]") for a in declared if not a.startswith("[") or a.strip("[]") in sizes]

    def tokens_of(self, sizes: Mapping[str, int]) -> int | None:
        """How many tokens one call is about; None where the op has none."""
        return math.prod(sizes[a] for a in self.tokens if a in sizes) if self.tokens else None

    def flop_of(self, sizes: Mapping[str, int], params: Mapping[str, float] | None = None) -> int:
        """Floating-point operations of one call, a multiply-add counted as two; params that are not given, by default.

        `flop` sees axes and params as attributes.
        """
        defaults = {n: values[0] for n, values in self.params.items()}
        given = {**dict.fromkeys(self.optional_axes, 1), **defaults, **sizes, **(params or {})}
        return self.flop(SimpleNamespace(**given))

    def least_bytes(self, sizes: Mapping[str, int], precision: str, given: tuple[str, ...] = ()) -> tuple[int, int]:
        """Fewest bytes read and written: each tensor that takes part, once. `given`: the optional tensors present."""
        from rooftest.formats import storage  # torch, which the plugin does not import before it is needed

        def count(tensors: Mapping[str, Tensor]) -> int:
            part = (t for name, t in tensors.items() if not t.optional or name in given)
            return sum(math.prod(t.shape(sizes)) * storage(t.precision or precision).itemsize for t in part)

        return count(self.inputs), count(self.outputs)


@functools.cache  # a row asks for its own thousands of times, and listing the folder takes 0.1 ms
def load(op: str) -> Spec:
    """The specification of `op`.

    Raises UsageError if there is none, naming those that exist.
    """
    import rooftest.specs as package

    known = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)
    if op not in known:
        raise UsageError(f"no op {op!r}; specifications exist for: {', '.join(known)}")
    spec: Spec = importlib.import_module(f"rooftest.specs.{op}").SPEC
    return spec
