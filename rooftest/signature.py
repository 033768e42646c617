"""Does a kernel's function take what its op passes: found out once, from the signature, before the first call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooftest.rows import Row


def mismatch(row: Row, parameters: Sequence[str], required: Sequence[str], *, takes_any: bool) -> str | None:
    """What keeps the op from calling the function, in one line; None if nothing does.

    `required`: the parameters without a default; `takes_any`: it has a `**kwargs`.
    """
    spec = row.spec
    named = lambda n: row.args.get(n, n)  # noqa: E731 - the op's name to the function's
    always = [n for n, t in spec.inputs.items() if not t.optional]
    optional = [n for n in (*spec.inputs, *spec.params) if n not in always and n not in row.without]
    passed = {named(n) for n in (*always, *optional, *spec.outputs)} | {"precision"}
    passed |= {"config"} if row.configs else set()
    never_passed = [p for p in required if p not in passed]
    missing = [] if takes_any else [n for n in always if named(n) not in parameters]
    no_parameter = [] if takes_any else [p for p in row.args.values() if p not in parameters]
    if not (never_passed or missing or no_parameter):
        return None
    # Outputs are named only for a parameter that must be given: the function may as well return them.
    given = [*always, *(n for n in spec.outputs if named(n) in parameters or n in row.args)]
    said = (
        f"its parameters are {', '.join([*parameters, *(['**kwargs'] if takes_any else [])]) or 'none'}; "
        f"the op passes {', '.join(map(named, given))}"
    )
    free = [p for p in parameters if p not in passed]
    names = dict(zip(missing, free, strict=False))
    left = [p for p in never_passed if p not in names.values()]
    names |= dict(zip([n for n in spec.outputs if named(n) not in parameters], left, strict=False))
    left = [p for p in left if p not in names.values()]
    names = {n: p for n, p in row.args.items() if p in parameters} | names
    pairs = ", ".join(f'{n} = "{p}"' for n, p in names.items())
    wanted = [f"say args = {{ {pairs} }}"] if names else []
    wanted += [f"give {', '.join(left)} a default"] if left else []
    if not names and no_parameter:
        wanted.append("say args without " + ", ".join(no_parameter))
    return f"{said}: {' and '.join(wanted)}" if wanted else said
