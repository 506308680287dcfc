"""A message as bytes: a header of fixed size, so that a receiver needs to know nothing in advance, and a body."""

from math import prod

import torch

from common.errors import InternalError
from common.parallel.transport import Message

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8)
_MOST_TENSORS = 3
_MOST_DIMS = 3
_TENSOR_FIELDS = 2 + _MOST_DIMS  # type, dims, sizes
HEADER_FIELDS = 2 + _MOST_TENSORS * _TENSOR_FIELDS  # note, number of tensors, tensors
_ALIGNMENT_BYTES = 8


def pack(message: Message) -> tuple[torch.Tensor, torch.Tensor]:
    """Header int64 of fixed size, body uint8 in which every tensor starts on 8 bytes."""
    if len(message.tensors) > _MOST_TENSORS:
        raise InternalError(f"a message of {len(message.tensors)} tensors: at most {_MOST_TENSORS}")
    fields = [message.note, len(message.tensors)]
    parts = []
    for tensor in message.tensors:
        if tensor.dtype not in _DTYPES or tensor.dim() > _MOST_DIMS:
            raise InternalError(f"cannot send {tensor.dtype} of {tensor.dim()} dimensions")
        fields += [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *[0] * (_MOST_DIMS - tensor.dim())]
        part = tensor.contiguous().view(-1).view(torch.uint8)
        parts += [part, part.new_zeros(-part.numel() % _ALIGNMENT_BYTES)]
    fields += [0] * (HEADER_FIELDS - len(fields))
    return torch.tensor(fields), torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def unpack(header: torch.Tensor, body: torch.Tensor) -> Message:
    tensors, start = [], 0
    for dtype, shape in _layout(header):
        size = prod(shape) * dtype.itemsize
        tensors.append(body[start : start + size].view(dtype).view(shape))
        start += size + -size % _ALIGNMENT_BYTES
    return Message(tuple(tensors), int(header[0]))


def body_bytes(header: torch.Tensor) -> int:
    sizes = [prod(shape) * dtype.itemsize for dtype, shape in _layout(header)]
    return sum(size + -size % _ALIGNMENT_BYTES for size in sizes)


def _layout(header: torch.Tensor) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    fields = header.tolist()
    tensors = [fields[2 + i * _TENSOR_FIELDS :][:_TENSOR_FIELDS] for i in range(fields[1])]
    return [(_DTYPES[dtype], tuple(sizes[:dims])) for dtype, dims, *sizes in tensors]
