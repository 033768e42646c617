"""From a case to tensors: where each lies in the arena, how it is strided, what fills it.

Whatever lies between and around the tensors is poison, so a kernel that reads it and lets it through shows itself, and
a kernel that writes there is seen by comparing the arena before and after.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rooftest.arena import Placement, distinct
from rooftest.case import Case
from rooftest.fills import FILLS, fill
from rooftest.formats import storage
from rooftest.spec import STRIDES, Spec, Tensor

if TYPE_CHECKING:
    import torch

ALIGN_BYTES = (
    256  # what a tensor's base is aligned to unless its stride kind says otherwise; torch's allocator gives 512
)
GUARD_BYTES = 16384  # before and after every tensor: more than one tile row past the end (128 elements of 4 bytes x 32)
TAIL_BYTES = 2**20  # behind the last tensor: a stray offset of a few tiles lands there and is seen
_LANE = 8  # elements; 16 bytes in a 16-bit format, the width a bulk tensor copy asks of a row pitch


@dataclass(frozen=True)
class Problem:
    """A case laid out: the placements of its inputs and outputs and the bytes of the arena that they span."""

    case: Case
    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]
    span_bytes: int
    start_bytes: int = 0

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Inputs and outputs, in the order of the specification."""
        return self.inputs + self.outputs

    def next(self) -> Problem:
        """The same problem once more, right behind this one in the arena."""

        def moved(placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
            return tuple(replace(p, offset_bytes=p.offset_bytes + self.span_bytes) for p in placements)

        return replace(
            self, inputs=moved(self.inputs), outputs=moved(self.outputs), start_bytes=self.start_bytes + self.span_bytes
        )


def strides(shape: tuple[int, ...], kind: str, *, transposed: bool, least: int = 0) -> tuple[int, ...]:
    """Strides in elements of a tensor of `shape` in layout n or t.

    dense: no gaps; padded: rows end in a gap and start at multiples of 8 elements; ragged: a gap of 3 elements, so that
    rows start anywhere; both leave such a gap after each matrix of a batch too; stepped: every other element; offset:
    dense, but one element off the aligned base; broadcast: dense, but stride 0 along the batch, or without one from
    row to row; transposed: dense, column after column. `least`: elements from row to row, at least.
    """
    transposed ^= kind == "transposed"
    rows_cols = shape[-2:] if len(shape) > 1 else (1, *shape)
    rows, cols = rows_cols[::-1] if transposed else rows_cols
    step = 2 if kind == "stepped" else 1
    width = max(cols, 1) * step
    pitch = {"padded": (width + _LANE - 1) // _LANE * _LANE + _LANE, "ragged": width + 3}.get(kind, width)
    pitch = max(pitch, least)
    last = (pitch, step)[:: -1 if transposed else 1]
    outer, size = [], max(rows, 1) * pitch + {"padded": _LANE, "ragged": 3}.get(kind, 0)
    for extent in reversed(shape[:-2]):
        outer.append(size)
        size *= max(extent, 1)
    found = (*reversed(outer), *last)[-len(shape) :]
    if kind == "broadcast":
        slow = len(shape) - 1 if transposed and len(shape) == 2 else 0
        found = tuple(0 if dim == slow else stride for dim, stride in enumerate(found))
    return found


def means(spec: Spec, name: str) -> tuple[str, ...]:
    """The stride kinds that say something of a tensor; under any other it is dense.

    What has one axis has no rows, where an output repeated two results would be in one place, a table that repeated
    would name one thing twice, what is derived from other inputs does not repeat where they don't, and of what a layout
    speaks its letter says how it is stored.
    """
    declared = spec.tensors[name]
    without = {"broadcast"} if name in (*spec.outputs, *spec.derived) or declared.values else set()
    without |= {"transposed"} if name in spec.laid_out else set()
    without |= {"padded", "ragged", "transposed"} if len(declared.axes) < 2 else set()
    return tuple(kind for kind in STRIDES if kind not in without)


def lay_out(spec: Spec, case: Case, *, pitch: int = 0) -> Problem:
    """Places every tensor of `case` in an arena, guarded on both sides; rows lie at least `pitch` elements apart."""
    letters = dict(zip(spec.laid_out, case.layout, strict=True))
    cursor = GUARD_BYTES

    def place(name: str, declared: Tensor) -> Placement:
        nonlocal cursor
        axes_shape, dtype = declared.shape(case.sizes), storage(declared.precision or case.dtype)
        kind = case.kind(name) if case.kind(name) in means(spec, name) else "dense"
        far = len(axes_shape) > 1 and (name in letters or name in spec.outputs)
        stride = strides(axes_shape, kind, transposed=letters.get(name) == "t", least=pitch if far else 0)
        start = cursor + (dtype.itemsize if kind == "offset" else 0)
        placed = Placement(name, str(dtype).removeprefix("torch."), axes_shape, stride, start)
        cursor = math.ceil((start + placed.extent_bytes + GUARD_BYTES) / ALIGN_BYTES) * ALIGN_BYTES
        return placed

    inputs, outputs = (
        tuple(place(name, t) for name, t in declared.items() if not t.optional or name in case.given)
        for declared in (spec.inputs, spec.outputs)
    )
    return Problem(case, inputs, outputs, cursor + TAIL_BYTES)


def draw(spec: Spec, case: Case, device: str) -> dict[str, torch.Tensor]:
    """The input tensors of `case`, dense, drawn on `device` from the case's seed.

    The first laid-out tensor has the case's fill, and so have the others, unless it names one for them: then the other
    factors have that, and what is added is normal. A tensor that the contract forbids to read under this case's
    parameters is all NaN; where it forbids to read a part of one, that part is, unless the tensor repeats. What the
    specification derives is made from the tensors drawn, once all of them are there.
    """
    import torch

    generator = torch.Generator(device).manual_seed(case.seed)
    depth = case.sizes[spec.contraction] if spec.contraction else 1
    letters = dict(zip(spec.laid_out, case.layout, strict=True))
    values: dict[str, torch.Tensor] = {}
    for name, declared in spec.inputs.items():
        if name in spec.derived or (declared.optional and name not in case.given):
            continue
        shape = declared.shape(case.sizes)
        if declared.values:
            values[name] = declared.values(values, case.sizes, generator)
            continue
        kind, beside = case.fill, FILLS[case.fill].beside
        if beside and name != spec.laid_out[0]:
            kind = beside if name in spec.laid_out else "normal"
        values[name] = fill(kind, shape, declared.precision or case.dtype, generator, depth)
        if case.kind(name) == "broadcast":
            repeated = strides(shape, "broadcast", transposed=letters.get(name) == "t")
            values[name] = distinct(values[name], repeated).expand(shape).contiguous()
        if declared.unread_if and case.params.get(declared.unread_if[0], None) == declared.unread_if[1]:
            values[name] = torch.full_like(values[name], math.nan)
    for name, value in values.items():
        unread = spec.inputs[name].unread
        if unread and case.kind(name) != "broadcast":
            value.masked_fill_(unread(values), math.nan)
    if spec.derive:
        for name, made in spec.derive(values, case.params).items():
            values[name] = made.to(storage(spec.inputs[name].precision or case.dtype))
    return values
