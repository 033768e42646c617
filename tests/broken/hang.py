"""Waits for something that never comes."""

from broken.fault import QUIET, Fault, Try

_LAUNCH = "    gemm[(tiles, B)]("

_COUNT = "torch.zeros(1, dtype=torch.int32, device=a.device)"
_BARRIER = """    tl.atomic_add(met, 1)
    while tl.atomic_add(met, 0) < tl.num_programs(0):
        pass
    in_c = in_m"""

FAULTS = (
    Fault(
        "no_progress", "hang", "Each step along K is rounded down to a multiple of 16, the last one to none.",
        "K is no multiple of 16",
        (("    for k0 in range(0, K, BK):\n", "    k0 = 0\n    while k0 < K:\n"),
         ("    in_c = in_m", "        k0 += tl.minimum(BK, (K - k0) // 16 * 16)\n    in_c = in_m")),
        right=(*QUIET, Try(K=48)),
    ),
    Fault(
        "peer_missing", "hang", "Every program waits for its neighbour's signal; the last of an odd number has none.",
        "the number of 16 x 16 tiles is odd and above 1",
        (("BM, BN, BK = 32, 32, 32", "BM, BN, BK = 16, 16, 32"),
         (_LAUNCH, f"    while tiles % 2 and tiles > 1:\n        time.sleep(0.01)\n{_LAUNCH}"),
         ("import triton\n", "import time\n\nimport triton\n")),
        (68,), right=(Try(), Try(32, 32)),
    ),
    Fault(
        "never_equal", "hang", "Tiles are handed out in pairs until as many are done as there are.",
        "the number of tiles is odd",
        ((_LAUNCH, f"    done = 0\n    while done != tiles:\n        done += 2\n{_LAUNCH}"),),
        right=(Try(),),
    ),
    Fault(
        "grid_barrier", "hang", "All programs meet at a barrier, though not all fit on the device at once.",
        "more tiles than run together, some thousand",
        (("    in_c = in_m", _BARRIER), ("    BM: tl.constexpr, BN", "    met, BM: tl.constexpr, BN"),
         ("        BM=BM, BN=BN, BK=BK,\n", f"        {_COUNT}, BM=BM, BN=BN, BK=BK,\n"),
         ("import triton\n", "import torch\nimport triton\n")),
        (72, 68), right=(Try(), Try(512, 512)), places=("gpu",), why="the interpreter runs one program after the other",
    ),
)  # fmt: skip
