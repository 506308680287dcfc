"""What a block's content hash covers."""

import pytest
import torch

from common.engine.latent_pool import LatentPool


def pool() -> LatentPool:
    made = LatentPool(4, 3, 8, 6, torch.float32, torch.device("cpu"))
    made.tensor.copy_(torch.randn(made.tensor.shape, generator=torch.Generator().manual_seed(0)))
    return made


def test_a_full_block_leaves_out_its_last_mtp_slot_and_nothing_else() -> None:
    latent = pool()
    (before,) = latent.content_hashes([1], full=True, has_mtp=True)
    latent.tensor[1, 2, 7] += 1
    assert latent.content_hashes([1], full=True, has_mtp=True) == [before]
    assert latent.content_hashes([1], full=False, has_mtp=True) != [before]
    for place in ((2, 6), (1, 7), (0, 0)):
        latent.tensor[(1, *place)] += 1
        (after,) = latent.content_hashes([1], full=True, has_mtp=True)
        assert after != before
        before = after


def test_without_an_mtp_layer_all_of_a_full_block_counts() -> None:
    latent = pool()
    (before,) = latent.content_hashes([1], full=True, has_mtp=False)
    latent.tensor[1, 2, 7] += 1
    assert latent.content_hashes([1], full=True, has_mtp=False) != [before]


def test_copied_blocks_are_equal_and_others_untouched() -> None:
    source, here = pool(), LatentPool(4, 3, 8, 6, torch.float32, torch.device("cpu"))
    here.copy_from(source, [0, 3], [2, 1])
    assert torch.equal(here.tensor[2], source.tensor[0])
    assert torch.equal(here.tensor[1], source.tensor[3])
    assert not here.tensor[[0, 3]].any()


def test_a_block_is_whole_words() -> None:
    with pytest.raises(ValueError, match="whole words"):
        LatentPool(1, 1, 1, 3, torch.bfloat16, torch.device("cpu"))
