import json
import os
import subprocess
import sys

import pytest

from rooftest import devices, store
from rooftest.measure import Plan, measure
from rooftest.record import Measurement, VirtualClock, machine_info
from rooftest.roofline import Ceiling, Work
from rooftest.simulated import Knobs, Simulated

WORK = Work(2 * 4096**3, 4 * 4096**2, 2 * 4096**2, "bfloat16")
ROOF = Ceiling("attainable", {"bfloat16": 9e14}, 4.5e12, 6e7, "made up")


def made(share=None, plan=None, **knobs):
    device = Simulated(Knobs(**knobs))
    result = measure({"kernel": device.kernel("k", 1.8e-4)}, plan or Plan(warmup_s=0.01), WORK, device, device)
    top = devices.physical(devices.device("h200"), device.identity())
    return Measurement(
        "gemm", "acme.mm", "square-4096", "bfloat16", "nt", 1, {"M": 4096}, WORK, result, top, ROOF, share
    )


def test_series_and_verdict():
    got = made(share=0.8)
    assert got.series == "gemm/acme.mm/square-4096/bfloat16/nt/burst/cold/nograph/v1"
    assert got.judged().verdict == "PASS"
    assert made(share=0.9).judged().verdict == "FAIL"
    assert made(hw_thermal_per_s=1.0).judged().verdict == "INVALID"


def test_an_entry_fits_the_schema(tmp_path):
    got = made()
    run = store.Run(
        tmp_path / "a.json", machine_info(got.result["identity"], {"torch": "2"}), {"attainable": ROOF.as_dict()}
    )
    names = {"id": "gemm/acme.mm/square-4096/bfloat16-nt", "op": "gemm", "kernel": "acme.mm", "dtype": "bfloat16",
             "layout": "nt", "verdict": "PASS"}  # fmt: skip
    run.add("benchmarks", names | got.entry())
    data = store.read(run.finish())
    assert data["benchmarks"][0]["stats"]["data"] == got.samples_s
    assert data["benchmarks"][0]["extra_info"]["bound"]["limiter"] == "compute"


def test_an_error_is_recorded_with_nulls(tmp_path):
    device = Simulated()
    result = measure({"kernel": lambda: None}, Plan(warmup_s=0.01), WORK, device, device)
    got = Measurement("gemm", "k", "w", "bfloat16", "nt", 1, {}, WORK, result, None, ROOF)
    info = got.extra_info()
    assert (info["status"], info["verdict"], info["timing"]) == ("error", "INVALID", None)
    assert got.entry()["stats"] is None


def test_the_clock_loses_no_bit():
    clock = VirtualClock()
    samples = [0.1, 1e-7 / 3, 12345.678, 2e-5]
    clock.load(samples)
    seen = []
    for _ in samples:
        start = clock()
        clock.tick()
        seen.append(clock() - start)
    assert seen == samples


TEST = """
import pytest
from rooftest import record

@pytest.mark.benchmark(timer=record.CLOCK)
@pytest.mark.parametrize("samples", [{samples!r}, [2e-6] * 7], ids=["a", "b"])
def test_it(benchmark, samples):
    record.replay(benchmark, samples, {{"bytes": float("nan"), "timer": "cupti"}})
"""


@pytest.mark.parametrize("extra", [[], ["--benchmark-disable"]])
def test_pytest_benchmark_records_exactly_our_samples(tmp_path, extra):
    samples = [1e-5 / 3 * (1 + i / 7) for i in range(30)]
    (tmp_path / "test_it.py").write_text(TEST.format(samples=samples))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-json=out.json", *extra]
    # pytest-benchmark switches itself off in a worker of pytest-xdist, and takes its child for one.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if extra:
        return
    text = (tmp_path / "out.json").read_text()
    assert "NaN" not in text
    first, second = json.loads(text)["benchmarks"]
    assert first["stats"]["data"] == samples
    assert first["stats"]["median"] == pytest.approx(sorted(samples)[15], rel=0.05)
    assert first["extra_info"] == {"bytes": None, "timer": "cupti"}
    assert second["stats"]["data"] == [2e-6] * 7
