"""One forward pass's tokens and where their latent lives."""

from dataclasses import dataclass
from enum import Enum, auto

import torch

from common.parallel.schedule import Schedule

__all__ = ["AttentionForm", "ForwardBatch", "Schedule"]


class AttentionForm(Enum):
    """Latent attention has two equal forms over the same weights and the same cache."""

    MULTI_HEAD = auto()  # latent is projected up to keys and values: fewest FLOPs for many queries (prefill)
    ABSORBED = auto()  # the up-projections are folded into query and output: reads latent only (decode)


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Tokens of several sequences, ragged, each sequence's new tokens contiguous and in order.

    Attributes:
        token_ids: ``[tokens]`` int64.
        positions: ``[tokens]`` int64, from the sequence's start.
        slots: ``[tokens]`` int64, ``block * block_tokens + offset``: where each token's latent is written.
        query_tokens: ``[sequences]`` int32 on the CPU, new tokens of each sequence.
        total_tokens: ``[sequences]`` int32 on the CPU, cached and new.
        block_tables: ``[sequences, max_blocks]`` int32, the blocks of each sequence in order, padded with 0.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_tokens: torch.Tensor
    total_tokens: torch.Tensor
    block_tables: torch.Tensor

    @property
    def tokens(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def sequences(self) -> int:
        return int(self.query_tokens.shape[0])
