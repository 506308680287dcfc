"""The memory behind a BlockPool: one tensor, block-major, so that a block of all layers is one contiguous read."""

import torch

from kernels.block_tag_ref import block_hashes

WORD_BYTES = 4


class LatentPool:
    """``tensor`` is ``[blocks, layers, block_tokens, width]``, the MTP layer last.

    Only bytes live here; which block belongs to whom is the BlockPool's business.
    """

    def __init__(
        self, blocks: int, layers: int, block_tokens: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.tensor = torch.zeros(blocks, layers, block_tokens, width, dtype=dtype, device=device)
        self.block_tokens = block_tokens
        self.block_bytes = layers * block_tokens * width * self.tensor.element_size()
        if self.block_bytes % WORD_BYTES:
            raise ValueError(f"a block of {self.block_bytes} bytes is not whole words of {WORD_BYTES}")
        self._slot_words = width * self.tensor.element_size() // WORD_BYTES

    @property
    def blocks(self) -> int:
        return int(self.tensor.shape[0])

    @property
    def words(self) -> torch.Tensor:
        """The pool as ``[blocks, words]`` int32."""
        return self.tensor.view(self.blocks, -1).view(torch.int32)

    def content_hashes(self, blocks: list[int], *, full: bool, has_mtp: bool) -> list[int]:
        """64-bit hashes of blocks as they are now.

        A full block's last MTP slot is left out: it depends on the next block's first token, and the next block is
        not part of what a shared block's name promises.
        """
        words = self.words
        total = int(words.shape[1])
        skip = ((total - self._slot_words, total),) if full and has_mtp else ()
        hashes = block_hashes(words, torch.tensor(blocks, dtype=torch.int64, device=words.device), skip)
        return [value & 0xFFFFFFFFFFFFFFFF for value in hashes.tolist()]

    def copy_from(self, source: "LatentPool", source_blocks: list[int], blocks: list[int]) -> None:
        """Copy whole blocks of another pool of this process into `blocks` of this one, in order."""
        here = torch.tensor(blocks, dtype=torch.int64, device=self.tensor.device)
        there = torch.tensor(source_blocks, dtype=torch.int64, device=source.tensor.device)
        self.tensor[here] = source.tensor[there].to(self.tensor.device)
