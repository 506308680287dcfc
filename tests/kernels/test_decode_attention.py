"""What a plan of decode attention refuses before anything is launched."""

import pytest
import torch

from kernels.errors import KernelArgumentError
from kernels.mla_decode import AttentionShape, DecodeAttention

SHAPE = AttentionShape(heads=128, rank=512, rope=64, block_tokens=64, sm_scale=0.07)
REQUESTS, QUERY_LEN, MAX_BLOCKS = 3, 2, 4


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("blocks", "query_lens", "total_lens", "named"),
    [
        ((2, 4), ints(2, 2, 2), ints(5, 5, 5), r"block_tables is \(2, 4\)"),
        ((3, 5), ints(2, 2, 2), ints(5, 5, 5), r"block_tables\.shape\[1\] is 5"),
        ((3, 4), ints(2), ints(5, 5, 5), r"query_lens is \(1,\)"),
        ((3, 4), ints(2, 2, 2), ints(5), r"total_lens is \(1,\)"),
        ((3, 4), ints(2, 1, 2), ints(5, 5, 5), r"query_lens is \[2, 1, 2\]: must be 2 of every request"),
        ((3, 4), ints(2, 2, 2), ints(5, 0, 5), r"total_lens is \[5, 0, 5\]: must be at least \[2, 2, 2\]"),
    ],
)
def test_a_plan_that_is_not_of_its_batch_is_refused(blocks, query_lens, total_lens, named, device):
    attention = DecodeAttention(device, SHAPE, REQUESTS, QUERY_LEN, MAX_BLOCKS)
    attention.plan(torch.zeros(3, 3, dtype=torch.int32), ints(2, 2, 2), ints(2, 5, 192))  # shorter tables are filled up
    with pytest.raises(KernelArgumentError, match=named):
        attention.plan(torch.zeros(blocks, dtype=torch.int32), query_lens, total_lens)
