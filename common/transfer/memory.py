"""Memory as NIXL sees it: an address, a length, a kind and a device."""

from dataclasses import dataclass
from typing import Any, Protocol


class HostArray(Protocol):
    """A numpy array, as far as it is needed here."""

    @property
    def nbytes(self) -> int: ...
    @property
    def ctypes(self) -> Any: ...  # noqa: ANN401  numpy's own type is generic over platforms


class DeviceTensor(Protocol):
    """A torch tensor, as far as it is needed here, so that torch stays optional."""

    @property
    def nbytes(self) -> int: ...
    def data_ptr(self) -> int: ...
    def is_contiguous(self) -> bool: ...
    def get_device(self) -> int: ...


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """`length_bytes` bytes at `address`. `kind` is DRAM or VRAM; `device` is 0 for DRAM."""

    address: int
    length_bytes: int
    kind: str = "DRAM"
    device: int = 0


def host_region(array: HostArray) -> MemoryRegion:
    """The memory of a contiguous numpy array, which must outlive its use."""
    return MemoryRegion(int(array.ctypes.data), array.nbytes)


def tensor_region(tensor: DeviceTensor) -> MemoryRegion:
    """The memory of a contiguous torch tensor on a CPU or a GPU, which must outlive its use."""
    if not tensor.is_contiguous():
        raise ValueError("only contiguous tensors can be registered")
    device = tensor.get_device()
    if device < 0:
        return MemoryRegion(tensor.data_ptr(), tensor.nbytes)
    return MemoryRegion(tensor.data_ptr(), tensor.nbytes, "VRAM", device)
