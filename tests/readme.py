"""What the README and docs/ show of recorded runs, made from the results files.

python tests/readme.py RESULTS.json      # the README's tables of a run, printed
python tests/readme.py --write           # every table of docs/ that a marker names, made anew in its page
"""

import json
import re
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


UNMEASURED = "(not measured yet)"
TABLE = re.compile(r"(<!-- (truth|moved|mistakes): (\S+) -->\n)(.*?)(?=\n\n|\n?\Z)", re.DOTALL)


def table(head, rows):
    """A Markdown table; numbers to the right."""
    lines = [f"| {' | '.join(head)} |", "|" + "|".join(["---"] + ["---:"] * (len(head) - 1)) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def us(seconds):
    """Microseconds, four digits."""
    return "" if seconds is None else f"{seconds * 1e6:.2f}" if seconds < 1e-4 else f"{seconds * 1e6:.4g}"


def truth(path):
    """Our times beside ncu's, which is less its offset; the last two columns are what the target is about."""
    data = json.loads(path.read_text()) if path.is_file() else {}
    if "rows" not in data:
        return UNMEASURED
    rows = []
    for name, row in data["rows"].items():
        for l2, told in row["l2"].items():
            got = told["ncu"]["none"]
            ratio = f"{got['apart_s'] * 1e6:+.2f} us" if got["by"] == "cupti" else f"{got[got['by'] + '_ratio']:.3f}"
            times = [us(told.get(key)) for key in ("time_s", "cupti_s", "graph_s", "events_s")]
            judged = f"{ratio} {'CUPTI' if got['by'] == 'cupti' else got['by']}"
            met = "met" if got["met"] else "MISSED"
            rows.append([f"{name}, {row['kind']}", l2, *times, us(got["ncu_less_offset_s"]), judged, met])
    head = ["kernel", "L2", "ours, us", "CUPTI", "graphs", "events", "ncu less offset", "ours against", "target"]
    return table(head, rows)


def moved(path):
    """Bytes of a call by GPM beside ncu's DRAM counters."""
    data = json.loads(path.read_text()) if path.is_file() else {}
    if "bytes" not in data:
        return UNMEASURED
    rows = []
    for name, got in data["bytes"].items():
        mine = got["reason"] if got["gpm"] is None else f"{got['gpm'] / 1e6:.1f}"
        ratio = "" if got["ratio"] is None else f"{got['ratio']:.3f}"
        ncu = [f"{got[key] / 1e6:.1f}" for key in ("ncu_read", "ncu_written")]
        rows.append([name, *ncu, mine, ratio, "met" if got["met"] else "MISSED"])
    return table(["kernel", "ncu read, MB", "written, MB", "ours, MB", "ours over ncu", "target"], rows)


def mistakes(path):
    """What each mistake costs, a column for each kernel; the first row is the time by the protocol."""
    data = json.loads(path.read_text()) if path.is_file() else {}
    if "kernels" not in data:
        return UNMEASURED
    kernels = data["kernels"]
    ways = next(iter(kernels.values()))
    rows = []
    for way, first in ways.items():
        base = way == "protocol"
        cells = [f"{us(k[way]['time_s'])} us" if base else f"{k[way]['change']:+.1%}" for k in kernels.values()]
        rows.append([first["said"], *cells])
    return table(["what is wrong", *kernels], rows)


MAKERS = {"truth": truth, "moved": moved, "mistakes": mistakes}


def rewritten(text, root):
    """A page with each table as its results file has it now."""
    return TABLE.sub(lambda found: found[1] + MAKERS[found[2]](root / found[3]), text)


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    root = Path(__file__).parents[1]
    for page in (root / "docs").glob("*.md"):
        page.write_text(rewritten(page.read_text(), root))
elif __name__ == "__main__":
    print(printed(Path(sys.argv[1])))
    print(ladder(Path(sys.argv[1])))
