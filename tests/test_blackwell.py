"""What the kernels for Blackwell promise of their machine code, compiled without a GPU: nothing here has run them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rooftest_kernels.gemm import blackwell, blackwell_scaled

from rooftest import domain
from rooftest.compiled import build, reading
from rooftest.rows import read_rows

PROBE = Path(__file__).with_name("hopper_probe.py")
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
SHARED_BYTES = 227 * 1024  # what one CTA may have on sm_100
TENSOR_COLUMNS = 512  # of an SM's tensor memory
CONFIGS = ("128x256+terms", "128x128")  # what needs the most registers, and the other configuration
STARVED = "128x128+terms/48"  # 48 registers a thread


def probe(*asked):
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, PROBE, *asked], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lacks(found):
    """What the machine code has not, or has too much of."""
    needed = ("UTCHMMA", "LDTM", "UTMALDG", "UTMASTG", "USETMAXREG")
    missing = [opcode for opcode in needed if not found[opcode]]
    spills = [opcode for opcode in ("STL", "LDL") if found[opcode]]
    large = [name for name, most in (("shared_bytes", SHARED_BYTES), ("tensor_columns", TENSOR_COLUMNS))
             if found[name] > most]  # fmt: skip
    return missing + spills + large


@pytest.fixture(scope="module")
def read():
    return probe("100", "blackwell", "gemm_blackwell", *CONFIGS, STARVED)


@pytest.mark.parametrize("config", CONFIGS)
def test_products_go_to_tensor_memory_copies_are_bulk_and_nothing_spills(read, config):
    found, tile = read[config], blackwell.CONFIGS[config.removesuffix("+terms")]
    assert lacks(found) == []
    assert found["UTCHMMA"] == tile.block_k // 16  # the extent of K of one product
    assert found["LDTM"] == tile.block_n // blackwell.PART.value
    assert found["tensor_columns"] == 2 * tile.block_n


def test_the_reading_tells_hopper_and_a_kernel_without_registers(read):
    (hopper,) = probe("90", "step7_persistent", "gemm_persistent", "128x256").values()
    assert lacks(hopper) == ["UTCHMMA", "LDTM"]
    assert lacks(read[STARVED]) == ["STL", "LDL"]


def built(name):
    """The kernel of a row without an op, and what its machine code holds."""
    row = read_rows(PYPROJECT)[name]
    (example,) = row.spec.workloads
    (made,) = build.build(row, example, "own", "own", "sm_100")
    (facts,) = reading.read(made, "sm_100")
    return made, facts.instructions


@pytest.mark.parametrize(
    ("name", "product", "extent"),  # of K, in elements, that one product takes
    [("mxfp8", "UTCQMMA", 32), ("nvfp4", "UTCOMMA.4X", 64)],  # 4X: 16 elements share a scale
)
def test_products_of_scaled_elements_find_their_scales_in_tensor_memory(name, product, extent):
    made, found = built(f"blackwell_{name}")
    form = blackwell_scaled.FORMATS[name]
    assert found["tcgen05.mma"] == found[f"tcgen05.mma {product}"] == 128 * form.packed // extent
    assert found["tensor memory copy in"] == 2 * form.scale_blocks  # A's and B's
    assert found["load narrower"] == found["load 16 bytes"] == 0  # all comes by bulk copies, and no C0 is read
    # Two accumulators of 128 columns, and one column a scale of a row, A's and B's: so many as a power of two.
    assert made.metadata["tmem_size"] == TENSOR_COLUMNS
    assert made.metadata["shared"] <= SHARED_BYTES


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn])
def test_scales_are_packed_as_the_hardware_reads_them(dtype):
    scales = torch.randint(0, 127, (200, 9), dtype=torch.uint8)
    packed = blackwell_scaled.pack(scales.view(dtype))
    assert (packed.shape, packed.dtype) == ((2, 3, 2, 256), dtype)
    flat = packed.view(torch.uint8).reshape(2, 3, 512)
    at = torch.zeros(256, 12, dtype=torch.uint8)
    for row in range(256):
        for k in range(12):
            at[row, k] = flat[row // 128, k // 4, 16 * (row % 32) + 4 * (row % 128 // 32) + k % 4]
    assert torch.equal(at[:200, :9], scales)
    assert at.sum() == scales.sum()  # so padding is 0


@pytest.mark.parametrize("blocks", [1, 4])
def test_a_stage_s_scales_are_viewed_as_the_rows_that_were_packed(monkeypatch, blocks):
    monkeypatch.setattr(blackwell_scaled, "BLOCK", 128)  # tensors know no constexpr
    scales = torch.randint(0, 255, (128, 4 * blocks), dtype=torch.uint8)
    assert torch.equal(blackwell_scaled.as_scales.fn(blackwell_scaled.pack(scales), blocks), scales)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"a": torch.zeros(128, 64)}, "a is torch.float32: needed is one of .*mxfp8.*nvfp4"),
        ({"a": torch.zeros(128, 48, dtype=torch.float8_e4m3fn)}, "K = 48"),
        ({"a": torch.zeros(128, 8, dtype=torch.uint8)}, "K = 16"),
        ({"b": torch.zeros(128, 64, dtype=torch.bfloat16)}, "b is torch.bfloat16"),
        ({"a": torch.zeros(128, 64, dtype=torch.uint8)}, "b is torch.float8_e4m3fn.*needed is contiguous torch.uint8"),
        ({"b_scale": torch.zeros(128, 2, dtype=torch.uint8)}, "what pack returns"),
        ({"b_scale": torch.zeros(1, 1, 2, 256).to(torch.float8_e4m3fn)}, "what pack returns, torch.uint8"),
        ({"out": torch.zeros(128, 128)}, "out is torch.float32"),
    ],
)
def test_scaled_operands_of_another_form_are_refused(change, told):
    elements, scales = torch.zeros(128, 64, dtype=torch.float8_e4m3fn), torch.zeros(1, 1, 2, 256, dtype=torch.uint8)
    out = torch.zeros(128, 128, dtype=torch.bfloat16)
    given = {"a": elements, "b": elements, "a_scale": scales, "b_scale": scales, "out": out} | change
    with pytest.raises(ValueError, match=told):
        blackwell_scaled.matmul(**given)


def test_another_gpu_leaves_it_out_and_says_why(monkeypatch):
    row = read_rows(PYPROJECT)["blackwell"]
    assert domain.undecidable(row, "cpu") == "runs on cuda only, this is cpu"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    assert domain.undecidable(row, "cuda:0") == "made for sm_100, this is sm_90"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (10, 0))
    assert domain.undecidable(row, "cuda:0") is None


def test_a_transposed_output_is_refused():
    a = torch.zeros(16, 16, dtype=torch.float16)
    with pytest.raises(ValueError, match="writes rows"):
        blackwell.matmul(a, a, out=torch.zeros(16, 16, dtype=torch.float16).mT)
