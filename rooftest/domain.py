"""What part of the contract a kernel takes, and whether it can be judged here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from rooftest.rows import Row
from rooftest.spec import STRIDES, Spec

if TYPE_CHECKING:
    from rooftest.process import Signature


def takes(row: Row, spec: Spec, signature: Signature) -> tuple[str, ...]:
    """The optional axes, inputs and parameters of the op that this kernel takes.

    A function that has no such parameter states so by its signature; `without` in the row says it of the rest.
    """
    named = [n for n in (*spec.optional, *spec.params) if row.args.get(n, n) in signature.parameters]
    return tuple(n for n in (*spec.optional_axes, *named) if n not in row.without)


def share(row: Row, signature: Signature) -> float:
    """Share of the contract, 0 to 1, that the row's domain covers.

    The product, over the independent choices of a case, of the share of each that the row takes: dtypes, layouts,
    stride kinds; one in m of the sizes of an axis that must be a multiple of m; half for every optional part that is
    not taken.
    """
    spec = row.spec
    parts = [
        len(row.dtypes) / len(spec.precisions),
        len(row.layouts) / len(spec.layouts),
        len(row.strides) / len(STRIDES),
        sum(1 / math.prod(row.multiples(layout).values()) for layout in row.layouts) / len(row.layouts),
    ]
    optional = (*spec.optional_axes, *spec.optional, *spec.params)
    missing = len(optional) - len(takes(row, spec, signature))
    return math.prod(parts) / 2**missing


def undecidable(row: Row, device: str) -> str | None:
    """Why this row can't be judged on `device` ("cuda:0", "cpu", "interpreter"); None if it can.

    What only the kernel's process can tell stands in its `Signature.undecidable`.
    """
    kind = device.split(":", maxsplit=1)[0]
    if kind not in row.devices:
        return f"runs on {_words(row.devices)} only, this is {kind}"
    if kind == "cuda" and row.arch:
        import torch

        major, minor = torch.cuda.get_device_capability(device)
        if 10 * major + minor not in row.arch:
            return f"made for sm_{_words(row.arch)}, this is sm_{10 * major + minor}"
    return absent(row)


def absent(row: Row) -> str | None:
    """What must be installed before this kernel can be imported, and how; None if all that it requires is there."""
    for package, command in row.requires.items():
        try:
            version(package)
        except PackageNotFoundError:
            return f"requires {package}, which is not installed here: {command}"
    return None


def _words(items: Sequence[object]) -> str:
    return ", ".join(map(str, items))
