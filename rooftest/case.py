"""One case: everything that must be known to run a kernel on the same data again, as one readable line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rooftest.errors import UsageError

_FORM = (
    "OP KERNEL DTYPE LAYOUT AXIS=SIZE... [PARAM=VALUE...] [with=INPUT,...] "
    "[stride=KIND or TENSOR:KIND,...] [config=NAME] fill=KIND seed=N"
)


@dataclass(frozen=True)
class Case:
    """`gemm acme.matmul bfloat16 nt M=129 N=1 K=65 fill=normal seed=7`.

    Upper-case keys are axes, lower-case ones parameters of the op; `given` are the optional inputs that are passed.
    `stride` is one kind for all tensors, or `a:padded,c0:stepped`: a kind for each that is named, the others dense.
    """

    op: str
    kernel: str
    dtype: str
    layout: str
    sizes: Mapping[str, int]
    params: Mapping[str, float] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    stride: str = "dense"
    config: str | None = None
    fill: str = "normal"
    seed: int = 0

    def __str__(self) -> str:
        words = [self.op, self.kernel, self.dtype, self.layout]
        words += [f"{k}={v}" for k, v in self.sizes.items()] + [f"{k}={_exact(v)}" for k, v in self.params.items()]
        words += [f"with={','.join(self.given)}"] if self.given else []
        words += [f"stride={self.stride}"] if self.stride != "dense" else []
        words += [f"config={self.config}"] if self.config else []
        return " ".join([*words, f"fill={self.fill}", f"seed={self.seed}"])

    @property
    def kinds(self) -> dict[str, str]:
        """The stride kinds of the tensors that `stride` names; empty where it is one kind for all."""
        return dict(word.split(":") for word in self.stride.split(",")) if ":" in self.stride else {}

    def kind(self, name: str) -> str:
        """The stride kind that a tensor is given."""
        return self.kinds.get(name, "dense") if ":" in self.stride else self.stride

    def command(self) -> str:
        """The command that reproduces exactly this case."""
        return f'pytest suites/ --roof-case="{self}"'


def strided(kinds: Mapping[str, str]) -> str:
    """`Case.stride` for the kind of each tensor, as short as can be."""
    if len(set(kinds.values())) == 1:
        return next(iter(kinds.values()))
    return ",".join(f"{name}:{kind}" for name, kind in kinds.items() if kind != "dense")


def _exact(value: float) -> str:
    """A number's shortest text that reads back as the same number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def parse(text: str) -> Case:
    """The case that `str(case)` names.

    Raises UsageError saying which word does not fit.
    """
    words = text.split()
    if len(words) < 5 or any("=" in w for w in words[:4]):
        raise UsageError(f"--roof-case {text!r} does not read as: {_FORM}")
    sizes: dict[str, int] = {}
    params: dict[str, float] = {}
    rest: dict[str, str] = {}
    for word in words[4:]:
        key, equals, value = word.partition("=")
        try:
            if not equals or not key:
                raise ValueError  # noqa: TRY301 - one message for every word that does not fit
            if key == "stride" and ":" in value and any(len(w.split(":")) != 2 for w in value.split(",")):
                raise ValueError  # noqa: TRY301
            if key in ("with", "stride", "config", "fill"):
                rest[key] = value
            elif key == "seed":
                rest[key] = str(int(value))
            elif key[0].isupper():
                sizes[key] = int(value)
            else:
                params[key] = float(value)
        except ValueError:
            raise UsageError(f"--roof-case: {word!r} does not read as KEY=VALUE; the form is: {_FORM}") from None
    given = tuple(rest["with"].split(",")) if rest.get("with") else ()
    return Case(
        words[0], words[1], words[2], words[3], sizes, params, given,
        rest.get("stride", "dense"), rest.get("config"), rest.get("fill", "normal"), int(rest.get("seed", "0")),
    )  # fmt: skip
