"""One pytest run: its options, its rows, the device of each row, and the benches that are open."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import pytest

from rooftest import case as cases
from rooftest import devices, host, options, rows, silence
from rooftest.errors import UsageError
from rooftest.finding import Finding
from rooftest.rows import Row
from rooftest.spec import Spec, Workload, load

if TYPE_CHECKING:
    from rooftest.bench import Bench
    from rooftest.case import Case
    from rooftest.compiled.build import Request
    from rooftest.gate.spread import Store
    from rooftest.gate.trees import Against, Trees
    from rooftest.roof import Roof

LAST_SEED = 2**63 - 1  # torch's generators take 64 bits, signed or not


class Session:
    """What our tests share; each thing is found out when it is first asked for."""

    simulated: dict[str, float] | None = None
    """Set by tests of the harness alone: fields of rooftest.simulated.Knobs. The gate then times on a simulated GPU."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.options = options.read(config)
        self.root = config.rootpath
        self._open: dict[str, Bench] = {}
        self._broken: dict[str, str] = {}
        self._homes: dict[str, Path] = {}
        self._spreads: dict[str, Store] = {}
        self.to_compile: list[Request] = []
        """What the run's tests of machine code have built; empty once it is."""

    # --- rows ---------------------------------------------------------------------------------------------------

    @cached_property
    def one_offs(self) -> dict[str, Row]:
        """The rows behind --roof-kernel."""
        made = (rows.one_off(text, str(self.config.invocation_params.dir)) for text in self.options.kernels)
        return {row.name: row for row in made}

    @cached_property
    def files(self) -> list[Path]:
        """The files that rows are read from: pyproject.toml at pytest's root, and --roof-rows; each once.

        Raises UsageError if the user stands beside rows that are not read, because pytest's root folder is elsewhere.
        """
        project = self.root / "pyproject.toml"
        found = {path.resolve(): path for path in ([project] if project.is_file() else []) + list(self.options.rows)}
        here = Path(self.config.invocation_params.dir) / "pyproject.toml"
        own = project.is_file() and rows.section(project).get("kernels")
        if not own and here.resolve() not in found and here.is_file() and rows.section(here).get("kernels"):
            raise UsageError(
                f"rows of {here} are not read because pytest's root folder is {self.root}; write --roof-results=FILE "
                f"with = (a file as a word of its own moves the root), or add --roof-rows={quote(str(here))}"
            )
        return list(found.values())

    @cached_property
    def rows(self) -> dict[str, Row]:
        """Every row of the run: pyproject.toml at pytest's root, --roof-rows, --roof-kernel, and their peers."""
        found: dict[str, Row] = {}
        home = self._homes = {}
        for path in self.files:
            for name, row in rows.read_rows(path).items():
                if name in found:
                    raise UsageError(f'kernel "{name}" has a row in {home[name].name} and another in {path.name}')
                found[name], home[name] = row, path
                for key in row.efficiency:
                    _known_device(key, f'{path.name}: kernel "{name}": efficiency')
        for op in {row.op for row in (*found.values(), *self.one_offs.values())}:
            self._add_peers(found, op)
        return found | self.one_offs

    def _add_peers(self, found: dict[str, Row], op: str) -> None:
        for name, row in rows.peers(load(op)).items():
            if name in found and found[name] != row:
                raise UsageError(f'kernel "{name}": {op} brings a peer of that name; give the row another')
            found[name] = row

    def of_op(self, op: str) -> list[Row]:
        """The rows of an op, those of the user first, its peers last."""
        self._add_peers(self.rows, op)
        return sorted((row for row in self.rows.values() if row.op == op), key=lambda row: row.peer)

    def find(self, name: str, where: str) -> Row:
        """The row called `name`, now or before it was renamed.

        Raises UsageError naming the rows that are near.
        """
        for row in self.rows.values():
            if name == row.name or name in row.renamed_from:
                return row
        near = difflib.get_close_matches(name, self.rows, 3) or sorted(self.rows)[:8]
        others = f"; there is {', '.join(near)}" if near else f"; {self.root / 'pyproject.toml'} has no rows"
        raise UsageError(f'{where}: no kernel "{name}"{others}')

    def wanted(self, row: Row) -> bool:
        """Whether --roof-kernel and --roof-case leave this row in the run."""
        if self.cases:
            return any(c.kernel == row.name for c in self.cases)
        if self.one_offs:
            return row.name in self.one_offs or (row.peer and row.op in {r.op for r in self.one_offs.values()})
        return True

    def peer(self, row: Row, workload: Workload, dtype: str) -> Row | None:
        """The kernel that this one is timed beside: the op's first peer on a GPU that takes the workload."""
        on_gpu = (peer for peer in rows.peers(row.spec).values() if "cuda" in peer.devices)
        takes = (peer for peer in on_gpu if peer.admits(dtype, workload.layout, workload.sizes))
        first = next(takes, None)
        return None if first is None or first.name == row.name else first

    def validate(self) -> None:
        """Read everything that the command line names, so that a mistake ends the run before it starts."""
        _ = self.files
        if self.options.narrowed or self.options.rows:
            _ = self.rows, self.cases
        glob = self.options.workloads
        if glob is not None and not any(next(self.chosen(row), None) for row in self.rows.values()):
            known = dict.fromkeys(workload.name for row in self.rows.values() for workload in row.spec.workloads)
            raise UsageError(f"--roof-workloads {glob!r} matches none that a row takes; there are {', '.join(known)}")

    # --- cases and workloads ------------------------------------------------------------------------------------

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """The cases of --roof-case.

        Raises UsageError if one names what does not exist.
        """
        return tuple(self._case(text) for text in self.options.cases)

    def _case(self, text: str) -> Case:
        from dataclasses import replace

        from rooftest.fills import kinds as fills

        found = cases.parse(text)
        spec, where = load(found.op), f"--roof-case {text!r}"
        self._add_peers(self.rows, found.op)
        row = self.find(found.kernel, where)
        for kind, word, known in (
            ("dtype", found.dtype, row.dtypes),
            ("layout", found.layout, row.layouts),
            *(("tensor", name, tuple(spec.tensors)) for name in found.kinds),
            *(("stride", kind, row.strides) for kind in found.kinds.values() or (found.stride,)),
            ("fill", found.fill, fills(found.dtype) if found.dtype in row.dtypes else (found.fill,)),
            *(("axis", axis, tuple(spec.axes)) for axis in found.sizes),
            *(("parameter", name, tuple(spec.params)) for name in found.params),
            *(("optional tensor", name, spec.optional) for name in found.given),
        ):
            if word not in known:
                raise UsageError(f"{where}: {kind} {word!r} is none of {', '.join(known)}")
        missing = [axis for axis in spec.axes if axis not in spec.optional_axes and axis not in found.sizes]
        if missing:
            raise UsageError(f"{where}: needs a size for {', '.join(missing)}, such as {missing[0]}=128")
        for axis, size in found.sizes.items():
            low, high = spec.axes[axis].low, spec.axes[axis].high
            if not low <= size <= high:
                raise UsageError(f"{where}: {axis}={size} is not in {low} to {high}")
        for name, value in found.params.items():
            if not math.isfinite(value):
                raise UsageError(f"{where}: parameter {name}={value} is no finite number")
        if not 0 <= found.seed <= LAST_SEED:
            raise UsageError(f"{where}: seed {found.seed} is not in 0 to {LAST_SEED}")
        if found.config and row.configs is None:
            raise UsageError(f"{where}: config {found.config!r}: the row of {row.name} has no configs")
        return replace(found, kernel=row.name)

    def workloads(self, row: Row) -> Iterator[tuple[Workload, str]]:
        """Every workload and dtype of the op that lies in the row's domain."""
        spec = row.spec
        for workload in spec.workloads:
            if not any(fnmatchcase(workload.name, glob) for glob in row.workloads) or set(workload.sizes) & set(
                row.without
            ):
                continue
            for dtype in spec.precisions:
                if row.admits(dtype, workload.layout, workload.sizes):
                    yield workload, dtype

    def timed(self, row: Row) -> Iterator[tuple[Workload, str]]:
        """Those to time; none of an op without a reference: a time says nothing of what may be wrong."""
        return iter(()) if row.spec.reference is None else self.chosen(row)

    def chosen(self, row: Row) -> Iterator[tuple[Workload, str]]:
        """The smoke workloads, or what --roof-workloads says.

        In one dtype each, bfloat16 where the kernel takes it, unless the glob names dtypes ("square-4096/float16-nn").
        """
        glob = self.options.workloads
        usual = "bfloat16" if "bfloat16" in row.dtypes else row.dtypes[0]
        for workload, dtype in self.workloads(row):
            if glob is None:
                chosen = workload.smoke and dtype == usual
            elif "/" in glob:
                chosen = fnmatchcase(f"{workload.name}/{dtype}-{workload.layout}", glob)
            else:
                chosen = fnmatchcase(workload.name, glob) and dtype == usual
            if chosen:
                yield workload, dtype

    def ids(self) -> Iterator[str]:
        """Every id that the rows of this run can give, whether collected or not."""
        from rooftest import large
        from rooftest.compiled import trial as compiled
        from rooftest.rungs import RUNGS
        from rooftest.sanitize import SANITIZE

        for row in self.rows.values():
            yield from large.ids(row)
            yield from compiled.ids(self, row)
            for dtype, layout in kinds(row):
                yield from (identify(row, rung, dtype, layout) for rung in (*RUNGS, SANITIZE))
            for workload, dtype in self.workloads(row):
                yield identify(row, workload.name, dtype, workload.layout)

    @cached_property
    def silence(self) -> silence.Silence:
        """The known failures, as they apply on this machine."""
        entries = [entry for path in self.files for entry in silence.read(path)]
        return silence.Silence(entries, self.arch if any(e.arch for e in entries) else None)

    def look(self) -> None:
        """Find out what would end the run: a GPU that is broken, a table of known failures that is wrong.

        Raises UsageError.
        """
        _ = self.gpu, self.silence

    def compile_ahead(self) -> None:
        """Build what the tests of machine code will ask for, on all cores, at the first of them.

        Not beside a GPU that something is timed on, nor in one of xdist's workers: there are as many as somebody wants.
        """
        from rooftest.compiled import build

        asked, self.to_compile = self.to_compile, []
        if self.gpu is None and not hasattr(self.config, "workerinput"):
            build.ahead(asked)

    # --- the merge gate -----------------------------------------------------------------------------------------

    @cached_property
    def against(self) -> Against | None:
        """What --roof-against names."""
        from rooftest.gate.trees import Against

        asked = self.options
        if asked.against is None:
            return None
        made = Against(asked.against, asked.build, Path(self.config.invocation_params.dir))
        self.config.add_cleanup(made.close)  # after Ctrl-C too
        return made

    def spread(self, gpu: str) -> Store:
        """What is known of the spread on a GPU ("h200-GPU-...").

        Raises UsageError if a file of it can't be read.
        """
        from rooftest.gate.spread import Store

        if gpu not in self._spreads:
            self._spreads[gpu] = Store(self.root / "results" / "spread", gpu)
        return self._spreads[gpu]

    def home(self, row: Row) -> Path:
        """The file that a row stands in; of a one-off, the folder that it was named in."""
        return self._homes.get(row.name) or Path(row.root or self.config.invocation_params.dir)

    def trees(self, row: Row) -> Trees:
        """The two trees of a row's kernel.

        Raises UsageError as rooftest.gate.trees.Against.trees does.
        """
        assert self.against is not None
        return self.against.trees(row, self.home(row))

    # --- devices and benches ------------------------------------------------------------------------------------

    @cached_property
    def gpu(self) -> str | None:
        """The GPU of this run, or None.

        Raises UsageError if one is there and broken, or was asked for and is not there.
        """
        asked = self.options.device
        if asked is not None and not asked.startswith("cuda"):
            return None
        found = host.gpu()
        if asked is not None and found is None:
            raise UsageError(f"--roof-device {asked}: there is no CUDA device")
        return asked or found

    @cached_property
    def arch(self) -> int | None:
        """The GPU's generation, such as 90; None without one."""
        if self.gpu is None:
            return None
        import torch

        major, minor = torch.cuda.get_device_capability(self.gpu)
        return 10 * major + minor

    @cached_property
    def roof(self) -> Roof:
        """The GPU and its ceilings, as far as they are known without measuring."""
        from rooftest import roof

        return roof.look()

    @cached_property
    def measured_roof(self) -> Roof:
        """The same, and from then on `roof` too, with attainable ceilings: measured now if no earlier run did."""
        from dataclasses import replace

        from rooftest import roof

        try:
            self.roof = roof.measured(self.roof)
        except UsageError as error:  # no verdict on a declared share then, and the reason says so
            self.roof = replace(self.roof, notes=(*self.roof.notes, f"attainable ceilings: {error}"))
        return self.roof

    def device(self, row: Row) -> str:
        """Where this row runs."""
        if self.options.device is not None:
            return self.options.device
        if self.gpu is not None:
            return self.gpu
        return "interpreter" if "interpreter" in row.devices else "cpu"

    def bench(self, row: Row) -> Bench:
        """The row's bench, opened at first use.

        Raises Finding, in one line and at once from the second time on, if the kernel can't be had.
        """
        if row.name in self._broken:
            raise Finding(self._broken[row.name])
        if row.name not in self._open:
            from rooftest.bench import Bench
            from rooftest.process import KernelError

            self._open[row.name] = Bench(row, self.device(row))
            try:
                _ = self._open[row.name].signature
            except (KernelError, UsageError) as error:
                self._broken[row.name] = f"{row.op}: {row.name} ({row.call}) can't be used: {error}"
            if row.name in self._broken:  # raised here, where no frame holds the bench
                self._open.pop(row.name).close()
                raise Finding(self._broken[row.name])
        return self._open[row.name]

    def close(self, keep: str | None = None) -> None:
        """End the processes of all rows but `keep`."""
        for name in [n for n in self._open if n != keep]:
            self._open.pop(name).close()

    def words(self) -> list[str]:
        """The start of a command that finds this run's kernels again."""
        words = ["pytest"]
        words += ["--pyargs"] if self.config.option.pyargs else []
        if self.config.args_source is pytest.Config.ArgsSource.ARGS:
            words += dict.fromkeys(_short(Path(arg.split("::")[0])) for arg in self.config.args)
        words += [f"--roof-rows={quote(_short(path))}" for path in self.options.rows]
        words += [f"--roof-kernel={quote(text)}" for text in self.options.kernels]
        words += [f"--roof-device={self.options.device}"] if self.options.device else []
        return words

    def command(self, case: Case) -> str:
        """The command that runs exactly this case."""
        return " ".join([*self.words(), f'--roof-case="{case}"'])


def _known_device(key: str, where: str) -> None:
    try:
        devices.device(key)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def identify(row: Row, what: str, dtype: str, layout: str) -> str:
    """Our own id: `gemm/acme.matmul/bound/bfloat16-nt`."""
    return f"{row.op}/{row.name}/{what}/{dtype}-{layout}"


def kinds(row: Row) -> list[tuple[str, str]]:
    """The dtypes and layouts that a row is judged in, in the order of the specification; none without a reference."""
    spec: Spec = row.spec
    if spec.reference is None:
        return []
    return [(d, l) for d in spec.precisions if d in row.dtypes for l in spec.layouts if l in row.layouts]


_KEY = pytest.StashKey[Session]()


def of(config: pytest.Config) -> Session:
    """The session of this run, made at first use."""
    if _KEY not in config.stash:
        config.stash[_KEY] = Session(config)
    return config.stash[_KEY]


def opened(config: pytest.Config) -> Session | None:
    """The session if one of our tests made it, else None."""
    return config.stash.get(_KEY, None)
