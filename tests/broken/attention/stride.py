"""Strides that are guessed instead of read."""

from broken.attention.call import QUIET, Broken, on

FAULTS = (
    Broken(
        "kv_dense", "stride", "K is taken to have no gaps.",
        "K is not dense",
        (("*ops.k.stride()", "ops.Sk * ops.G * ops.D, ops.G * ops.D, ops.D, 1"),), (26,),
        right=(*QUIET, on(B=2, H=2, G=2, D=24)), wrong=(on(layout="stepped"), on(H=2, G=2, layout="heads first")),
    ),
    Broken(
        "v_like_k", "stride", "V is taken to lie as K does.",
        "V lies otherwise, as where D and Dv differ",
        (("*ops.v.stride()", "*ops.k.stride()"),),
        right=(*QUIET, on(layout="stepped")), wrong=(on(D=16, Dv=8), on(D=8, Dv=16)),
    ),
    Broken(
        "batches_of_kv_dense", "stride", "The batch elements of V are taken to lie one behind the other.",
        "a batch of two and more, and V is not dense",
        (("*ops.v.stride()", "ops.Sk * ops.v.stride(1), *ops.v.stride()[1:]"),),
        (26,), right=(*QUIET, on(layout="stepped"), on(B=2, D=24)), wrong=(on(B=2, layout="stepped"),),
    ),
    Broken(
        "out_like_q", "stride", "The output is taken to lie as Q does.",
        "it lies otherwise, as where D and Dv differ",
        (("*ops.out.stride()", "*ops.q.stride()"),),
        right=(*QUIET, on(layout="stepped")), wrong=(on(17, D=16, Dv=8),),
    ),
    Broken(
        "heads_side_by_side", "stride", "The heads of a query are taken to lie side by side.",
        "two heads of Q and more, and a gap between them, or heads first",
        (("ops.q, *ops.q.stride()", "ops.q, *ops.q.stride()[:2], ops.D * ops.q.stride(3), ops.q.stride(3)"),),
        right=(*QUIET, on(H=2), on(layout="stepped")), wrong=(on(H=2, layout="heads first"), on(H=3, layout="stepped")),
    ),
    Broken(
        "lse_dense", "stride", "The log-sum-exp is taken to have no gaps.",
        "lse is asked for, and not dense",
        (("*ops.lse.stride()", "ops.H * ops.Sq, ops.Sq, 1"),), right=(*QUIET, on(B=2, H=3, D=24)),
    ),
    Broken(
        "slopes_step", "stride", "The slopes are taken to lie side by side.",
        "there are slopes, two and more, every other element of memory, or all one",
        (("(ops.slopes, ops.slopes.stride(0))", "(ops.slopes, 1)"),), right=(*QUIET, on(H=3, slopes=True)),
    ),
)  # fmt: skip
