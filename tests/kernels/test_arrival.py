"""The counters that split kernels share."""

import pytest
import torch

from kernels.arrival import SLOTS, arrival_counters
from kernels.errors import KernelArgumentError


def test_one_set_a_stream_and_zero(device):
    first = arrival_counters(10, device)
    assert first.shape == (SLOTS,)
    assert not bool(first.any())
    assert arrival_counters(20, device).data_ptr() == first.data_ptr()
    with pytest.raises(KernelArgumentError, match="output tiles is"):
        arrival_counters(SLOTS + 1, device)


@pytest.mark.gpu
def test_two_streams_have_two_sets(device):
    here = arrival_counters(1, device)
    with torch.cuda.stream(torch.cuda.Stream()):
        assert arrival_counters(1, device).data_ptr() != here.data_ptr()
