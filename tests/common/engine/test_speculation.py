"""The accept rule against the kernels' reference, and what a step writes."""

import random

import pytest
import torch

from common.engine.speculation import accepted_drafts, slots_written
from kernels.accept_ref import accept


@pytest.mark.parametrize("drafts", [0, 1, 2, 5])
def test_accepts_as_the_kernel_does(drafts: int) -> None:
    rng = random.Random(drafts)
    for _ in range(200):
        proposed = [rng.randrange(2) for _ in range(drafts)]
        drawn = [rng.randrange(2) for _ in range(drafts + 1)]
        expected = int(accept(torch.tensor([proposed]).reshape(1, drafts), torch.tensor([drawn]))[0])
        assert accepted_drafts(proposed, drawn) == expected


def test_one_more_draw_than_drafts_is_needed() -> None:
    with pytest.raises(ValueError, match="1 draws for 1 drafts"):
        accepted_drafts([1], [1])


def test_slots_reach_as_far_as_the_last_draft_pass_writes() -> None:
    # Last token at 10, so slot 10 is written; drafts at 11 and 12; if both stand the last token is at 13, and the
    # second draft pass, which proposes for 15, writes the MTP layer's slot 13.
    assert slots_written(10, 0, 0) == 11
    assert slots_written(10, 1, 1) == 12
    assert slots_written(10, 2, 2) == 14
