import torch

from common.transfer.landing import HostLanding
from kernels.block_tag_ref import block_hash


def test_blocks_are_copied_and_hashed_without_the_last_mtp_slot():
    arena = torch.randint(-(2**31), 2**31, (3, 2, 4, 8), dtype=torch.int32).view(
        torch.float32
    )  # [slots, layers, tokens, width]
    pool = torch.zeros(5, 2, 4, 8)
    hashes = HostLanding(arena, pool, mtp_slot_bytes=32).land([2, 0], [1, 4], [True, False])
    words = arena.view(torch.int32).view(3, 64)
    assert torch.equal(pool.view(torch.int32)[[1, 4]], arena.view(torch.int32)[[2, 0]])
    assert not pool[[0, 2, 3]].any()
    assert hashes == [block_hash(words[2][:56]), block_hash(words[0])]
    arena[2, 1, 3] += 1.0
    assert HostLanding(arena, pool, mtp_slot_bytes=32).land([2], [1], [True]) == hashes[:1]
