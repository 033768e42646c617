import pytest

from rooftest import devices
from rooftest.errors import UsageError
from rooftest.nvml import Identity
from rooftest.simulated import Simulated

NAMES = {
    "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H200": "h200", "NVIDIA B200": "b200", "NVIDIA GeForce RTX 4090": "rtx4090", "NVIDIA L40S": "l40s",
}  # fmt: skip


def test_every_device_is_found_by_its_name_and_no_other():
    assert sorted(NAMES.values()) == sorted(devices.catalogue())
    for name, key in NAMES.items():
        assert [d.key for d in devices.catalogue().values() if d.fits(name, None)] == [key]


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA H200 NVL", "NVIDIA L40", "Radeon"])
def test_a_device_without_a_file_is_not_taken_for_another(name):
    assert devices.match(name) is None


def test_the_compute_capability_must_agree():
    assert devices.match("NVIDIA H200", "9.0").key == "h200"
    assert devices.match("NVIDIA H200", "8.0") is None


def test_an_unknown_file_names_those_that_exist():
    with pytest.raises(UsageError, match=r"h300.*there are: a100, b200"):
        devices.device("h300")


def test_the_physical_ceiling_is_widths_times_the_clocks_nvml_reports():
    identity = Simulated().identity()
    top = devices.physical(devices.device("h200"), identity)
    assert top.flop_per_s["bfloat16"] == 132 * 4096 * 1.98e9  # 1070 TFLOP/s, not the datasheet's 989
    assert top.bytes_per_s == 2 * 3.201e9 * 6144 / 8
    identity.sm_max_hz = 1e9
    assert devices.physical(devices.device("h200"), identity).flop_per_s["bfloat16"] == 132 * 4096 * 1e9


def test_without_nvml_the_file_stands_in_and_it_is_said():
    top = devices.physical(devices.device("h200"), Identity(unread={"mem_max_hz": "no NVML"}))
    assert top.bytes_per_s == 4.8e12
    assert "no NVML" in top.provenance
    assert "device file" in top.provenance


@pytest.mark.parametrize("key", sorted(NAMES.values()))
def test_widths_and_datasheet_agree_and_name_their_source(key):
    found = devices.device(key)
    assert found.source
    assert set(found.flop_per_sm_clock) == set(found.flop_per_s)
    for dtype, width in found.flop_per_sm_clock.items():
        # Datasheets count at or below the boost clock, down to 1.62 of 1.755 GHz (H100 PCIe), and round by 1 %.
        share = found.flop_per_s[dtype] / (found.sm_count * width * found.boost_hz)
        assert 0.92 < share < 1.01, dtype


def test_a_broken_file_is_one_line():
    with pytest.raises(UsageError, match=r"broken\.toml cannot be read"):
        devices._parse("broken", "name = ")
