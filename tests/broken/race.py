"""Steps that rely on an order that nobody enforces."""

import torch

from broken.fault import Fault, Try

_HALVES = (Try(K=32), Try(K=17, beta=0.5, c0="finite"))
_RING = {"dtypes": ["float16", "bfloat16"], "strides": ["dense", "padded"], "vector": 8, "arch": [90]}
_BF16 = (torch.bfloat16,)

FAULTS = (
    Fault(
        "race", "race", "Parts of K are added to one sum by a load and a store where an atomic add is due.",
        "K > 32, so that two parts have something to add",
        (
            ("tl.store(w, acc, mask=in_c)",
             "in_c = in_c & (part * K_part < K)\n    tl.store(w, tl.load(w, mask=in_c, other=0.0) + acc, mask=in_c)"),
            ("part * wp + ", ""), ("torch.empty((PARTS,", "torch.zeros((1,"),
        ),
        (4, 68), base="split", right=_HALVES, wrong=(Try(256, 256, 512), Try(512, 512, 512)),  # tiles enough to meet
        places=("gpu",), why="the interpreter runs one program after the other: no race; see lost_update",
    ),
    Fault(
        "lost_update", "race", "As race, in the order that loses: both halves read the sum before either writes.",
        "K > 32, so that both halves have something to add",
        base="lost_update", right=_HALVES, wrong=(Try(), Try(K=33)),
    ),
    Fault(
        "ring_unawaited", "race", "A product starts before the copies of its operands have arrived.",
        "two steps along K and more",
        (("        mbarrier.wait(arrived.index(stage), (k // STAGES) & 1)",
          "        if k == 0:\n            mbarrier.wait(arrived.index(stage), (k // STAGES) & 1)"),),
        (74, 6), base="step5", row=_RING, right=(Try(K=64, dtypes=_BF16),), wrong=(Try(512, 512, 4096, dtypes=_BF16),),
        places=("gpu",), why="the interpreter has no copies that are on their way",
    ),
    Fault(
        "scratch_shared", "race", "Calls of one shape share the memory for their parts.",
        "two calls at once, on two streams",
        (("torch.empty((PARTS, *c.shape), dtype=torch.float32, device=c.device)",
          "SCRATCH.setdefault(c.shape, torch.empty((PARTS, *c.shape), dtype=torch.float32, device=c.device))"),
         ("BM, BN, BK, PARTS = 32, 32, 32, 4\n", "BM, BN, BK, PARTS = 32, 32, 32, 4\nSCRATCH = {}\n")),
        base="split", row={"claims": ["stream-safe"]}, right=_HALVES,
        places=("gpu",), why="there are no streams without a GPU",
    ),
    Fault(
        "own_stream", "race", "The kernel runs on a stream of its own, which waits for nobody.",
        "the caller's stream is busy when the kernel starts",
        (("    gemm[(tiles, B)](", "    with torch.cuda.stream(SIDE):\n      gemm[(tiles, B)]("),
         ("import triton\n", "import torch\nimport triton\n"),
         ("BM, BN, BK = 32, 32, 32\n", "BM, BN, BK = 32, 32, 32\nSIDE = torch.cuda.Stream()\n")),
        (6,), row={"claims": ["stream-safe"]}, right=(),
        places=("gpu",), why="there are no streams without a GPU",
    ),
)  # fmt: skip
