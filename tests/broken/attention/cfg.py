"""Configurations, of which one is wrong."""

from broken.attention.call import QUIET, Broken, on

_GRID = "attention_tiled[(ops.B * ops.H * triton.cdiv(ops.Sq, BM),)]("
_BLOCKS = "blocks = tl.cdiv(Sq, BM)"

FAULTS = (
    Broken(
        "usual_queries", "cfg", "The blocks are counted in the rows of the usual configuration.",
        "config 16x16 and Sq > 16, which is float32's own too",
        ((_GRID, _GRID.replace("BM)", "max(BM, 64))")), (_BLOCKS, "blocks = tl.cdiv(Sq, 64)")),
        right=(*QUIET[:1], on(65, config="64x64"), on(64, config="64x32"), on(16, 40, config="16x16")),
        wrong=(on(17, config="16x16"), on(33, config="16x16")),
    ),
    Broken(
        "usual_keys", "cfg", "The steps along the keys are those of the usual configuration.",
        "config 16x16, which is float32's own too, and Sk > 16",
        (("range(0, Sk, BN)", "range(0, tl.cdiv(Sk, 32) * BN, BN)"),),
        (18,), right=(*QUIET[:1], on(16, 100, config="64x32"), on(16, 16, config="16x16"), on(16, 64, config="64x64")),
        wrong=(on(16, 17, config="16x16"), on(16, 48, config="16x16")),
    ),
    Broken(
        "wide_keys", "cfg", "With tiles of 64 keys the upper half is masked as the lower: it was written for 32.",
        "config 64x64, Sk is no multiple of 64, and no causal mask hides what is behind it",
        ((" & (n < Sk)\n", " & ((n < Sk) | (n.shape[1] == 64) & (n % 64 >= 32) & (n % 32 + n // 64 * 64 < Sk))\n"),),
        right=(*QUIET, on(16, 17, config="64x32"), on(16, 64, config="64x64"), on(17, 17, causal=1.0, config="64x64")),
        wrong=(on(16, 17, config="64x64"), on(16, 70, config="64x64")),
    ),
)  # fmt: skip
