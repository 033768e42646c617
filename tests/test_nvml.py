import os
import sys
import types

import pytest

from rooftest import nvml


class NVMLError(Exception):
    pass


def fake(**broken):
    """A pynvml of one H200; names in `broken` raise."""
    m = types.ModuleType("pynvml")
    m.NVMLError = NVMLError

    def name_of(value):
        return lambda *_: value

    answers = {
        "nvmlInit": None, "nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": "h", "nvmlDeviceGetUUID": b"GPU-1",
        "nvmlDeviceGetName": "NVIDIA H200", "nvmlDeviceGetVbiosVersion": "96", "nvmlSystemGetDriverVersion": "580",
        "nvmlSystemGetCudaDriverVersion_v2": 13000, "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(total=150e9), "nvmlDeviceGetMemoryBusWidth": 6016,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000, "nvmlDeviceGetEccMode": [1, 1], "nvmlDeviceGetMigMode": [0, 0],
        "nvmlDeviceGetPersistenceMode": 1, "nvmlDeviceGetTemperature": 41, "nvmlDeviceGetPowerUsage": 88_000,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x40, "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlDeviceGetComputeRunningProcesses": [types.SimpleNamespace(pid=os.getpid()), types.SimpleNamespace(pid=7)],
        "nvmlDeviceGetGraphicsRunningProcesses": [], "nvmlDeviceGetTotalEnergyConsumption": 5000,
        "nvmlGpmQueryDeviceSupport": types.SimpleNamespace(isSupportedDevice=1),
    }  # fmt: skip
    for key, value in answers.items():
        setattr(m, key, name_of(value))
    m.nvmlDeviceGetHandleByUUID = lambda uuid: "h" if uuid in ("GPU-1", b"GPU-1") else _raise("no such device")
    m.nvmlDeviceGetMaxClockInfo = lambda _h, kind: {1: 1980, 2: 3201}[kind]
    m.nvmlDeviceGetClockInfo = m.nvmlDeviceGetMaxClockInfo
    m.NVML_CLOCK_SM, m.NVML_CLOCK_MEM, m.NVML_TEMPERATURE_GPU = 1, 2, 0
    m.NVML_VOLATILE_ECC, m.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, m.NVML_MEMORY_ERROR_TYPE_CORRECTED = 0, 1, 0

    def fields(_handle, numbers):
        def one(number):
            ok = 3 if number == 271 else 0  # the power brake's counter is not supported here
            value = types.SimpleNamespace(uiVal=0, ullVal=2_500_000_000)
            return types.SimpleNamespace(
                fieldId=number, nvmlReturn=ok, valueType=1 if number == 144 else 3, value=value
            )

        return [one(number) for number in numbers]

    m.nvmlDeviceGetFieldValues = fields
    m.NVML_TOTAL_POWER_SAMPLES = 0

    def samples(_handle, _kind, since):
        taken = [(at, 500_000 + at) for at in (1_000_000, 1_020_000) if at > since]
        if not taken:
            error = NVMLError("Not Found")
            error.value = 6
            raise error
        value = [types.SimpleNamespace(timeStamp=at, sampleValue=types.SimpleNamespace(uiVal=mw)) for at, mw in taken]
        return 1, [*value, types.SimpleNamespace(timeStamp=0, sampleValue=types.SimpleNamespace(uiVal=0))]

    m.nvmlDeviceGetSamples = samples
    for key, text in broken.items():
        setattr(m, key, lambda *_, text=text: _raise(text))
    return m


def _raise(text):
    raise NVMLError(text)


@pytest.fixture
def with_nvml(monkeypatch):
    def put(**broken):
        monkeypatch.setitem(sys.modules, "pynvml", fake(**broken))
        return nvml.Gpu("1", 132, 60)

    return put


def test_identity_and_state_are_in_si_units(with_nvml):
    gpu = with_nvml()
    who, now = gpu.identity(), gpu.state()
    assert (who.uuid, who.name, who.cc, who.cuda_driver) == ("GPU-1", "NVIDIA H200", "9.0", "13.0")
    assert (who.power_limit_w, who.sm_max_hz, who.mig, who.ecc) == (700, 1.98e9, False, True)
    assert who.unread == {}
    assert (now.power_w, now.power_cap_s, now.remap_pending) == (88, 2.5, False)
    assert now.reasons == ["power_cap", "hw_thermal"]
    assert now.pids == [7]  # not ourselves
    assert gpu.energy_j() == 5
    assert gpu.power_now_w() == 2.5e6
    assert nvml.gpus() == ["GPU-1"]


def test_power_samples_are_those_that_are_newer_in_seconds_and_watts(with_nvml):
    gpu = with_nvml()
    assert gpu.power_samples(0) == [(1.0, 1500), (1.02, 1520)]
    assert gpu.power_samples(1.0) == [(1.02, 1520)]
    assert gpu.power_samples(1.02) == []
    assert with_nvml(nvmlDeviceGetSamples="Not Supported").power_samples(0) is None


def test_why_the_energy_counter_is_gone_is_kept(with_nvml):
    gpu = with_nvml(nvmlDeviceGetTotalEnergyConsumption="GPU is lost")
    assert gpu.energy_j() is None
    assert gpu.energy_reason == "GPU is lost"


def test_a_slice_of_mig_is_known_by_its_uuid(with_nvml, monkeypatch):
    gpu = with_nvml(nvmlDeviceGetMigMode="Not Supported")
    assert gpu.identity().mig is None
    monkeypatch.setattr(gpu, "_uuid", "MIG-1")
    assert gpu.identity().mig is True


def test_what_cannot_be_read_is_none_with_its_reason(with_nvml):
    gpu = with_nvml(nvmlDeviceGetEccMode="Not Supported", nvmlDeviceGetTemperature="Insufficient Permissions")
    assert gpu.identity().ecc is None
    assert gpu.identity().unread["ecc"] == "Not Supported"
    state = gpu.state()
    assert state.temp_c is None
    assert state.unread["temp_c"] == "Insufficient Permissions"
    assert state.power_brake_s is None
    assert "not supported" in state.unread["power_brake_s"]


def test_counters_all_broken_leave_no_traceback(with_nvml):
    state = with_nvml(nvmlDeviceGetFieldValues="Unknown Error").state()
    assert state.power_cap_s is None
    assert state.unread["power_cap_s"] == "Unknown Error"


def test_a_missing_nvml_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake(nvmlInit="NVML Shared Library Not Found"))
    with pytest.raises(nvml.NvmlMissingError, match="NVML is not readable: NVML Shared Library Not Found"):
        nvml.Gpu("1")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(nvml.NvmlMissingError, match="not installed"):
        nvml.Gpu("1")


def test_an_unknown_gpu_is_one_line(with_nvml):
    with_nvml()
    with pytest.raises(nvml.NvmlMissingError, match="GPU-2"):
        nvml.Gpu("2")


def test_memory_counters_say_why_they_are_not_there(with_nvml):
    assert with_nvml().traffic_reason == ""
    assert "Function Not Found" in with_nvml(nvmlGpmQueryDeviceSupport="Function Not Found").traffic_reason
    gpu = with_nvml(nvmlDeviceGetMemoryBusWidth="Not Supported")
    assert "theoretical bandwidth" in gpu.traffic_reason
    assert gpu.traffic_sample() is None
    assert gpu.traffic_rate(None, None) is None


def test_two_transfers_a_memory_clock():
    assert nvml.memory_peak(3.201e9, 6016) == pytest.approx(4.814e12, rel=1e-3)  # an H200's 4.8 TB/s
