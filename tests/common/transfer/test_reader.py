"""Reading latent from another process, and every way in which that can end."""

import random
import time
from dataclasses import replace

import pytest
import torch

from common.config.cluster import DecodeConfig
from common.errors import LeaseLost, PeerDisconnected, TagMismatch, TransferError, TransferTimeout
from common.transfer.reader import ReaderLimits
from services.decode.rank import reader_limits
from tests.common.transfer.harness import HANDOFF, Destination, Source, names, target, until

KIB = 1024
BLOCK = 64 * KIB
BLOCKS = 40


@pytest.fixture(scope="module", autouse=True)
def over_tcp():
    """Shared memory would finish a read before a fault lands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UCX_TLS", "tcp")
        patch.setenv("UCX_LOG_LEVEL", "fatal")  # destroyed agents' requests are reported as leaks
        yield


@pytest.fixture(scope="module")
def sources(tmp_path_factory, over_tcp):
    """Two sources that outlive every test of the module."""
    pair = [Source(tmp_path_factory.mktemp("pools"), f"p{n}", BLOCKS, BLOCK, incarnation=n + 1) for n in range(2)]
    yield pair
    for source in pair:
        source.close()


@pytest.fixture
def source(sources):
    return sources[0]


@pytest.fixture
def mortal(tmp_path):
    """A source that the test may end."""
    source = Source(tmp_path, "mortal", 4, BLOCK)
    yield source
    source.close()


@pytest.fixture
def start():
    """Starts destinations that end with the test."""
    started = []

    def start_one(**kwargs):
        started.append(Destination(f"d{len(started)}", **({"slots": 8, "blocks": 40, "block_bytes": BLOCK} | kwargs)))
        return started[-1]

    yield start_one
    for destination in started:
        destination.close()


def assert_idle(destination):
    until(lambda: destination.reader.slots().free == destination.reader.slots().total, "landing slots free again")


def same(source, source_blocks, destination, destination_blocks):
    return torch.equal(destination.pool[destination_blocks], torch.from_numpy(source.blocks[source_blocks]))


def test_blocks_land_where_they_belong_while_others_are_still_computed(source, start):
    destination = start(slots=6)
    source_blocks, destination_blocks = list(range(20, 3, -1)), list(range(2, 36, 2))
    hashes = names(1, 16)  # the 17th block is partial
    reader = destination.reader
    reader.start(target(source, "w", destination_blocks, hashes, first_block=2))
    reader.announce("w", source.ready(range(10), source_blocks, hashes))
    until(lambda: reader.counters.landed_blocks == 8, "announced blocks")
    assert destination.outcomes.empty
    assert same(source, source_blocks[2:10], destination, destination_blocks[2:10])
    assert not destination.pool[destination_blocks[:2]].any()  # not asked for
    reader.announce("w", source.ready(range(8, 17), source_blocks, hashes))  # two of them again
    until(lambda: reader.counters.landed_blocks == 15, "all blocks")
    reader.handoff("w", HANDOFF)
    kind, work_id, exposed_s = destination.outcomes.next()
    assert (kind, work_id) == ("landed", "w")
    assert exposed_s < 1.0  # nothing was left to read
    assert same(source, source_blocks[2:], destination, destination_blocks[2:])
    assert not destination.pool[1::2].any()
    assert_idle(destination)


def test_wholly_cached_prefix_needs_only_the_handoff(source, start):
    destination = start()
    destination.reader.start(target(source, "w", [0, 1, 2], names(1, 3), first_block=3))
    destination.reader.handoff("w", HANDOFF)
    assert destination.outcomes.next()[:2] == ("landed", "w")


def test_64_transfers_at_once_never_mix(sources, start):
    """C5."""
    run_many(sources, start, rounds=1)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_10_000_transfers_never_mix(sources, start):
    """C5 in full length."""
    run_many(sources, start, rounds=157)


def run_many(sources, start, rounds):
    dice = random.Random(5)
    sources = [source.cut(KIB) for source in sources]
    destination = start(slots=96, blocks=64 * 200, block_bytes=KIB)
    sent = {id(source): source.ready(range(400), list(range(400)), []) for source in sources}
    reader = destination.reader
    for _ in range(rounds):
        destination.pool.zero_()
        free = list(range(64 * 200))
        dice.shuffle(free)
        expected, to_announce = {}, []
        for number in range(64):
            source, count = dice.choice(sources), dice.choice([1, 2, 3, dice.randint(1, 200), 200])
            source_blocks = dice.sample(range(400), count)
            destination_blocks, free = free[:count], free[count:]
            expected[f"w{number}"] = (source, source_blocks, destination_blocks)
            reader.start(target(source, f"w{number}", destination_blocks, [], within_s=120.0))
            tags = sent[id(source)]
            blocks = [replace(tags[block], index=index) for index, block in enumerate(source_blocks)]
            while blocks:
                size = dice.randint(1, 50)
                to_announce.append((f"w{number}", blocks[:size]))
                blocks = blocks[size:]
        dice.shuffle(to_announce)
        for work_id, blocks in to_announce:
            reader.announce(work_id, blocks)
        for work_id in expected:
            reader.handoff(work_id, HANDOFF)
        ended = [destination.outcomes.next(within_s=120.0) for _ in expected]
        assert [outcome for outcome in ended if outcome[0] != "landed"] == []
        assert {work_id for _, work_id, _ in ended} == set(expected)
        assert all(same(source, theirs, destination, ours) for source, theirs, ours in expected.values())
        assert not destination.pool[free].any()
    assert_idle(destination)


@pytest.mark.parametrize("wrong", ["content", "place", "incarnation"])
def test_wrong_block_is_never_used(source, start, wrong):
    destination = start()
    hashes = names(1, 4)
    announced = source.ready(range(4), [0, 1, 2, 3], hashes)
    expected = hashes
    if wrong == "content":
        source.blocks[2, 17] ^= 1 << 30
    elif wrong == "place":
        expected = [*hashes[:2], names(2, 1)[0], hashes[3]]
    else:
        source.hello = replace(source.hello, incarnation=78)
    destination.reader.start(target(source, "w", [0, 1, 2, 3], expected))
    destination.reader.announce("w", announced)
    destination.reader.handoff("w", HANDOFF)
    kind, work_id, error = destination.outcomes.next()
    assert (kind, work_id) == ("failed", "w")
    assert isinstance(error, TagMismatch)
    assert destination.reader.counters.mismatched == 1
    assert_idle(destination)


def stuck_read(source, destination, work_id, within_s, count=4):
    """A transfer whose read is posted to a stopped source."""
    blocks = list(range(count))
    destination.warm(source)
    ready = source.ready(range(count), blocks, [])
    source.stop()
    before = destination.reader.slots().landing
    destination.reader.start(target(source, work_id, blocks, [], within_s))
    destination.reader.announce(work_id, ready)
    destination.reader.handoff(work_id, HANDOFF)
    until(lambda: destination.reader.slots().landing == before + count, "posted read")


def test_lease_that_ends_during_a_slow_read_is_noticed(source, start):
    """C7: the block is given to somebody else and rewritten while the read is under way."""
    destination = start()
    stuck_read(source, destination, "w", within_s=30.0)
    source.blocks[3, -1] += 1
    source.resume()
    kind, work_id, error = destination.outcomes.next()
    assert (kind, work_id) == ("failed", "w")
    assert isinstance(error, TagMismatch)
    assert_idle(destination)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_50_killed_sources_leave_every_slot_free(tmp_path, source, start):
    """C3 in full length: each is killed with a read under way; others' transfers go on in the same arena."""
    destination = start()
    destination.warm(source)
    for number in range(50):
        mortal = Source(tmp_path, f"mortal{number}", 4, BLOCK)
        try:
            stuck_read(mortal, destination, f"lost{number}", within_s=30.0)
            killed_s = time.monotonic()
            mortal.kill()
            kind, work_id, error = destination.outcomes.next()
            assert (kind, work_id) == ("failed", f"lost{number}")
            assert isinstance(error, PeerDisconnected)
            assert_idle(destination)
            assert time.monotonic() - killed_s < 2.0
        finally:
            mortal.close()
        destination.reader.start(target(source, f"w{number}", [4, 5, 6], []))
        destination.reader.announce(f"w{number}", source.ready(range(3), [0, 1, 2], []))
        destination.reader.handoff(f"w{number}", HANDOFF)
        assert destination.outcomes.next()[:2] == ("landed", f"w{number}")
        assert same(source, [0, 1, 2], destination, [4, 5, 6])


def test_killed_source_fails_at_once(mortal, start):
    """C3."""
    destination = start()
    stuck_read(mortal, destination, "w", within_s=30.0)
    killed_s = time.monotonic()
    mortal.kill()
    kind, work_id, error = destination.outcomes.next()
    assert (kind, work_id) == ("failed", "w")
    assert isinstance(error, PeerDisconnected)
    assert time.monotonic() - killed_s < 2.0
    assert_idle(destination)
    destination.reader.start(target(mortal, "again", [0], [], within_s=20.0))
    assert destination.outcomes.next()[:2] == ("failed", "again")


def test_late_data_reaches_draining_slots_and_nothing_else(sources, start):
    """C4: cancelled mid-transfer, blocks reused by a new request at once, then the old data arrives."""
    slow, quick = sources
    destination = start()
    destination.warm(quick)
    stuck_read(slow, destination, "old", within_s=30.0)
    destination.reader.abort("old")
    assert destination.outcomes.next()[:2] == ("stopped", "old")
    assert destination.reader.slots().draining == 4
    destination.reader.start(target(quick, "new", [0, 1, 2, 3], []))
    destination.reader.announce("new", quick.ready(range(4), [0, 1, 2, 3], []))
    destination.reader.handoff("new", HANDOFF)
    assert destination.outcomes.next()[:2] == ("landed", "new")
    assert destination.reader.slots().draining == 4
    assert not destination.arena[:4].any()
    slow.resume()
    assert_idle(destination)
    assert torch.equal(destination.arena[:4], torch.from_numpy(slow.blocks[:4]))  # it did come
    assert same(quick, [0, 1, 2, 3], destination, [0, 1, 2, 3])
    assert destination.outcomes.empty


def test_stopped_source_meets_deadline_cap_and_fence(mortal, start):
    destination = start(limits=ReaderLimits(slots_per_peer=4))
    stuck_read(mortal, destination, "late", within_s=0.3)
    kind, work_id, error = destination.outcomes.next()
    assert (kind, work_id) == ("failed", "late")
    assert isinstance(error, TransferTimeout)
    assert destination.reader.slots().draining == 4
    destination.reader.start(target(mortal, "refused", [0], []))
    kind, work_id, error = destination.outcomes.next()
    assert (kind, work_id) == ("failed", "refused")
    assert "keeps 4 landing slots draining" in str(error)
    destination.reader.fence(mortal.name, mortal.hello.incarnation)
    assert_idle(destination)
    destination.arena.fill_(9)
    mortal.resume()
    watched_until_s = time.monotonic() + 0.5
    while time.monotonic() < watched_until_s:
        assert (destination.arena == 9).all()  # nothing of the fenced read comes
        time.sleep(0.01)


def test_one_stopped_peer_does_not_take_all_slots(sources, start):
    """With the limits that a decode instance's reader gets from its configuration."""
    slow, quick = sources
    limits = reader_limits(DecodeConfig(landing_blocks=6, draining_blocks_limit=4))
    destination = start(slots=6, limits=replace(limits, blocks_per_read=3))
    destination.warm(quick)
    destination.warm(slow)
    ready = slow.ready(range(8), list(range(8)), [])
    slow.stop()
    destination.reader.start(target(slow, "slow", list(range(8)), []))
    destination.reader.announce("slow", ready)
    until(lambda: destination.reader.slots().landing == 4, "slots of the slow peer")
    destination.reader.start(target(quick, "quick", list(range(8, 12)), []))
    destination.reader.announce("quick", quick.ready(range(4), list(range(4)), []))
    destination.reader.handoff("quick", HANDOFF)
    assert destination.outcomes.next()[:2] == ("landed", "quick")
    slow.resume()
    destination.reader.handoff("slow", HANDOFF)
    assert destination.outcomes.next()[:2] == ("landed", "slow")
    assert same(slow, list(range(8)), destination, list(range(8)))
    assert_idle(destination)


def test_stream_error_abort_and_close_end_transfers(source, start):
    destination = start()
    reader = destination.reader
    reader.abort("never started")
    assert destination.outcomes.next()[:2] == ("stopped", "never started")
    reader.start(target(source, "a", [0], []))
    reader.fail("a", LeaseLost("expired"))
    kind, work_id, error = destination.outcomes.next()
    assert (kind, work_id, type(error)) == ("failed", "a", LeaseLost)
    reader.start(target(source, "b", [0], []))
    reader.announce("b", source.ready(range(2), [0, 1], []))
    kind, work_id, error = destination.outcomes.next()
    assert (kind, work_id) == ("failed", "b")
    assert "block 1 of 1 was announced" in str(error)
    reader.start(target(source, "c", [0], []))
    reader.announce("c", [replace(ready, block=9999) for ready in source.ready(range(1), [0], [])])
    kind, work_id, error = destination.outcomes.next()
    assert (kind, work_id) == ("failed", "c")
    assert isinstance(error, TransferError)
    reader.start(target(source, "d", [0], []))
    reader.close()
    assert destination.outcomes.next()[:2] == ("failed", "d")
    assert not reader.alive


def test_a_replaced_peers_agent_goes_and_one_in_use_stays(source, start):
    destination = start()
    destination.warm(source)
    key = f"{source.name}@{source.hello.incarnation:x}"
    hashes = names(9, 1)
    destination.reader.start(target(source, "w", [0], hashes))
    destination.reader.part(source.name, source.hello.incarnation)
    destination.reader.announce("w", source.ready(range(1), [5], hashes))
    destination.reader.handoff("w", HANDOFF)
    assert destination.outcomes.next()[:2] == ("landed", "w")
    destination.reader.part(source.name, source.hello.incarnation)
    until(lambda: destination.reader._peers.agent(key) is None, "agent gone")
    assert_idle(destination)


def test_unequal_blocks_are_refused(source, start):
    destination = start(block_bytes=8 * KIB)
    destination.reader.start(target(source, "w", [0], []))
    kind, _, error = destination.outcomes.next()
    assert kind == "failed"
    assert "65536 bytes at p0, 8192 here" in str(error)
