"""The index against a plain model, and what it does when Redis does its worst."""

import asyncio
import os
import random
import signal
import time

import pytest

from common.clock import ManualClock, MonotonicClock
from common.errors import DependencyUnavailable, InvalidInput, WorkerLost
from common.kv.hashing import chain_hashes, root_hash
from common.state.connect import connect_redis
from common.state.index_publisher import IndexPublisher
from common.state.index_writer import IndexWriter, Repair
from common.state.keys import Keys, hex_incarnation
from common.state.prefix_index import HeldPrefix, LookupAnswer, LookupCounters, PrefixIndex

PATIENT_S = 5.0  # this machine may be busy; the budget has tests of its own


def prompt(seed: int, blocks: int, tenant: str = "") -> list[bytes]:
    return chain_hashes(root_hash("m", 1, "f", tenant), [seed] * blocks, 1)


@pytest.fixture
def index(redis, keys):
    return PrefixIndex(redis, keys, MonotonicClock(), budget_s=PATIENT_S)


@pytest.fixture
def writer(redis, keys):
    """Makes registered writers."""

    async def make(instance: str, incarnation: int) -> IndexWriter:
        made = IndexWriter(redis, keys, instance, incarnation)
        await made.repair([])
        return made

    return make


async def until(condition, within_s: float = 20.0) -> None:
    give_up_s = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < give_up_s
        await asyncio.sleep(0.01)


async def test_answers_equal_a_plain_model(index, writer):
    """Random caches, closed under prefixes as real ones are."""
    dice = random.Random(3)
    prompts = [prompt(seed, dice.choice([1, 2, 3, 40, 300])) for seed in range(6)]
    caches = {}
    for number in range(5):
        held = {chain_hash for hashes in prompts for chain_hash in hashes[: dice.randint(0, len(hashes))]}
        await (await writer(f"p{number}", 100 + number)).write(sorted(held), [])
        caches[f"p{number}"] = held
    for hashes in prompts:
        for asked in (hashes, hashes[: len(hashes) // 2], [*hashes, *prompt(99, 3)]):
            expected = set()
            for number, (instance, held) in enumerate(caches.items()):
                blocks = next((n for n, chain_hash in enumerate(asked) if chain_hash not in held), len(asked))
                if blocks:
                    expected.add(HeldPrefix(instance, 100 + number, blocks))
            answer = await index.lookup(asked)
            assert answer.known
            assert set(answer.held) == expected


async def test_lookup_is_bounded_and_typed(index, writer):
    hashes = prompt(1, 3000)
    await (await writer("p0", 1)).write(hashes, [])
    assert await index.lookup(hashes) == LookupAnswer((HeldPrefix("p0", 1, 2560),))
    assert await index.lookup([]) == LookupAnswer()
    with pytest.raises(InvalidInput, match="16 bytes each"):
        await index.lookup([b"short"])


async def test_tenants_never_meet(index, writer):
    """B7."""
    p0 = await writer("p0", 1)
    await p0.write(prompt(1, 4, tenant="t1"), [])
    assert (await index.lookup(prompt(1, 4, tenant="t2"))).held == ()
    assert (await index.lookup(prompt(1, 4, tenant="t1"))).held == (HeldPrefix("p0", 1, 4),)


async def test_absent_block_does_not_stop_the_rest_of_a_batch(index, writer):
    """B4."""
    p0 = await writer("p0", 1)
    known = prompt(1, 2)
    await p0.write(known, [])
    await p0.write([], [known[1], prompt(7, 1)[0], known[0]])
    assert (await index.lookup(known)).held == ()
    assert await index.members() == {"p0": 1}
    await p0.write(known, [])
    assert (await index.lookup(known)).held == (HeldPrefix("p0", 1, 2),)


async def test_cache_reset_and_dead_incarnations_leave_nothing(redis, keys, index, writer):
    """B3: gone from lookups at once, and their memory with them."""
    hashes = prompt(1, 5)
    p0, p1, p2 = await writer("p0", 1), await writer("p1", 1), await writer("p2", 1)
    for one in (p0, p1, p2):
        await one.write(hashes, [])
    await p0.reset()
    assert {held.instance for held in (await index.lookup(hashes)).held} == {"p1", "p2"}
    with pytest.raises(DependencyUnavailable, match="awaits repair"):
        await p0.write(hashes, [])
    assert await p0.repair(hashes[:2]) == Repair(missing=2, phantom=0)
    successor = await writer("p1", 2)  # p1 restarts
    await successor.write(hashes[:3], [])
    assert set((await index.lookup(hashes)).held) == {
        HeldPrefix("p0", 1, 2), HeldPrefix("p1", 2, 3), HeldPrefix("p2", 1, 5),
    }  # fmt: skip
    with pytest.raises(DependencyUnavailable, match="lost p1"):
        await p1.write([], hashes)  # what was stopped and goes on changes nothing
    with pytest.raises(WorkerLost, match="later incarnation of p1"):
        await p1.repair(hashes)
    assert await index.collect({("p0", 1), ("p1", 2)}) == [("p2", 1)]
    assert await index.collect({("p0", 1), ("p1", 2)}) == []
    left = {key async for key in redis.scan_iter(f"tandem:{keys.cluster}:*")}
    alive = [f"{keys.index_prefix}{name}:{hex_incarnation(number)}" for name, number in (("p0", 1), ("p1", 2))]
    assert left == {key.encode() for key in (keys.index_members, *alive)}


async def test_repair_finds_phantoms_and_gaps(redis, keys, index, writer):
    p0 = await writer("p0", 1)
    hashes = prompt(1, 5000)
    await p0.write(hashes, [])
    key = f"{keys.index_prefix}p0:{hex_incarnation(1)}"
    await redis.srem(key, *hashes[10:13])
    await redis.sadd(key, *prompt(2, 2))
    assert await p0.repair(hashes) == Repair(missing=3, phantom=2)
    assert await redis.smembers(key) == set(hashes)
    assert await p0.repair(hashes) == Repair(0, 0)


async def test_publisher_restores_a_wiped_index(own_valkey, cluster):
    """Scenario 8: FLUSHALL, then a restart with nothing."""
    server = own_valkey()
    redis = await connect_redis(server.url, 1.0, 10.0)
    keys = Keys(cluster)
    cache, fresh = prompt(1, 20), []

    async def changes():
        added, fresh[:] = list(fresh), []
        cache.extend(added)
        return added, []

    async def snapshot():
        await changes()
        return cache

    publisher = IndexPublisher(IndexWriter(redis, keys, "p0", 5), changes, snapshot, 0.01, repair_interval_s=0.3)
    index = PrefixIndex(redis, keys, MonotonicClock(), budget_s=PATIENT_S)
    running = asyncio.create_task(publisher.run())

    async def complete():
        asked = prompt(1, 40)[: len(cache) + len(fresh)]
        return (await index.lookup(asked)).held == (HeldPrefix("p0", 5, len(asked)),)

    await until(complete)
    fresh.extend(prompt(1, 40)[20:30])
    await until(complete)
    await redis.flushall()
    fresh.extend(prompt(1, 40)[30:35])
    await until(complete)
    port, directory = server.port, server._log.parent
    server.stop()
    fresh.extend(prompt(1, 40)[35:])
    await until(lambda: asyncio.sleep(0, publisher.counters.failures > 0))
    server.start(port, directory)
    await until(complete)
    assert publisher.counters.repaired_missing >= 60
    running.cancel()
    await asyncio.wait({running})
    await redis.aclose()


async def test_full_redis_makes_writers_wait_and_readers_go_on(own_valkey, cluster):
    """Scenario 9: writes are refused with a typed error, lookups answer, memory stays bounded."""
    server = own_valkey("--maxmemory", "6mb", "--maxmemory-policy", "noeviction")
    redis = await connect_redis(server.url, 5.0, 10.0)
    keys = Keys(cluster)
    writer = IndexWriter(redis, keys, "p0", 1)
    hashes = prompt(1, 200)
    await writer.repair(hashes)

    async def fill():
        while True:
            await writer.write([os.urandom(16) for _ in range(4000)], [])

    with pytest.raises(DependencyUnavailable, match="maxmemory"):
        await asyncio.wait_for(fill(), 60)
    assert writer.dirty
    index = PrefixIndex(redis, keys, MonotonicClock(), budget_s=PATIENT_S)
    assert (await index.lookup(hashes)).held == (HeldPrefix("p0", 1, 200),)
    await redis.config_set("maxmemory", "64mb")
    repair = await writer.repair(hashes)
    assert repair.missing == 0
    assert repair.phantom > 2000
    await redis.aclose()


async def test_silent_redis_costs_the_budget_and_then_nothing(own_valkey, cluster):
    """Scenario 10: a lookup is cut at its budget; after five in a row nobody asks for a second."""
    server = own_valkey()
    redis = await connect_redis(server.url, 1.0, 10.0)
    clock = ManualClock()
    index = PrefixIndex(redis, Keys(cluster), clock, budget_s=0.02)
    os.kill(server.pid, signal.SIGSTOP)
    for _ in range(5):
        assert not (await index.lookup(prompt(1, 3))).known
    assert index.breaker.open
    for _ in range(50):
        assert not (await index.lookup(prompt(1, 3))).known
    assert index.counters == LookupCounters(timed_out=5, skipped=50)
    os.kill(server.pid, signal.SIGCONT)
    clock.advance(1.0)

    async def back():
        clock.advance(1.0)
        return (await index.lookup(prompt(1, 3))).known

    await until(back)
    assert not index.breaker.open
    await redis.aclose()


async def test_a_lookup_never_outlives_its_cancellation(index):
    """At whatever moment of the exchange with Redis it comes; the client's own wait loses some (Python 3.11)."""
    hashes = prompt(1, 64)

    async def look() -> None:
        await index.lookup(hashes)
        await asyncio.sleep(PATIENT_S)

    for turns in range(200):
        looking = asyncio.create_task(look())
        for _ in range(turns % 10):
            await asyncio.sleep(0)
        looking.cancel()
        await asyncio.wait({looking})
        assert looking.cancelled()
