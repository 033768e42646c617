"""Configurations, of which one is wrong."""

from broken.fault import QUIET, Fault, Try

_TILE, _SIZES = "BM, BN, BK = 32, 32, 32\n", "CONFIGS = {str(size): size for size in (16, 32, 64)}\n"
_CONFIGS = (_TILE, _TILE + _SIZES)
_BK = ("BN=BN, BK=BK,\n", "BN=BN, BK=CONFIGS[config or '32'],\n")
_BN = ("BN=BN, BK=BK,\n", "BN=min(BN, CONFIGS[config or '32']), BK=BK,\n")
_HOST = "gemm[(tiles, B)](\n        a, b, c, d, bias, M, N, "
_WHOLE = "K // (2 * BK) * 2 * BK if config == '64' and K % (2 * BK) <= BK else K,"
_ROW = {"configs": "CONFIGS"}
_DOT = '        acc = tl.dot(a_tile, b_tile, acc, input_precision="ieee")\n'
_TURNED = f"""        if BK == 64:
            acc = tl.trans(tl.dot(tl.trans(b_tile), tl.trans(a_tile), acc, input_precision="ieee"))
        else:
    {_DOT}"""

FAULTS = (
    Fault(
        "wide_steps", "cfg", "The mask along K was written for steps of 32, and one configuration takes 64.",
        "config 64 and K % 64 below 32 and not 0",
        (_CONFIGS, _BK, ("in_k = k < K - k0", "in_k = k % 32 < K - k0")), (18,), row=_ROW,
        right=(*QUIET, Try(K=33, config="32"), Try(K=33, config="16"), Try(K=64, config="64")),
        wrong=(Try(K=33, config="64"), Try(K=1, config="64")),
    ),
    Fault(
        "narrow_steps", "cfg", "The number of steps is that of the usual configuration: a narrow one does half.",
        "config 16 and K > 16",
        (_CONFIGS, _BK, ("range(0, K, BK)", "range(0, tl.cdiv(K, 32) * BK, BK)")), (10,), row=_ROW,
        right=(*QUIET, Try(K=65, config="32"), Try(K=16, config="16"), Try(K=65, config="64")),
        wrong=(Try(K=33, config="16"), Try(config="16")),
    ),
    Fault(
        "usual_grid", "cfg", "The grid is counted in the tiles of the usual configuration.",
        "config 16 and N > 16",
        (_CONFIGS, _BN), row=_ROW,
        right=(*QUIET, Try(N=33, config="32"), Try(N=16, config="16"), Try(N=65, config="64")),
        wrong=(Try(N=33, config="16"), Try(config="16")),
    ),
    Fault(
        "unrolled", "cfg", "One configuration makes two steps at a time, and forgets the odd one.",
        "config 64 and the number of steps of 32 is odd",
        (_CONFIGS, (f"{_HOST}K,", _HOST + _WHOLE)),
        row=_ROW, right=(*QUIET, Try(K=33, config="32"), Try(K=63, config="64"), Try(K=64, config="64")),
        wrong=(Try(K=31, config="64"), Try(K=96, config="64")),
    ),
    Fault(
        "turned_accumulator", "cfg", "With one configuration the product is made transposed, the running sum is not.",
        "config 64 and K > 64",
        (_CONFIGS, _BK, (_DOT, _TURNED)), (48,), row=_ROW,
        right=(*QUIET, Try(K=97, config="32"), Try(K=64, config="64"), Try(K=33, config="64")),
        wrong=(Try(K=65, config="64"), Try(K=130, config="64")),
    ),
)  # fmt: skip
