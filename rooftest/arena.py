"""Memory that the grader and the kernel's process both see, and where each tensor lies in it.

An arena is an allocation of its own: CUDA IPC maps whole allocations, so nothing of the grader's may lie in the same
one. It is shared once, when a process starts or the arena is replaced, so a call costs no sharing at all.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# The driver hands out small allocations from blocks of 2 MiB, and an IPC handle opens the whole block.
BLOCK_BYTES = 2 * 2**20
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag that cuIpcOpenMemHandle knows


@dataclass(frozen=True)
class Placement:
    """One tensor inside an arena: torch's name of its dtype, strides in elements, first element at `offset_bytes`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset_bytes: int

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._dtype.itemsize

    @property
    def extent_bytes(self) -> int:
        """Bytes from the first element to the end of the last, gaps between them included; 0 without elements."""
        if 0 in self.shape:
            return 0
        return (1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))) * self.itemsize

    @property
    def _dtype(self) -> torch.dtype:
        import torch

        return getattr(torch, self.dtype)

    def view(self, bytes: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the arena's field has this name
        """The tensor, in the arena whose uint8 tensor is `bytes`.

        Raises ValueError if the offset is no multiple of the element, RuntimeError if the tensor ends outside.
        """
        start, rest = divmod(self.offset_bytes, self.itemsize)
        if rest:
            raise ValueError(f"{self.name}: offset {self.offset_bytes} is no multiple of {self.itemsize} bytes")
        return bytes.view(self._dtype).as_strided(self.shape, self.stride, start)


def distinct(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The first index alone of every dimension whose stride is 0: what the others repeat."""
    for dim, (size, step) in enumerate(zip(tensor.shape, strides, strict=True)):
        tensor = tensor.narrow(dim, 0, 1) if step == 0 and size > 1 else tensor
    return tensor


def write(view: torch.Tensor, values: torch.Tensor) -> None:
    """Copies `values` into `view`, which may repeat: each element once."""
    distinct(view, view.stride()).copy_(distinct(values, view.stride()))


class Arena:
    """`size_bytes`, rounded up to blocks of 2 MiB, on "cpu" or "cuda:N"; its contents begin undefined.

    The memory goes back when `close` was called and the last tensor that views it has died.
    Raises MemoryError if the device has not that much left.
    """

    bytes: torch.Tensor
    """All of it, uint8, one dimension."""

    def __init__(self, device: str, size_bytes: int) -> None:
        self.device = device
        size = max(1, -(-size_bytes // BLOCK_BYTES)) * BLOCK_BYTES
        if device == "cpu":
            # A file without a name: it can't be left behind, and a container's small /dev/shm does not limit it.
            self._file = os.memfd_create("rooftest-arena")
            self._let_go: Callable[[], Any] = weakref.finalize(self, os.close, self._file)
            os.truncate(self._file, size)
            self.bytes = _mapped(self._file, size)
            self._handle: dict[str, Any] = {"path": f"/proc/{os.getpid()}/fd/{self._file}"}
        else:
            block = _allocate(device, size)
            self.bytes = block.tensor()
            self._handle, self._let_go = {"ipc": block.handle()}, lambda: None
        self._handle |= {"device": device, "size": size}

    def handle(self) -> dict[str, Any]:
        """What another process of this user needs for `attach`; it can be written as JSON."""
        return self._handle

    @classmethod
    def attach(cls, handle: dict[str, Any]) -> Arena:
        """The same memory in another process, while the arena lives in the first."""
        self = cls.__new__(cls)
        self.device, self._handle, self._let_go = handle["device"], handle, lambda: None
        if "path" in handle:
            file = os.open(handle["path"], os.O_RDWR)
            self.bytes = _mapped(file, handle["size"])
            os.close(file)
        else:
            self.bytes = _opened(handle["device"], handle["size"], handle["ipc"]).tensor()
        return self

    def close(self) -> None:
        """Lets go of the memory; views that are left stay valid and keep it."""
        self.__dict__.pop("bytes", None)
        self._let_go()


def _mapped(file: int, size: int) -> torch.Tensor:
    import torch

    return torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)  # the tensor keeps the mapping


class _IpcHandle(ctypes.Structure):
    """CUipcMemHandle: 64 bytes that only the driver reads."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class Block:
    """Device memory by its address. Tensors made from it keep it; `free`, if any, runs when the last is gone."""

    def __init__(self, device: str, size: int, address: int, free: str | None = None) -> None:
        self.device, self.size, self.address = device, size, address
        if free is not None:
            # At the end of the process the driver takes everything back by itself, in an order of its own.
            weakref.finalize(self, _free, device, address, free).atexit = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def tensor(self) -> torch.Tensor:
        """All of it, uint8."""
        import torch

        return torch.as_tensor(self, device=self.device)

    def handle(self) -> str:
        """The IPC handle by which another process opens it, in hexadecimal."""
        handle = _IpcHandle()
        driver(self.device, "cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(self.address))
        return bytes(handle.reserved).hex()


def _allocate(device: str, size: int) -> Block:
    address = ctypes.c_uint64()
    ask(device, "cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    return Block(device, size, address.value, "cuMemFree_v2")


def _opened(device: str, size: int, ipc: str) -> Block:
    address = ctypes.c_uint64()
    handle = _IpcHandle.from_buffer_copy(bytes.fromhex(ipc))
    driver(device, "cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, ctypes.c_uint(_LAZY_PEER_ACCESS))
    return Block(device, size, address.value, "cuIpcCloseMemHandle")


def _free(device: str, address: int, call: str) -> None:
    import torch

    try:
        torch.cuda.synchronize(device)
        driver(device, call, ctypes.c_uint64(address))
    except RuntimeError:
        pass  # the context is broken, so the memory goes with the process


def ask(device: str, call: str, *arguments: Any) -> None:
    """`driver` for a call that takes memory: once more after torch gave back what it keeps, if there was too little."""
    import torch

    try:
        driver(device, call, *arguments)
    except MemoryError:
        torch.cuda.empty_cache()  # torch keeps what its tensors freed; the driver can't give that away
        driver(device, call, *arguments)


def driver(device: str, call: str, *arguments: Any) -> None:
    """Calls the CUDA driver in the context that torch uses on `device`; MemoryError or RuntimeError if it fails."""
    import torch

    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # makes the context if there is none yet
        library = ctypes.CDLL("libcuda.so.1")
        status = getattr(library, call)(*arguments)
        if status:
            text = ctypes.c_char_p()
            library.cuGetErrorString(status, ctypes.byref(text))
            kind = MemoryError if status == _OUT_OF_MEMORY else RuntimeError
            raise kind(f"{call} on {device}: {(text.value or b'unknown error').decode()}")
