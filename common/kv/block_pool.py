"""Bookkeeping of one instance's KV blocks: allocation, references, the prefix cache and its eviction.

Cached blocks form a tree by parent hash. Eviction takes the least recently used leaf that nobody references, so a
cached block's whole prefix is cached too. `activity` of a cached block is its references plus its active children; a
block with none can be reclaimed (after its descendants), and changes of it climb only as far as they turn a zero.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.errors import InternalError, Overloaded
from common.kv.block_states import BlockState, check_block_move

_NO_BLOCK = -1
_RETRY_AFTER_S = 0.1  # about one long step, after which blocks may have come back


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """`free + owned + cached == total`. `reclaimable` are cached blocks that allocation may evict."""

    free: int
    owned: int
    cached: int
    reclaimable: int
    total: int

    @property
    def available(self) -> int:
        """How many blocks one allocation could get."""
        return self.free + self.reclaimable

    @property
    def idle(self) -> bool:
        """Nobody holds a reference."""
        return self.owned == 0 and self.reclaimable == self.cached


class BlockPool:
    """Pool of blocks numbered from 0; their memory is the engine's. Not thread-safe: the engine thread owns it."""

    def __init__(self, total_blocks: int) -> None:
        self._states = [BlockState.FREE] * total_blocks
        self._references = [0] * total_blocks
        self._free = list(range(total_blocks))  # a heap: low numbers first keeps sequences contiguous for transfers
        self._hashes: list[bytes] = [b""] * total_blocks
        self._parents = [_NO_BLOCK] * total_blocks
        self._children = [0] * total_blocks
        self._activity = [0] * total_blocks
        self._last_use = [0] * total_blocks
        self._by_hash: dict[bytes, int] = {}
        self._leaves: list[tuple[int, int]] = []  # a heap of (last use, block); stale entries are skipped
        self._reclaimable = 0
        self._uses = 0
        self._published: dict[bytes, None] = {}
        self._evicted: dict[bytes, None] = {}

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Take a reference on every block of the longest cached prefix; returns them in sequence order."""
        matched = self._prefix(hashes)
        self.retain(matched)
        return matched

    def cached_prefix_blocks(self, hashes: Sequence[bytes]) -> int:
        """Length of the longest cached prefix; takes no references."""
        return len(self._prefix(hashes))

    def allocate(self, blocks: int) -> list[int]:
        """Own `blocks` blocks with one reference each, ascending; evicts what it must.

        Raises:
            Overloaded: fewer are free or reclaimable; nothing was evicted.
        """
        if blocks < 0:
            raise InternalError(f"cannot allocate {blocks} blocks")
        if blocks > len(self._free) + self._reclaimable:
            counts = self.counts()
            raise Overloaded(f"{blocks} KV blocks wanted, {counts.available} of {counts.total} free", _RETRY_AFTER_S)
        while len(self._free) < blocks:
            self._evict_one()
        taken = [heapq.heappop(self._free) for _ in range(blocks)]
        for block in taken:
            self._move(block, BlockState.OWNED)
            self._references[block] = 1
        return taken

    def retain(self, blocks: Iterable[int]) -> None:
        """Take one more reference on each block, e.g. for a lease."""
        for block in blocks:
            state = self._states[block]
            if state is BlockState.FREE:
                raise InternalError(f"block {block} is free and cannot be referenced")
            self._references[block] += 1
            if state is BlockState.CACHED:
                self._activate(block)

    def publish(self, block: int, chain_hash: bytes, parent: bytes | None) -> bool:
        """Make an owned, complete block part of the prefix cache.

        `parent` is the chain hash of the block before it, None for a sequence's first block.
        False leaves the block owned: another block already has this name, or the parent is not cached, so that no
        lookup could reach it. References stay as they are.
        """
        if self._states[block] is not BlockState.OWNED:
            check_block_move(block, self._states[block], BlockState.CACHED)
        parent_block = _NO_BLOCK if parent is None else self._by_hash.get(parent)
        if chain_hash in self._by_hash or parent_block is None:
            return False
        self._move(block, BlockState.CACHED)
        self._by_hash[chain_hash] = block
        self._hashes[block] = chain_hash
        self._parents[block] = parent_block
        self._activity[block] = self._references[block]
        if parent_block != _NO_BLOCK:
            self._children[parent_block] += 1
            self._activate(parent_block)
        if chain_hash in self._evicted:
            del self._evicted[chain_hash]
        else:
            self._published[chain_hash] = None
        return True

    def release(self, blocks: Iterable[int]) -> None:
        """Give one reference on each block back. Unreferenced owned blocks become free, cached ones reclaimable."""
        self._uses += 1
        for block in blocks:
            if self._references[block] <= 0:
                raise InternalError(f"block {block} is {self._states[block].value} and has no reference to give back")
            self._references[block] -= 1
            if self._states[block] is BlockState.CACHED:
                self._deactivate(block)
            elif self._references[block] == 0:
                self._move(block, BlockState.FREE)
                heapq.heappush(self._free, block)

    def published_hashes(self) -> list[bytes]:
        """Drain the names that came since the last drain and are still cached."""
        drained, self._published = list(self._published), {}
        return drained

    def evicted_hashes(self) -> list[bytes]:
        """Drain the names that an earlier drain published and that are gone."""
        drained, self._evicted = list(self._evicted), {}
        return drained

    def cached_hashes(self) -> frozenset[bytes]:
        """Every name in the cache now, for repair of the index."""
        return frozenset(self._by_hash)

    def state(self, block: int) -> BlockState:
        return self._states[block]

    def references(self, block: int) -> int:
        return self._references[block]

    def counts(self) -> BlockCounts:
        cached, free, total = len(self._by_hash), len(self._free), len(self._states)
        return BlockCounts(free, total - free - cached, cached, self._reclaimable, total)

    def check(self) -> None:
        """Recount everything from the blocks alone and raise InternalError where the books disagree."""
        states = self._states
        cached = {block for block, state in enumerate(states) if state is BlockState.CACHED}
        free = {block for block, state in enumerate(states) if state is BlockState.FREE}
        self._check(free == set(self._free) and len(free) == len(self._free), "the free list")
        self._check(cached == set(self._by_hash.values()), "the hash table")
        self._check(all(self._by_hash.get(self._hashes[block]) == block for block in cached), "the hash table")
        unreferenced = {block for block, count in enumerate(self._references) if count == 0}
        self._check(unreferenced - cached == free, "references")
        activity = {block: self._references[block] for block in cached}
        children = dict.fromkeys(cached, 0)
        for block in cached:
            parent = self._parents[block]
            if parent != _NO_BLOCK:
                self._check(parent in cached, f"the parent of {block}")
                children[parent] += 1
        for block in self._leaf_first(cached, dict(children)):
            parent = self._parents[block]
            if activity[block] and parent != _NO_BLOCK:
                activity[parent] += 1
        self._check(all(self._children[block] == children[block] for block in cached), "children")
        self._check(all(self._activity[block] == activity[block] for block in cached), "activity")
        self._check(self._reclaimable == sum(count == 0 for count in activity.values()), "reclaimable blocks")
        leaves = {block for block in cached if not activity[block] and not children[block]}
        known = {block for use, block in self._leaves if self._is_evictable(use, block)}
        self._check(leaves == known, "evictable leaves")
        self._check(not set(self._published) & set(self._evicted), "changes for the index")

    def _leaf_first(self, cached: set[int], children: dict[int, int]) -> list[int]:
        order = [block for block in cached if not children[block]]
        for block in order:  # grows while it is walked
            parent = self._parents[block]
            if parent != _NO_BLOCK:
                children[parent] -= 1
                if not children[parent]:
                    order.append(parent)
        self._check(len(order) == len(cached), "the tree (it has a cycle)")
        return order

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            raise InternalError(f"block pool: {what} disagree with the blocks ({self.counts()})")

    def _prefix(self, hashes: Sequence[bytes]) -> list[int]:
        matched: list[int] = []
        for chain_hash in hashes:
            block = self._by_hash.get(chain_hash)
            if block is None:
                break
            matched.append(block)
        return matched

    def _activate(self, block: int) -> None:
        while block != _NO_BLOCK:
            self._activity[block] += 1
            if self._activity[block] > 1:
                return
            self._reclaimable -= 1
            block = self._parents[block]

    def _deactivate(self, block: int) -> None:
        while block != _NO_BLOCK:
            self._activity[block] -= 1
            if self._activity[block] > 0:
                return
            self._reclaimable += 1
            self._last_use[block] = self._uses
            self._offer_leaf(block)
            block = self._parents[block]

    def _offer_leaf(self, block: int) -> None:
        if self._children[block] or self._activity[block]:
            return
        if len(self._leaves) > 2 * len(self._states) + 64:
            self._leaves = sorted({entry for entry in self._leaves if self._is_evictable(*entry)})
        heapq.heappush(self._leaves, (self._last_use[block], block))

    def _is_evictable(self, last_use: int, block: int) -> bool:
        return (
            self._states[block] is BlockState.CACHED
            and not self._activity[block]
            and not self._children[block]
            and self._last_use[block] == last_use
        )

    def _evict_one(self) -> None:
        while self._leaves:
            last_use, block = heapq.heappop(self._leaves)
            if self._is_evictable(last_use, block):
                self._evict(block)
                return
        raise InternalError(f"no evictable leaf among {self._reclaimable} reclaimable blocks")

    def _evict(self, block: int) -> None:
        self._move(block, BlockState.FREE)
        self._reclaimable -= 1
        chain_hash, parent = self._hashes[block], self._parents[block]
        del self._by_hash[chain_hash]
        self._hashes[block], self._parents[block] = b"", _NO_BLOCK
        heapq.heappush(self._free, block)
        if chain_hash in self._published:
            del self._published[chain_hash]
        else:
            self._evicted[chain_hash] = None
        if parent != _NO_BLOCK:
            self._children[parent] -= 1
            self._offer_leaf(parent)

    def _move(self, block: int, after: BlockState) -> None:
        check_block_move(block, self._states[block], after)
        self._states[block] = after
