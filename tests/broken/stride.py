"""Strides that are guessed instead of read."""

from broken.fault import QUIET, Fault, Try

_BEFORE = "    tiles = triton.cdiv(M, BM)"


def _guess(name, tensor, guess):
    """The strides of `tensor` come from an expression."""
    old = "*(d.stride() if d is not None else (0, 0, 0))" if tensor == "d" else f"*{tensor}.stride()"
    return ((_BEFORE, f"    {name} = {guess}\n{_BEFORE}"), (f"{old},", f"*{name},"))


FAULTS = (
    Fault(
        "swapped_strides", "stride", "The pitch of a transposed B is taken from the wrong one of its two dimensions.",
        "B is stored transposed and its pitch is not N (K != N, or rows with a gap)",
        _guess("sb", "b", "(b.stride(0), 1, N) if b.stride(1) == 1 < b.stride(2) else b.stride()"),
        right=(*QUIET, Try(K=48, layout="nt"), Try(layout="tn")),
        wrong=(Try(layout="nt"), Try(K=48, layout="nt", gap=8)),
    ),
    Fault(
        "batch_dense", "stride", "The matrices of A are taken to have no gaps.",
        "a batch of two and more, and A's rows have gaps",
        _guess("sa", "a", "(M * K, *a.stride()[1:])"), (26,),
        right=(*QUIET, Try(gap=8), Try(B=3)), wrong=(Try(B=3, gap=8), Try(B=2, apart=8)),
    ),
    Fault(
        "batch_behind_batch", "stride", "The matrices of A are taken to lie one behind the other, row gaps and all.",
        "a batch of two and more whose matrices of A lie apart",
        _guess("sa", "a", "(max(M * a.stride(1), K * a.stride(2)), *a.stride()[1:])"), (26,),
        right=(*QUIET, Try(gap=8), Try(B=3), Try(B=3, gap=8)), wrong=(Try(B=3, gap=8, apart=8), Try(B=2, apart=8)),
    ),
    Fault(
        "pitch_rounded", "stride", "The rows of A are taken to start at multiples of 8, as its maker pads them.",
        "A is stored by rows that are not K rounded up to 8 apart",
        _guess("sa", "a", "a.stride() if a.stride(2) != 1 else (a.stride(0), triton.cdiv(K, 8) * 8, 1)"), (45,),
        right=(*QUIET, Try(layout="tn", gap=3)), wrong=(Try(K=63), Try(gap=8)),
    ),
    Fault(
        "zero_is_unset", "stride", "A stride of 0 in A is taken for one that was not given.",
        "A repeats a row, or a matrix in a batch",
        _guess("sa", "a", "[s or d for s, d in zip(a.stride(), (M * K, K, 1), strict=True)]"), (59,),
        right=(*QUIET, Try(B=3, gap=8)), wrong=(Try(B=3, spread=True), Try(spread=True)),
    ),
    Fault(
        "one_matrix_for_all", "stride", "A batch of B is taken for one B that all share, and the other way round.",
        "a batch of two and more whose B repeats",
        _guess("sb", "b", "(b.stride(0) or K * N, *b.stride()[1:])"), (59,),
        right=(*QUIET, Try(B=3, gap=8), Try(spread=True)), wrong=(Try(B=3, spread=True),),
    ),
    Fault(
        "unit_step", "stride", "Whichever dimension of B is the nearer one is taken to be contiguous.",
        "B has no contiguous dimension",
        _guess("sb", "b", "(b.stride(0), *((b.stride(1), 1) if b.stride(1) > b.stride(2) else (1, b.stride(2))))"),
        (67,), right=(*QUIET, Try(layout="nt", gap=3)), wrong=(Try(step=2), Try(step=2, layout="nt")),
    ),
    Fault(
        "c0_like_c", "stride", "C0 is taken to have the strides of C.",
        "C0 and C are laid out differently, and beta is not 0",
        _guess("sd", "d", "c.stride()"),
        right=(*QUIET, Try(gap=8, beta=0.5, c0="finite")),
        wrong=(Try(gap=8, beta=0.5, c0="finite", tight=False),),
    ),
    Fault(
        "c0_dense", "stride", "C0 is taken to have no gaps.",
        "C0 has gaps, and beta is not 0",
        _guess("sd", "d", "(M * N, N, 1)"),
        right=(*QUIET, Try(gap=8)), wrong=(Try(gap=8, beta=0.5, c0="finite"),),
    ),
    Fault(
        "bias_step", "stride", "The bias is taken to be contiguous.",
        "the bias is not: a column of a matrix, or one number for all",
        (("bias.stride(0) if bias is not None else 0", "1"),),
        right=(*QUIET, Try(gap=8)), wrong=(Try(step=2, tight=False),),
    ),
    Fault(
        "gaps_of_a", "stride", "Where the rows of A have no gaps, those of B are taken to have none.",
        "A is stored by rows without gaps, and B by rows with gaps",
        _guess("sb", "b", "(b.stride(0), N, 1) if a.stride()[1:] == (K, 1) and b.stride(2) == 1 else b.stride()"),
        right=(*QUIET, Try(gap=8), Try(gap=3, B=3), Try(gap=8, only="a"), Try(step=2)),
        wrong=(Try(gap=8, only="b"), Try(gap=3, only="b", B=2)),
    ),
    Fault(
        "c_like_a", "stride", "Where the rows of A have no gaps, those of C are taken to have none.",
        "A is stored by rows without gaps, and C by rows with gaps",
        _guess("sc", "c", "(c.stride(0), N, 1) if a.stride()[1:] == (K, 1) and c.stride(2) == 1 else c.stride()"),
        right=(*QUIET, Try(gap=8), Try(gap=3, B=3), Try(gap=8, only="b")),
        wrong=(Try(gap=8, only="c"), Try(gap=3, only="c", B=2)),
    ),
    Fault(
        "c_by_rows", "stride", "Whichever stride of C is the larger is taken for that of its rows.",
        "C is stored column after column",
        _guess("sc", "c", "(c.stride(0), max(c.stride()[1:]), min(c.stride()[1:]))"),
        right=(*QUIET, Try(gap=8), Try(step=2), Try(N=1), Try(M=1), Try(columns="c0", beta=0.5, c0="finite")),
        wrong=(Try(columns="c"), Try(5, 7, columns="c", B=2)),
    ),
    Fault(
        "c0_by_rows", "stride", "Whichever stride of C0 is the larger is taken for that of its rows.",
        "C0 is stored column after column, and beta is not 0",
        _guess("sd", "d", "(d.stride(0), max(d.stride()[1:]), min(d.stride()[1:])) if d is not None else (0, 0, 0)"),
        right=(*QUIET, Try(gap=8), Try(columns="c"), Try(columns="c0", c0="finite")),
        wrong=(Try(columns="c0", beta=0.5, c0="finite"),),
    ),
)  # fmt: skip
