"""No op: a kernel that no specification describes. Its row names a function that launches it, on tensors of its own.

Nothing here says what is right or how many bytes must move, so only its machine code is judged (docs/compiled.md).
"""

from rooftest.spec import Spec, Workload

SPEC = Spec(
    op="none",
    version=1,
    axes={},
    inputs={},
    outputs={},
    reference=None,
    flop=lambda _sizes: 0,
    laid_out=(),
    layouts=("own",),
    precisions=("own",),
    workloads=(Workload("example", {}, "own"),),
)
