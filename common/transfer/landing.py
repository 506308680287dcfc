"""From the arena into the pool: one pass that copies blocks and hashes what it copied."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from common.kv.tags import skipped_words
from kernels.block_tag_ref import block_hash


class Landing(Protocol):
    def land(self, slots: Sequence[int], blocks: Sequence[int], full: Sequence[bool]) -> list[int]:
        """Copy arena slot i into pool block i and return the content hashes of the copies.

        Called on the reader's thread; copies are complete on return. What fails verification is never used.
        """
        ...


class HostLanding:
    """Landing in host memory. `arena` [slots, ...] and `pool` [blocks, ...] are contiguous with equal blocks."""

    def __init__(self, arena: Tensor, pool: Tensor, mtp_slot_bytes: int) -> None:
        self._arena = arena.view(len(arena), -1).view(torch.int32)
        self._pool = pool.view(len(pool), -1).view(torch.int32)
        block_bytes = self._pool.shape[1] * 4
        self._skip = {full: skipped_words(block_bytes, mtp_slot_bytes, full) for full in (False, True)}

    def land(self, slots: Sequence[int], blocks: Sequence[int], full: Sequence[bool]) -> list[int]:
        hashes = []
        for slot, block, is_full in zip(slots, blocks, full, strict=True):
            copy = self._pool[block]
            copy.copy_(self._arena[slot])
            hashes.append(block_hash(copy, self._skip[is_full]))
        return hashes
