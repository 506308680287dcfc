"""Checks that launchers make before they launch; every failure names the argument."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.errors import KernelArgumentError

FP8 = torch.float8_e4m3fn


def shape(name: str, tensor: Tensor, expected: Sequence[int | None]) -> None:
    """`expected` lists the sizes, None where any size will do."""
    given = tuple(tensor.shape)
    if len(given) != len(expected) or any(e is not None and e != g for g, e in zip(given, expected, strict=True)):
        wanted = ", ".join("any" if e is None else str(e) for e in expected)
        raise KernelArgumentError(name, given, f"of shape [{wanted}]")


def dtype(name: str, tensor: Tensor, *allowed: torch.dtype) -> None:
    if tensor.dtype not in allowed:
        raise KernelArgumentError(name, tensor.dtype, " or ".join(str(d) for d in allowed))


def same_device(name: str, tensor: Tensor, reference: Tensor) -> None:
    if tensor.device != reference.device:
        raise KernelArgumentError(name, tensor.device, f"on {reference.device}")


def on_gpu(name: str, tensor: Tensor) -> None:
    """For Gluon kernels, which the CPU interpreter does not run."""
    if tensor.device.type != "cuda":
        raise KernelArgumentError(f"{name}.device", tensor.device, "a GPU")


def dense_rows(name: str, tensor: Tensor) -> None:
    """The last dimension is contiguous; the others may have any stride."""
    if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise KernelArgumentError(name, tensor.stride(), "contiguous in its last dimension")


def contiguous(name: str, tensor: Tensor) -> None:
    if not tensor.is_contiguous():
        raise KernelArgumentError(name, tensor.stride(), "contiguous")


def multiple(name: str, value: int, of: int) -> None:
    if value % of:
        raise KernelArgumentError(name, value, f"a multiple of {of}")


def at_most(name: str, value: int, limit: int) -> None:
    if value > limit:
        raise KernelArgumentError(name, value, f"at most {limit}")


def at_least(name: str, value: int, limit: int) -> None:
    if value < limit:
        raise KernelArgumentError(name, value, f"at least {limit}")


def one_of(name: str, value: int, allowed: Sequence[int]) -> None:
    if value not in allowed:
        raise KernelArgumentError(name, value, "one of " + ", ".join(map(str, allowed)))


def column_major(name: str, tensor: Tensor) -> None:
    """Activation scales as `tiles.scale_buffer` lays them out: tokens contiguous, blocks 16 bytes apart or more."""
    rows, columns = tensor.shape
    if (rows > 1 and tensor.stride(0) != 1) or (columns > 1 and tensor.stride(1) % 4):
        raise KernelArgumentError(name, tensor.stride(), "column-major with a column stride of a multiple of 4")


def transposed_rows(name: str, tensor: Tensor) -> None:
    """Activation scales [experts, rows, blocks] as `tiles.padded_scale_buffer` lays them out."""
    experts, _, blocks = tensor.shape
    row, block = tensor.stride(1), tensor.stride(2)
    if (tensor.shape[1] > 1 and row != 1) or block % 4 or (experts > 1 and tensor.stride(0) != blocks * block):
        raise KernelArgumentError(name, tensor.stride(), "rows contiguous, blocks a multiple of 4 apart, experts last")
