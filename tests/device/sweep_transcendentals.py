"""The errors of this GPU's transcendental functions over all fp32 numbers, into a file. Needs a GPU, for half a minute.

python tests/device/sweep_transcendentals.py results/transcendentals/h200.json
"""

import sys
from pathlib import Path

from rooftest import store
from rooftest.cuda import Cuda
from rooftest.measure import open_monitor
from rooftest.transcendentals import measure
from rooftest.units import measured


def main(path: str) -> None:
    device = Cuda()
    data = measure(device, open_monitor(device))
    store.write(Path(path), data)
    for name, row in data["functions"].items():
        if "failed" in row:
            print(f"{name:13} {row['failed']}")
            continue
        normal, small, special, inputs = (row[part] for part in ("normal", "subnormal", "special", "inputs_subnormal"))
        print(
            f"{name:13} {normal['relative_u']['value']:9.3f} u at {float.fromhex(normal['relative_u']['x']):.6g}"
            f"  {normal['ulp']['value']:8.3f} ulp  charged {row['charged_u']['value']:.3f} u"
            f"  subnormal results {small['as_zero']} of {small['count']} zero,"
            f" {small['smallest_numbers']['value']:.1f} of the smallest number"
            f"  special {special['wrong']} of {special['count']} wrong {special['x']}"
            f"  subnormal inputs {inputs['flushed']} of {inputs['count']} flushed  {' '.join(row['instructions'])}"
        )
    for name, unit in measured(data).items():
        print(f"{name}: {unit.error * 2**24:.3f} u, {unit.source}")
    print(f"{data['seconds']:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1])
