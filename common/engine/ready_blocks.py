"""From a block that has been computed to one that others may read: hash, publish, tag."""

from common.engine.events import ReadyBlock
from common.engine.latent_pool import LatentPool
from common.kv.block_pool import BlockPool
from common.kv.tags import tag


class ReadyBlocks:
    """Completes blocks of one pool. A shared block's content hash is taken once, when it was computed: a block that
    changed under us afterwards fails its reader's check instead of being named anew.
    """

    def __init__(self, pool: BlockPool, latent: LatentPool, incarnation: int, *, has_mtp: bool) -> None:
        self._pool = pool
        self._latent = latent
        self._incarnation = incarnation
        self._has_mtp = has_mtp
        self._content_hashes = [0] * latent.blocks

    def complete(self, blocks: list[int], hashes: list[bytes], first: int, end: int) -> None:
        """Hash and publish the full blocks `first` to `end` (exclusive) of a sequence with these blocks and names."""
        fresh = blocks[first:end]
        if not fresh:
            return
        contents = self._latent.content_hashes(fresh, full=True, has_mtp=self._has_mtp)
        for index, block, content in zip(range(first, end), fresh, contents, strict=True):
            self._content_hashes[block] = content
            self._pool.publish(block, hashes[index], hashes[index - 1] if index else None)

    def full(self, blocks: list[int], hashes: list[bytes], first: int, end: int) -> list[ReadyBlock]:
        """Announcements of completed blocks."""
        return [
            ReadyBlock(
                index=index,
                block=blocks[index],
                tag=tag(self._content_hashes[blocks[index]], hashes[index], self._incarnation),
                chain_hash=hashes[index],
                tokens=self._latent.block_tokens,
            )
            for index in range(first, end)
        ]

    def partial(self, index: int, block: int, tokens: int) -> ReadyBlock:
        """Announcement of a sequence's last block, which is never shared."""
        (content,) = self._latent.content_hashes([block], full=False, has_mtp=self._has_mtp)
        return ReadyBlock(index, block, tag(content, b"", self._incarnation), b"", tokens)
