"""A kernel's function inside its process: found, described, bound to tensors, called; what it returns is checked."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from rooftest import states

# What gives memory with undefined contents. torch.Tensor(2, 3) does too, but no function mode sees it.
_ALLOCATORS = frozenset(
    {
        torch.empty,
        torch.empty_like,
        torch.empty_permuted,
        torch.empty_strided,
        torch.Tensor.new_empty,
        torch.Tensor.new_empty_strided,
    }
)


class Fault(Exception):
    """Something that the kernel did wrong, or that was asked of it wrongly; the grader raises it as KernelError.

    `dead`: the process is not fit for another call.
    """

    def __init__(self, kind: str, cause: str, *, dead: bool = False) -> None:
        super().__init__(kind, cause)
        self.kind, self.cause, self.dead = kind, cause, dead


class Poison(TorchFunctionMode):
    """Fills what torch.empty and its like return with one byte, so that an element that nobody wrote shows itself."""

    def __init__(self, byte: int) -> None:
        super().__init__()
        self.byte = byte

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`; what it runs itself does not come here."""
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATORS and result.device.type in ("cpu", "cuda"):
            result.untyped_storage().fill_(self.byte)
        return result


@contextmanager
def judged(poison: int | None) -> Iterator[None]:
    """Around a call that is judged, not timed: poison in what it allocates; the process must be left as it was.

    Raises Fault of kind "changed global state".
    """
    if poison is None:
        yield
        return
    before = states.read()
    with Poison(poison):
        yield
    changed = states.changes(before, states.read())
    if changed:
        raise Fault("changed global state", "; ".join(changed), dead=True)


def find(call: str, root: str) -> Any:
    """What "module:name" or "path.py:name" names, the path relative to `root`.

    Raises Fault of kind "import" if the module has no such name, and whatever importing it raises.
    """
    place, _, name = call.rpartition(":")
    module = _from_file(Path(root, place)) if place.endswith(".py") else importlib.import_module(place)
    try:
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        near = difflib.get_close_matches(name, dir(module), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise Fault("import", f"{place} has no {name!r}{hint}") from None
    return found


def _from_file(path: Path) -> ModuleType:
    # A private name: two rows may both have an ops.py, and neither may shadow a module that it imports itself.
    name = "_rooftest_" + "_".join(path.with_suffix("").parts).strip("/_").replace(".", "_")
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise Fault("import", f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@dataclass
class Call:
    """The function with its arguments. `inputs`: every tensor that it gets but outputs; `outputs`: where results go."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    inputs: list[torch.Tensor]
    outputs: dict[str, torch.Tensor]
    returned: tuple[str, ...]
    """The outputs that have no parameter, in the order in which the function returns them."""
    poison: int | None = None
    foreign: set[int] = field(default_factory=set)
    """Addresses of memory that is not the kernel's to return."""
    earlier: list[torch.Tensor] | None = None
    """What the call before returned, as a caller would still hold it; None where nobody looks."""

    def launch(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Calls the function; what it returned, each beside the output that it belongs into.

        Raises Fault of kind "bad result" if what it returned is not what the op asks for.
        """
        with judged(self.poison):
            result = self.function(*self.args, **self.kwargs)
        if not self.returned:
            return []
        results = result if isinstance(result, (tuple, list)) else (result,)
        if len(results) != len(self.returned):
            raise Fault("bad result", f"returned {len(results)} values, the op has {len(self.returned)}")
        pairs = [(self._checked(n, r), self.outputs[n]) for n, r in zip(self.returned, results, strict=True)]
        if self.earlier is not None:
            self.earlier[:] = [result for result, _ in pairs]
        return pairs

    def run(self) -> None:
        """Calls the function and puts what it returned into the outputs, on the current stream."""
        put(self.launch())

    def _checked(self, name: str, result: Any) -> torch.Tensor:
        expected = self.outputs[name]
        # A subclass could do its work when it is read, so nothing but a plain tensor counts.
        if type(result) is not torch.Tensor:
            raise Fault("bad result", f"returned a {type(result).__name__} for {name}, not a tensor")
        for word in ("shape", "dtype", "device", "layout"):
            got, wanted = getattr(result, word), getattr(expected, word)
            if got != wanted:
                got, wanted = (tuple(x) if word == "shape" else x for x in (got, wanted))
                raise Fault("bad result", f"returned {name} with {word} {got}, the op asks for {wanted}")
        if result.numel() and result.untyped_storage().data_ptr() in self.foreign:
            raise Fault("bad result", f"returned {name} in the memory of one of its inputs")
        held = {t.untyped_storage().data_ptr() for t in self.earlier or ()}
        if result.numel() and result.untyped_storage().data_ptr() in held:
            raise Fault("bad result", f"returned {name} in the memory of an earlier result, which its caller may hold")
        return result.detach()


def put(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies results to where they belong."""
    for result, output in pairs:
        output.copy_(result)


class Kernel:
    """A row's function. `names`: the op's tensor and parameter names to the function's, where they differ."""

    def __init__(
        self,
        row: Mapping[str, Any],
        names: Mapping[str, str],
        outputs: Sequence[str],
        laid_out: Sequence[str],
    ) -> None:
        self.function = find(row["call"], row["root"])
        self.prepare = find(row["prepare"], row["root"]) if row["prepare"] else None
        self.configs = self._configs(row) if row["configs"] else ()
        self.names, self.outputs, self.prepared = names, tuple(outputs), laid_out[-1] if laid_out else ""
        kinds = inspect.Parameter
        every = _signature(self.function, row["call"])
        self.takes_any = any(p.kind is kinds.VAR_KEYWORD for p in every)
        parameters = [p for p in every if p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)]
        self.parameters = tuple(p.name for p in parameters)
        self.required = tuple(p.name for p in parameters if p.default is p.empty)
        self.positional_only = tuple(p.name for p in parameters if p.kind is kinds.POSITIONAL_ONLY)
        self.returned = tuple(n for n in self.outputs if names.get(n, n) not in self.parameters)

    def describe(self) -> dict[str, Any]:
        """The fields of rooftest.process.Signature, and whether it has a `**kwargs`."""
        return {
            "parameters": self.parameters,
            "required": self.required,
            "configs": self.configs,
            "returns": bool(self.returned),
            "takes_any": self.takes_any,
        }

    def bind(
        self,
        tensors: Mapping[str, torch.Tensor],
        scalars: Mapping[str, Any],
        poison: int | None = None,
        *,
        earlier: list[torch.Tensor] | None = None,
    ) -> Call:
        """A call on `tensors` (inputs and outputs) and `scalars`, all by the op's names.

        `earlier`: what the call before returned; the call refuses a result in that memory, and then holds its own.
        The row's `prepare` is called here: `prepare(b)` takes the last laid-out input and returns what stands for it.
        """
        given = {n: t for n, t in tensors.items() if n not in self.outputs}
        foreign = {t.untyped_storage().data_ptr() for t in given.values()}
        if self.prepare is not None and self.prepared in given:
            with judged(poison):
                given[self.prepared] = self.prepare(given[self.prepared])
        inputs = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        foreign |= {t.untyped_storage().data_ptr() for t in inputs}
        outputs = {n: tensors[n] for n in self.outputs if n in tensors}
        returned = tuple(n for n in self.returned if n in outputs)
        passed = {n: t for n, t in outputs.items() if n not in returned}
        kwargs = {self.names.get(n, n): v for n, v in {**given, **passed, **scalars}.items()}
        args = [kwargs.pop(p) for p in self.positional_only if p in kwargs]
        return Call(self.function, args, kwargs, inputs, outputs, returned, poison, foreign, earlier)

    @staticmethod
    def _configs(row: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of the configurations: the row's `configs` is "module:NAME", or a name in the module of `call`."""
        place = row["configs"] if ":" in row["configs"] else f"{row['call'].rpartition(':')[0]}:{row['configs']}"
        return tuple(str(name) for name in find(place, row["root"]))


def _signature(function: Any, call: str) -> list[inspect.Parameter]:
    if type(function).__module__.startswith("triton."):
        raise Fault("import", f"{call} is a kernel itself; name the Python function that launches it")
    if not callable(function):
        raise Fault("import", f"{call} is a {type(function).__name__}, not a function")
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        raise Fault("import", f"{call} has no signature that Python can read; wrap it in a function") from None
