"""What the merge gate sees and how often it errs, from A/A pairs recorded on a GPU. Needs no GPU itself.

    python tests/device/gate_power.py PAIRS.json results/gate/h200-power.json [time|cycles|peer] [TRIALS]

PAIRS.json: {"series": {NAME: {"bound": "memory" or "compute", "pairs": [PAIR ...]}}, "identity": {...}}, a PAIR as in
rooftest/schema/spread.v1.json, 30 of each series or more (38 leave 30 for sigma). Writes every rate as JSON, a table in
Markdown beside it, and prints the table.
"""

import sys
from pathlib import Path

from rooftest import store
from rooftest.errors import UsageError
from rooftest.gate.power import TRIALS, markdown, power_of, text


def main(source, out, estimator="time", trials=TRIALS):
    try:
        data = power_of(store.load(Path(source)), estimator, int(trials))
        store.write(Path(out), data)
        store.put(Path(out).with_suffix(".md"), markdown(data))
    except UsageError as error:
        sys.exit(f"gate_power: {error}")
    print(text(data), end="")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
