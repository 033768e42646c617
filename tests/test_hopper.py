"""What the steps for Hopper promise of their machine code, compiled without a GPU; and which tile step 8 takes."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rooftest_kernels.gemm import descriptors, skinny, step6_specialised, step7_persistent, step8_overlapped

PROBE = Path(__file__).with_name("hopper_probe.py")
SHARED_BYTES = 227 * 1024  # what one CTA may have on sm_90
SPECIALISED = [
    ("step6_specialised", "gemm_specialised", ["128x256"]),
    ("step7_persistent", "gemm_persistent", ["128x256"]),
    ("step8_overlapped", "gemm_overlapped", ["128x256", "128x64", "64x16"]),
]


def probe(name, kernel, configs):
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, PROBE, "90", name, kernel, *configs],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("name", "kernel", "configs"), SPECIALISED)
def test_specialised_warps_move_registers_and_spill_none(name, kernel, configs):
    for found in probe(name, kernel, configs).values():
        assert found["USETMAXREG"] > 0
        assert found["HGMMA"] > 0
        assert found["UTMALDG"] > 0
        assert found["UTMASTG"] > 0
        assert found["STL"] == found["LDL"] == 0
        assert found["shared_bytes"] <= SHARED_BYTES


def test_the_reading_tells_a_step_without_specialised_warps():
    largest = list(importlib.import_module("rooftest_kernels.gemm.step5_pipeline").CONFIGS)[-1]
    (found,) = probe("step5_pipeline", "gemm_pipeline", [largest]).values()
    assert found["HGMMA"] > 0
    assert found["USETMAXREG"] == 0


@pytest.mark.parametrize(
    ("batches", "M", "N", "tile"),
    [
        (1, 4096, 4096, "128x256"),
        (8, 1024, 1024, "128x256"),
        (1, 256, 6144, "128x128"),
        (1, 1024, 1024, "128x64"),
        (1, 64, 4096, "64x64"),
        (1, 32, 4096, "64x32"),
        (1, 4096, 16, "64x16"),
    ],
)
def test_the_tile_fits_the_problem(batches, M, N, tile):
    assert step8_overlapped.pick(batches, M, N, sms=132) == step8_overlapped.CONFIGS[tile]


@pytest.mark.parametrize(("N", "config"), [(1, "4x2048"), (4096, "8x1024"), (6144, "8x512"), (128256, "4x2048")])
def test_the_rows_of_a_program_fill_the_gpu(N, config):
    assert skinny.pick(N, sms=132) == skinny.CONFIGS[config]


@pytest.mark.parametrize(
    ("shape", "strides", "reason"),
    [
        ((2, 16, 24), (384, 24, 1), None),
        ((2, 16, 24), (384, 1, 16), None),
        ((1, 1, 24), (5, 3, 1), None),  # nothing is stepped along a dimension of size 1
        ((2, 16, 20), (320, 20, 1), "20 elements"),
        ((2, 16, 24), (0, 24, 1), "stride of 0"),
        ((2, 16, 24), (960, 60, 2), "no contiguous dimension"),
    ],
)
def test_a_descriptor_takes_what_the_hardware_takes(shape, strides, reason):
    tensor = torch.empty(2048, dtype=torch.float16).as_strided(shape, strides)
    found = descriptors.obstacle(tensor)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("module", [step6_specialised, step7_persistent])
def test_a_transposed_output_is_refused(module):
    a = torch.zeros(16, 16, dtype=torch.float16)
    with pytest.raises(ValueError, match="writes rows"):
        module.matmul(a, a, out=torch.zeros(16, 16, dtype=torch.float16).mT)


def test_two_rows_are_not_a_vector():
    a = torch.zeros(2, 16, dtype=torch.float16)
    with pytest.raises(ValueError, match="one row"):
        skinny.matmul(a, torch.zeros(16, 16, dtype=torch.float16).mT, out=torch.zeros(2, 16, dtype=torch.float16))
