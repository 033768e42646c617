import os
import subprocess
import sys

import pytest

from rooftest.nvml import Identity, State
from rooftest.simulated import Simulated
from rooftest.validity import GRADER, validate


def states(**after):
    before, later = Simulated().state(), Simulated().state()
    for name, value in after.items():
        setattr(later, name, value)
    return before, later


def judged(mig=False, **after):
    return validate(Identity(mig=mig), *states(**after), window_s=1.0)


def test_a_quiet_gpu_is_valid_and_unlocked():
    got = judged()
    assert got.valid
    assert got.tags == ["unlocked"]
    assert got.unknown == []


@pytest.mark.parametrize(
    ("after", "word", "retry"),
    [
        ({"hw_thermal_s": 0.01}, "heat", True),
        ({"power_brake_s": 0.01}, "power brake", True),
        ({"ecc_ue": 1}, "ECC", False),
        ({"remap_pending": True}, "remapped", False),
        ({"pids": [1]}, "other processes", False),
        ({"mig": True}, "MIG", False),
    ],
)
def test_each_cause_makes_it_invalid(after, word, retry):
    got = judged(**after)
    assert not got.valid
    assert word in got.reasons[0]
    assert got.retry == retry


def test_the_power_limit_is_a_tag_from_one_percent_on():
    assert "power_limited" in judged(power_cap_s=0.02).tags
    assert "power_limited" not in judged(power_cap_s=0.005).tags
    assert judged(power_cap_s=0.5).valid


def test_our_own_family_is_not_foreign_and_a_stranger_is(monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert judged(pids=[os.getpid(), child.pid]).valid
        monkeypatch.setenv(GRADER, str(child.pid))  # what a kernel's process is told
        assert judged(pids=[child.pid]).valid
        assert not judged(pids=[os.getpid()]).valid
    finally:
        child.communicate(b"\n")
    assert not judged(pids=[1]).valid


def test_a_process_that_cannot_be_seen_is_unknown_not_foreign():
    got = judged(pids=[2**22 + 1])  # above the kernel's largest id
    assert got.valid
    assert "another PID namespace" in got.unknown[0]


def test_what_could_be_read_before_and_not_after_makes_it_invalid():
    before, after = states(hw_thermal_s=None, pids=None)
    after.unread = {"hw_thermal_s": "GPU is lost", "pids": "GPU is lost"}
    got = validate(Identity(), before, after, 1.0)
    assert got.reasons == ["NVML lost the GPU during the measurement (hw_thermal_s: GPU is lost)"]
    assert not got.retry
    after.hw_thermal_s = 0.0
    assert validate(Identity(), before, after, 1.0).reasons == [
        "NVML lost the GPU during the measurement (pids: GPU is lost)"
    ]


def test_what_was_not_read_is_said():
    blind = State(unread={"hw_thermal_s": "no NVML"})
    got = validate(Identity(), blind, blind, 1.0)
    assert got.valid
    assert "hw_thermal_s: no NVML" in got.unknown


def test_a_swing_of_the_clock_is_a_tag():
    assert "clock_swing" in validate(Identity(), *states(), 1.0, [1.98e9, 1.5e9]).tags
    assert "clock_swing" not in validate(Identity(), *states(), 1.0, [1.98e9, 1.9e9]).tags
