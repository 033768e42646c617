"""A GPU that is not there: tensors without memory that say they lie on one, and a driver that names its generation.

A kernel's launcher runs as it is on these: it reads shapes, strides, addresses and properties of the device, computes a
grid and launches. Nothing is computed. What it can't do is read the values of a tensor: there are none.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget

from rooftest.compiled.generations import Generation
from rooftest.compiled.occupancy import REGISTERS, WARP

DEVICE = torch.device("cuda", 0)
_STORAGE_BITS = 40  # addresses of one storage lie within 1 TiB, more than any GPU has


class OnCuda(TorchFunctionMode):
    """Meta tensors answer as if they were on cuda:0, and what asks for CUDA gets meta tensors.

    Each storage begins at an address of its own that is a multiple of 2^40, as aligned as any allocation of CUDA's.
    """

    def __init__(self) -> None:
        super().__init__()
        self._storages: list[Any] = []  # kept alive: a freed storage's place would be taken by another

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer for the tensor where it would tell the truth; run the rest on meta tensors."""
        first = args[0] if args else None
        if isinstance(first, torch.Tensor):
            if func is torch.Tensor.cuda:
                return first.to("meta")
            if first.device.type == "meta" and func in _ANSWERS:
                return _ANSWERS[func]
            if first.device.type == "meta" and func is torch.Tensor.data_ptr:
                return self._address(first)
        if func is torch.Tensor.pin_memory:
            return first
        return func(*map(_placed, args), **{name: _placed(value) for name, value in (kwargs or {}).items()})

    def _address(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        known = [s._cdata for s in self._storages]  # noqa: SLF001 - a storage's only identity without an address
        if storage._cdata not in known:  # noqa: SLF001
            self._storages.append(storage)
            known.append(storage._cdata)  # noqa: SLF001
        start = (known.index(storage._cdata) + 1) << _STORAGE_BITS  # noqa: SLF001
        return start + int(tensor.storage_offset()) * tensor.element_size()


_ANSWERS: dict[Any, Any] = {
    torch.Tensor.device.__get__: DEVICE,
    torch.Tensor.is_cuda.__get__: True,  # type: ignore[attr-defined]
    torch.Tensor.is_meta.__get__: False,  # type: ignore[attr-defined]
    torch.Tensor.get_device: 0,
    torch.Tensor.is_pinned: False,
}


def _placed(value: Any) -> Any:
    """An argument with meta in the place of CUDA."""
    if isinstance(value, torch.device):
        return torch.device("meta") if value.type == "cuda" else value
    return "meta" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


class Driver:
    """What Triton asks of the active driver before it has something to launch."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.utils = SimpleNamespace(get_device_properties=lambda _device: _for_triton(generation))

    @classmethod
    def is_active(cls) -> bool:
        """Whether there is such a device."""
        return True

    def get_current_target(self) -> GPUTarget:
        """The generation, as the compiler names it."""
        return GPUTarget("cuda", self.generation.arch, WARP)

    def get_current_device(self) -> int:
        """The only device."""
        return 0

    def get_current_stream(self, _device: int | None = None) -> int:
        """The default stream."""
        return 0

    def set_current_device(self, _device: int) -> None:
        """There is one."""

    def get_active_torch_device(self) -> torch.device:
        """The only device, as torch names it."""
        return DEVICE

    def get_device_interface(self) -> Any:
        """The part of torch for it."""
        return torch.cuda

    def get_benchmarker(self) -> Any:
        """What an autotuner times with: each configuration is compiled, and none is faster than another."""
        return lambda call, *, quantiles=None, **_: (call(), [1.0] * len(quantiles or (0.5,)))[1]

    def get_empty_cache_for_benchmark(self) -> None:
        """Nothing is timed."""

    def clear_cache(self, _cache: Any) -> None:
        """Nothing is timed."""


def install(generation: Generation) -> OnCuda:
    """Make this process believe in the GPU; for a process that ends afterwards. The mode is entered by the caller."""
    properties = _for_torch(generation)
    major, minor = divmod(generation.arch, 10)
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    answers = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0, "init": None,
        "_lazy_init": None, "set_device": None, "synchronize": None, "empty_cache": None,
        "is_current_stream_capturing": False, "get_device_properties": properties,
        "get_device_capability": (major, minor), "get_device_name": generation.product, "is_bf16_supported": True,
        "current_stream": stream, "default_stream": stream, "device": nullcontext(), "stream": nullcontext(),
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    triton.runtime.driver.set_active(Driver(generation))
    return OnCuda()


def _for_torch(generation: Generation) -> Any:
    major, minor = divmod(generation.arch, 10)
    return SimpleNamespace(
        name=generation.product, major=major, minor=minor, multi_processor_count=generation.sm_count, warp_size=WARP,
        max_threads_per_multi_processor=generation.limits.warps * WARP, regs_per_multiprocessor=REGISTERS,
        shared_memory_per_block=48 * 1024, shared_memory_per_block_optin=generation.cta_shared_bytes,
        shared_memory_per_multiprocessor=generation.limits.shared_bytes,
    )  # fmt: skip


def _for_triton(generation: Generation) -> dict[str, int]:
    return {
        "max_shared_mem": generation.cta_shared_bytes, "max_num_regs": REGISTERS, "warpSize": WARP,
        "multiprocessor_count": generation.sm_count,
    }  # fmt: skip
