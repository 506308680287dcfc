import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from common.errors import InternalError, Overloaded
from common.kv.block_pool import BlockPool
from common.kv.block_states import BlockState

BLOCKS = 8


def hashes_of(path: str) -> list[bytes]:
    """The chain hashes of a path: each name is the whole prefix, which is what a chain hash stands for."""
    return [path[: end + 1].encode() for end in range(len(path))]


def fill(pool: BlockPool, path: str) -> list[int]:
    """Run a sequence: match, allocate the rest, publish. Returns its blocks, referenced."""
    names = hashes_of(path)
    blocks = pool.match(names)
    for index in range(len(blocks), len(names)):
        blocks += pool.allocate(1)
        assert pool.publish(blocks[index], names[index], names[index - 1] if index else None)
    return blocks


def test_match_takes_the_longest_cached_prefix():
    pool = BlockPool(8)
    blocks = fill(pool, "abc")
    pool.release(blocks)
    assert pool.match(hashes_of("abx")) == blocks[:2]
    assert [pool.references(block) for block in blocks] == [1, 1, 0]
    assert pool.cached_prefix_blocks(hashes_of("abcd")) == 3
    assert pool.match(hashes_of("xbc")) == []
    pool.check()


def test_eviction_is_leaf_first_and_least_recently_used():
    pool = BlockPool(5)
    pool.release(fill(pool, "abc"))
    pool.release(fill(pool, "xy"))
    pool.published_hashes()
    pool.release(pool.match(hashes_of("ab")))  # "abc" stays the oldest leaf, "ab" is now younger than "xy"
    order = []
    for _ in range(5):
        pool.release(pool.allocate(1))
        pool.check()
    held = []
    for _ in range(5):
        held += pool.allocate(1)
        order += pool.evicted_hashes()
    assert order == [b"abc", b"xy", b"x", b"ab", b"a"]


def test_referenced_blocks_and_their_ancestors_are_never_evicted():
    pool = BlockPool(3)
    blocks = fill(pool, "abc")
    pool.release(blocks[:2])  # only the deepest stays referenced
    assert pool.counts().reclaimable == 0
    with pytest.raises(Overloaded, match="1 KV blocks wanted, 0 of 3 free"):
        pool.allocate(1)
    pool.release(blocks[2:])
    assert pool.counts().available == 3
    assert sorted(pool.allocate(3)) == [0, 1, 2]


def test_refused_allocation_evicts_nothing():
    pool = BlockPool(3)
    pool.release(fill(pool, "ab"))
    with pytest.raises(Overloaded):
        pool.allocate(4)
    assert pool.cached_prefix_blocks(hashes_of("ab")) == 2


def test_second_block_of_one_name_stays_private():
    pool = BlockPool(4)
    first, second = pool.allocate(2)
    assert pool.publish(first, b"a", None)
    assert not pool.publish(second, b"a", None)
    assert pool.state(second) is BlockState.OWNED
    child = pool.allocate(1)[0]
    assert pool.publish(child, b"ab", b"a")  # under the first, which it keeps in place
    pool.release([first])
    assert pool.counts().reclaimable == 0
    pool.release([second, child])
    pool.check()
    assert pool.counts().idle


def test_block_whose_parent_is_gone_stays_private():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    assert not pool.publish(block, b"ab", b"a")
    pool.release([block])
    assert pool.counts().free == 2


def test_lease_reference_keeps_a_partial_block():
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.retain(blocks)
    pool.release(blocks)
    with pytest.raises(Overloaded):
        pool.allocate(1)
    pool.release(blocks)
    assert pool.allocate(1) == blocks


def evict_all(pool):
    """By who needs every block."""
    pool.release(pool.allocate(pool.counts().total))


def test_index_sees_net_changes_only():
    pool = BlockPool(2)
    pool.release(fill(pool, "ab"))
    evict_all(pool)
    assert pool.published_hashes() == []
    assert pool.evicted_hashes() == []
    pool.release(fill(pool, "ab"))
    assert pool.published_hashes() == [b"a", b"ab"]
    evict_all(pool)
    pool.release(fill(pool, "a"))
    assert pool.published_hashes() == []
    assert pool.evicted_hashes() == [b"ab"]
    assert pool.cached_hashes() == {b"a"}


def test_illegal_moves_are_internal_errors():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    with pytest.raises(InternalError, match="block 1 cannot go from free to cached"):
        pool.publish(1, b"a", None)
    assert pool.publish(block, b"a", None)
    with pytest.raises(InternalError, match="cannot go from cached to cached"):
        pool.publish(block, b"b", None)
    pool.release([block])
    with pytest.raises(InternalError, match="no reference to give back"):
        pool.release([block])
    with pytest.raises(InternalError, match="block 1 is free"):
        pool.retain([1])
    pool.check()


@pytest.mark.parametrize("broken", ["_references", "_free", "_reclaimable", "_by_hash", "_activity"])
def test_check_finds_broken_books(broken):
    pool = BlockPool(4)
    pool.release(fill(pool, "abc"))
    pool.check()
    match getattr(pool, broken):
        case int():
            pool._reclaimable += 1
        case dict() as table:
            table.popitem()
        case list() as values:
            values[0] += 1
    with pytest.raises(InternalError, match="disagree"):
        pool.check()


class PoolMachine(RuleBasedStateMachine):
    """Compared with a model that keeps plain sets and searches them afresh on every question."""

    sequences = Bundle("sequences")

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(BLOCKS)
        self.references: dict[int, int] = {}
        self.cached: dict[str, int] = {}
        self.used: dict[str, int] = {}
        self.tick = 0
        self.index: set[bytes] = set()

    def reclaimable(self) -> set[str]:
        """A cached name is reclaimable when no cached name under it is referenced."""
        return {
            name
            for name in self.cached
            if not any(self.references[block] for other, block in self.cached.items() if other.startswith(name))
        }

    def evict_model(self) -> None:
        leaves = [
            name
            for name in self.reclaimable()
            if not any(other != name and other.startswith(name) for other in self.cached)
        ]
        oldest = min(leaves, key=lambda name: (self.used[name], self.cached[name]))
        del self.references[self.cached.pop(oldest)]

    @rule(target=sequences, path=st.text("ab", min_size=1, max_size=4))
    def start(self, path):
        """Match a prefix and allocate the rest of a sequence."""
        blocks = self.pool.match(hashes_of(path))
        prefix = next((end for end in range(len(path)) if path[: end + 1] not in self.cached), len(path))
        assert blocks == [self.cached[path[: end + 1]] for end in range(prefix)]
        for block in blocks:
            self.references[block] += 1
        wanted = len(path) - prefix
        free = BLOCKS - len(self.references)
        if wanted > free + len(self.reclaimable()):
            with pytest.raises(Overloaded):
                self.pool.allocate(wanted)
            self.give_back(blocks)
            return multiple()
        for _ in range(wanted - free):
            self.evict_model()
        taken = self.pool.allocate(wanted)
        assert set(taken) == set(sorted(set(range(BLOCKS)) - set(self.references))[:wanted])
        self.references |= dict.fromkeys(taken, 1)
        return (path, blocks + taken)

    @rule(sequence=sequences, count=st.integers(1, 4))
    def publish(self, sequence, count):
        """Publish the first `count` blocks, as far as they are not yet."""
        path, blocks = sequence
        for end, block in enumerate(blocks[:count]):
            name = path[: end + 1]
            if block in self.cached.values():
                continue
            expected = name not in self.cached and (end == 0 or path[:end] in self.cached)
            parent = path[:end].encode() if end else None
            assert self.pool.publish(block, name.encode(), parent) == expected
            if expected:
                self.cached[name] = block

    @rule(target=sequences, sequence=sequences)
    def lease(self, sequence):
        self.pool.retain(sequence[1])
        for block in sequence[1]:
            self.references[block] += 1
        return sequence

    @rule(sequence=consumes(sequences))
    def end(self, sequence):
        self.give_back(sequence[1])

    @rule()
    def drop(self):
        dropped = self.reclaimable()
        counts = self.pool.counts()
        self.pool.release(self.pool.allocate(counts.free + len(dropped)))
        self.tick += 1
        for name in dropped:
            del self.references[self.cached.pop(name)]

    @rule()
    def sync_index(self):
        self.index |= set(self.pool.published_hashes())
        self.index -= set(self.pool.evicted_hashes())
        assert self.index == {name.encode() for name in self.cached} == self.pool.cached_hashes()

    def give_back(self, blocks):
        self.pool.release(blocks)
        self.tick += 1
        active_before = set(self.cached) - self.reclaimable()
        for block in blocks:
            self.references[block] -= 1
            if not self.references[block] and block not in self.cached.values():
                del self.references[block]
        for name in self.reclaimable() & active_before:
            self.used[name] = self.tick

    @invariant()
    def books_agree(self):
        self.pool.check()
        counts = self.pool.counts()
        assert counts.cached == len(self.cached)
        assert counts.owned == len(self.references) - len(self.cached)
        assert counts.reclaimable == len(self.reclaimable())
        assert counts.free + counts.owned + counts.cached == counts.total == BLOCKS
        assert all(self.pool.references(block) == self.references.get(block, 0) for block in range(BLOCKS))


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
