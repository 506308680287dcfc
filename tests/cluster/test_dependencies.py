"""Redis and NATS go away and come back, or lose what they knew: requests go on, and what is known is true again.

`make test` has a short absence of Redis; the rest, and longer absences, are in `make test-faults`.
"""

import asyncio
import re
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import pytest
import redis

from common.rpc.clients import InferenceClient
from common.rpc.inference_data import Explanation
from common.state.keys import Keys
from services.launcher.embedded import EmbeddedServer
from tests.cluster.running import RunningCluster, ask, greedy
from tests.cluster.test_deaths import prompt
from tests.cluster.test_metrics import addresses, get
from tests.cluster.test_stopped import clear_seeds
from tests.oracle.transformers_model import Oracle

LENGTH, BLOCKS, TOKENS = 90, 5, 8
TRUE_AGAIN_WITHIN_S = 30.0
EXTRA_FIRST_TOKEN_S = 0.05
CACHED = re.compile(r'tandem_kv_blocks\{.*role="prefill",state="cached"\} (\S+)')
PHANTOMS = [bytes([number]) * 16 for number in range(40)]

Index = dict[str, frozenset[bytes]]


@dataclass(frozen=True)
class Served:
    explanation: Explanation
    first_token_s: float


async def serve(client: InferenceClient, oracle: Oracle, seed: int) -> Served:
    """One request, exact."""
    begun_s, came_s = time.monotonic(), list[float]()
    request = greedy(prompt(seed, LENGTH), TOKENS)
    answer = await ask(client, request, lambda _count: came_s.append(time.monotonic()))
    assert answer.token_ids == oracle.greedy(prompt(seed, LENGTH), TOKENS), f"prompt {seed}"
    assert answer.usage.completion_tokens == TOKENS
    return Served(await client.explain(answer.request_id), came_s[0] - begun_s)


async def serve_for(client: InferenceClient, oracle: Oracle, seeds: list[int], seconds: float) -> AsyncIterator[Served]:
    """Requests one after the other, each prompt in turn, for so long and for each prompt once."""
    until_s, number = time.monotonic() + seconds, 0
    while number < len(seeds) or time.monotonic() < until_s:
        yield await serve(client, oracle, seeds[number % len(seeds)])
        number += 1


def index_of(running: RunningCluster) -> Index:
    """What Redis says that each prefill instance holds."""
    keys = Keys(running.cluster.config.cluster)
    with redis.Redis.from_url(running.cluster.config.redis.url) as client:
        members = client.hgetall(keys.index_members)
        return {
            name.decode(): frozenset(client.smembers(f"{keys.index_prefix}{name.decode()}:{incarnation.decode()}"))
            for name, incarnation in members.items()
        }


def cached_blocks(running: RunningCluster) -> list[int]:
    """How many blocks each prefill instance does hold, by its own books."""
    found = (CACHED.search(get(address, "/metrics")) for address in addresses(running))
    return [int(float(match[1])) for match in found if match is not None]


def settled_index(running: RunningCluster) -> Index:
    """The index once it has every block that instances hold and no other number of them."""

    def settled() -> bool:
        return sorted(len(blocks) for blocks in index_of(running).values()) == sorted(cached_blocks(running))

    running.wait_idle()
    running.wait_for("the index is as large as the caches", settled, TRUE_AGAIN_WITHIN_S)
    return index_of(running)


@contextmanager
def absent(server: EmbeddedServer, running: RunningCluster) -> Iterator[None]:
    """Stopped meanwhile; what it knew is lost, but for a snapshot that lies beside its log."""
    server.stop()
    try:
        yield
    finally:
        server.start(server.port, running.cluster.run.logs)


def all_ready(running: RunningCluster) -> bool:
    return [instance.state for instance in running.instances()] == ["ready"] * 4


@pytest.fixture(scope="module")
def seeds(oracle: Oracle) -> list[int]:
    """Of prompts that no other test asks."""
    return clear_seeds(oracle, LENGTH, TOKENS, 20, first=9000)


async def hits(client: InferenceClient, oracle: Oracle, seeds: list[int]) -> int:
    """For how many of these prompts the index names an instance that holds all that can be reused."""
    served = [await serve(client, oracle, seed) for seed in seeds]
    return sum(one.explanation.predicted_cached_blocks == BLOCKS for one in served)


async def hits_again(client: InferenceClient, oracle: Oracle, seed: int) -> None:
    give_up_s = time.monotonic() + TRUE_AGAIN_WITHIN_S
    while not await hits(client, oracle, [seed]):
        assert time.monotonic() < give_up_s, f"no hit came back within {TRUE_AGAIN_WITHIN_S} s"


@pytest.mark.parametrize("down_s", [4.0, pytest.param(30.0, marks=pytest.mark.faults)])
def test_redis_goes_and_comes_back(pairs: RunningCluster, oracle: Oracle, seeds: list[int], down_s: float) -> None:
    """Longer than a worker's lease: nobody is dropped, placement goes by load alone, and hits return by themselves."""
    known, fresh, others = seeds[:4], seeds[4:12], seeds[12:]
    valkey = pairs.cluster.servers["valkey"]

    async def scenario() -> None:
        async with pairs.client() as client:
            normal = [await serve(client, oracle, seed) for seed in [*known, *fresh]]
            await asyncio.to_thread(settled_index, pairs)
            assert await hits(client, oracle, known) == len(known)
            with absent(valkey, pairs):
                down = [served async for served in serve_for(client, oracle, [*others, *known], down_s)]
            assert {served.explanation.predicted_cached_blocks for served in down} == {0}
            assert await asyncio.to_thread(all_ready, pairs)
            await hits_again(client, oracle, known[0])
            await asyncio.to_thread(settled_index, pairs)
            assert await hits(client, oracle, seeds) == len(seeds)
            extra_s = first_token_s(down[: len(others)]) - first_token_s(normal)
            assert down_s < 10 or extra_s < EXTRA_FIRST_TOKEN_S

    asyncio.run(scenario())
    assert all_ready(pairs)


def first_token_s(served: list[Served]) -> float:
    return statistics.median(one.first_token_s for one in served)


@pytest.mark.faults
def test_the_index_is_true_again_after_it_was_wiped(pairs: RunningCluster, oracle: Oracle, seeds: list[int]) -> None:
    async def scenario() -> None:
        async with pairs.client() as client:
            for seed in seeds[:8]:
                await serve(client, oracle, seed)
            before = await asyncio.to_thread(settled_index, pairs)
            with redis.Redis.from_url(pairs.cluster.config.redis.url) as store:
                store.flushall()
            await serve(client, oracle, seeds[8])  # while nothing is known
            after = await asyncio.to_thread(settled_index, pairs)
            assert before.keys() == after.keys()
            assert all(before[instance] <= after[instance] for instance in before)
            assert await hits(client, oracle, seeds[:9]) == 9

    asyncio.run(scenario())
    pairs.wait_for("all have leases", lambda: all_ready(pairs))


@pytest.mark.faults
def test_an_old_snapshot_is_put_right(pairs: RunningCluster, oracle: Oracle, seeds: list[int]) -> None:
    """Redis restarts with entries that nobody holds and without those that came since."""
    valkey = pairs.cluster.servers["valkey"]
    keys = Keys(pairs.cluster.config.cluster)
    snapshot = pairs.cluster.run.logs / "dump.rdb"

    async def scenario() -> None:
        async with pairs.client() as client:
            for seed in seeds[:8]:
                await serve(client, oracle, seed)
            before = await asyncio.to_thread(settled_index, pairs)
            with redis.Redis.from_url(valkey.url) as store:
                for name, incarnation in store.hgetall(keys.index_members).items():
                    blocks = f"{keys.index_prefix}{name.decode()}:{incarnation.decode()}"
                    store.srem(blocks, *sorted(before[name.decode()])[::3])
                    store.sadd(blocks, *PHANTOMS)
                store.save()
            with absent(valkey, pairs):
                pass
            wrong = index_of(pairs)
            assert all(wrong[instance].issuperset(PHANTOMS) for instance in before)
            for seed in seeds[:8]:  # whatever the index says, tokens are right
                await serve(client, oracle, seed)
            after = await asyncio.to_thread(settled_index, pairs)
            assert all(before[instance] <= after[instance] for instance in before)
            assert all(after[instance].isdisjoint(PHANTOMS) for instance in before)
            assert await hits(client, oracle, seeds[:8]) == 8

    try:
        asyncio.run(scenario())
    finally:
        snapshot.unlink(missing_ok=True)
    pairs.wait_for("all have leases", lambda: all_ready(pairs))


@pytest.mark.faults
def test_nats_goes_and_comes_back(pairs: RunningCluster, oracle: Oracle, seeds: list[int]) -> None:
    """Serving is unaffected, memory does not grow with what cannot be said, and loads are heard again."""
    nats = pairs.cluster.servers["nats"]

    async def scenario() -> None:
        async with pairs.client() as client:
            for seed in seeds[:4]:
                await serve(client, oracle, seed)
            await asyncio.to_thread(settled_index, pairs)
            before = memory(pairs)
            with absent(nats, pairs):
                down = [served async for served in serve_for(client, oracle, seeds, 30.0)]
                assert await asyncio.to_thread(all_ready, pairs)
                assert memory(pairs) < 1.05 * before
            assert {served.explanation.predicted_cached_blocks for served in down[len(seeds) :]} == {BLOCKS}

    asyncio.run(scenario())
    # Only load reports say that an instance has let its work go.
    settled_index(pairs)
    assert all_ready(pairs)


def memory(running: RunningCluster) -> int:
    """Bytes resident in all ranks and schedulers."""
    schedulers = [psutil.Process(child.pid) for name, child in running.cluster.children.items() if "node" not in name]
    ranks = [rank for name in running if "node" in name for rank in running.ranks(name)]
    return sum(process.memory_info().rss for process in [*schedulers, *ranks])
