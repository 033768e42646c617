"""The score: how many of the known cheats are caught. `python tests/cheats/score.py`; on a GPU it tries all of them."""

import re
import sys
from collections import Counter
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import test_cheats  # noqa: E402 - from the folder that was just added


def main() -> int:
    """Run every cheat, print what was said of it, and the score; 1 if one went through."""
    tried = [(cheat, "cpu") for cheat in test_cheats.CHEATS]
    tried += [(cheat, "cuda:0") for cheat in test_cheats.GPU if torch.cuda.is_available()]
    through = []
    for cheat, device in tried:
        said, _ = test_cheats.caught(cheat.way, cheat.call, device)
        if not said or not re.search(cheat.reason, said):
            through.append(cheat.call)
        first = (said or "WENT THROUGH").splitlines()
        print(f"{cheat.call:22}{cheat.way:9}{' '.join(line.strip() for line in first[:2])[:140]}", flush=True)
    kinds = Counter(said.split(":")[0] for _, said in test_cheats.LINE.findall((HERE / "README.md").read_text()))
    print(f"cheats caught: {len(tried) - len(through)} of {len(tried)}", *through)
    print(f"the list, {sum(kinds.values())} lines:", ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()))
    if len(tried) < len(test_cheats.CHEATS) + len(test_cheats.GPU):
        print(f"{len(test_cheats.GPU)} more need a GPU")
    return bool(through)


if __name__ == "__main__":
    sys.exit(main())
