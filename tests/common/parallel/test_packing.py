import pytest
import torch

from common.errors import InternalError
from common.parallel.packing import HEADER_FIELDS, body_bytes, pack, unpack
from common.parallel.transport import Message


@pytest.mark.parametrize(
    "tensors",
    [
        (),
        (torch.randn(3, 5),),
        (torch.randn(7, 3).bfloat16(), torch.arange(5, dtype=torch.int32)[:, None], torch.randn(1, 1, 3).double()),
        (torch.empty(0, 6), torch.empty((0, 2), dtype=torch.int32), torch.empty(0, 2)),
        (torch.randn(4, 6)[:, ::2], torch.tensor([1, 2, 3], dtype=torch.uint8)),
    ],
    ids=["none", "one", "odd sizes", "empty", "strided"],
)
def test_what_is_packed_comes_back(tensors: tuple[torch.Tensor, ...]) -> None:
    header, body = pack(Message(tensors, note=-1))
    assert header.shape == (HEADER_FIELDS,)
    assert body_bytes(header) == body.numel()
    back = unpack(header, body)
    assert back.note == -1
    for ours, given in zip(back.tensors, tensors, strict=True):
        assert ours.dtype == given.dtype
        assert torch.equal(ours, given)


@pytest.mark.parametrize(
    "tensors", [(torch.zeros(1),) * 4, (torch.zeros(1, dtype=torch.complex64),), (torch.zeros(1, 1, 1, 1),)]
)
def test_what_cannot_be_packed_is_refused(tensors: tuple[torch.Tensor, ...]) -> None:
    with pytest.raises(InternalError):
        pack(Message(tensors))
