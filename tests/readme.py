"""What the README shows of a recorded run, made from the results file: python tests/readme.py RESULTS.json"""

import sys
from pathlib import Path

from rooftest import store, tables
from rooftest.devices import datasheet, match, physical_at
from rooftest.nvml import Identity

SIZES = (2048, 4096, 8192)
STEPS = {
    "step1_naive": "1 naive, one element a thread",
    "step2_shared": "2 coalesced, shared tile",
    "step3_register": "3 register tile, vector loads",
    "step4_dot": "4 tensor cores (`tl.dot`)",
    "step5_pipeline": "5 bulk copies, multi-stage",
    "step6_specialised": "6 warp-specialised",
    "step7_persistent": "7 persistent, L2 order",
    "step8_overlapped": "8 overlapped epilogue, tuned",
    "torch.matmul": "cuBLAS (`torch.matmul`)",
}


def ladder(path):
    """The GEMM ladder in bf16 as a Markdown table; each kernel was interleaved with cuBLAS, ratios are of one run."""
    data = store.read(path)
    identity = Identity(**data["machine_info"]["gpu"])
    device = match(identity.name)
    sheet = datasheet(device, identity).flop_per_s["bfloat16"]
    found = {(r["kernel"], r["what"]): r["extra_info"] for r in data["benchmarks"] if r["dtype"] == "bfloat16"}
    head = "| step | TFLOP/s at 4096³ | of datasheet | of physical, clock held | of cuBLAS, 2048³ | 4096³ | 8192³ |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for kernel, name in STEPS.items():
        told = found.get((kernel, "square-4096"))
        if told is None:
            continue
        rate = told["rates"]["flop_per_s"]
        held = physical_at(device, identity, told["clocks"]["sm_hz_mean"]).flop_per_s["bfloat16"]
        cells = [f"{rate / 1e12:.3g}", f"{rate / sheet:.1%}", f"{rate / held:.1%}"]
        for size in SIZES:
            ratio = (found.get((kernel, f"square-{size}")) or {}).get("ratios", {}).get(f"{kernel}/torch.matmul")
            cells.append(f"{1 / ratio['median']:.1%}" if ratio else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def printed(path):
    """The tables as pytest printed them at 100 columns."""
    data = store.read(path)
    return tables.render(tables.made(data["conformance"] + data["benchmarks"]), 100, colour=False)


if __name__ == "__main__":
    print(printed(Path(sys.argv[1])))
    print(ladder(Path(sys.argv[1])))
