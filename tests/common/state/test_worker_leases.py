import asyncio
import json
import time
from dataclasses import asdict, replace

import pytest

from common.errors import DependencyUnavailable, WorkerLost
from common.state.connect import connect_redis
from common.state.worker_leases import LeaseKeeper, WorkerLeases, WorkerRecord

RECORD = WorkerRecord("p-0", "prefill", "p", "127.0.0.1:5000", 2**62 + 1)


@pytest.fixture
def leases(redis, keys):
    return WorkerLeases(redis, keys)


async def listed(leases, expected, within_s=10.0):
    give_up_s = time.monotonic() + within_s
    while (now := await leases.current()) != expected:
        assert time.monotonic() < give_up_s, f"{now}, not {expected}"
        await asyncio.sleep(0.01)


async def test_lease_is_listed_until_it_lapses_or_ends(leases, redis, keys):
    other = replace(RECORD, instance="a-0", incarnation=7)
    await leases.put(RECORD, ttl_s=60)
    await leases.put(other, ttl_s=60)
    assert await leases.current() == [other, RECORD]
    await leases.end(replace(other, incarnation=6))
    assert len(await leases.current()) == 2
    await leases.end(other)
    await leases.put(RECORD, ttl_s=0.05)
    await listed(leases, [])
    assert await redis.smembers(keys.workers) == set()


async def test_earlier_incarnation_cannot_take_the_name_back(leases):
    await leases.put(RECORD, ttl_s=60)
    with pytest.raises(WorkerLost, match="later incarnation of p-0"):
        await leases.put(replace(RECORD, incarnation=RECORD.incarnation - 1), ttl_s=60)
    later = replace(RECORD, incarnation=RECORD.incarnation + 1, address="127.0.0.1:5001")
    await leases.put(later, ttl_s=60)
    assert await leases.current() == [later]


async def test_keeper_renews_says_changes_and_survives_a_wipe(leases, redis, keys):
    keeper = LeaseKeeper(leases, RECORD, ttl_s=0.6)
    running = asyncio.create_task(keeper.run())
    await listed(leases, [RECORD])
    draining = replace(RECORD, draining=True)
    await keeper.update(draining)
    assert await leases.current() == [draining]
    await redis.delete(keys.worker_prefix + "p-0", keys.workers)
    await listed(leases, [draining])
    running.cancel()
    await asyncio.wait({running})
    await listed(leases, [])


@pytest.mark.parametrize(
    "told",
    [
        "",
        "[1]",
        "{}",
        '{"instance": "x-0"}',
        '{"instance": "x-0", "incarnation": 5}',
        json.dumps(asdict(RECORD) | {"instance": "x-0", "incarnation": "0", "address": None}),
        json.dumps(asdict(RECORD) | {"incarnation": "0"}),  # another's name
    ],
)
async def test_a_record_that_cannot_be_read_hides_nobody_else(leases, redis, keys, caplog, told):
    await leases.put(RECORD, ttl_s=60)
    await redis.sadd(keys.workers, "x-0")
    await redis.set(keys.worker_prefix + "x-0", told)
    assert await leases.current() == [RECORD]
    assert "unreadable" in caplog.text
    mine = replace(RECORD, instance="x-0")
    await leases.end(mine)  # not mine to end
    await leases.put(mine, ttl_s=60)  # nobody's: whoever has the name writes over it
    assert await leases.current() == [RECORD, mine]
    await redis.delete(keys.worker_prefix + "x-0")


async def test_an_unreadable_record_is_logged_once_a_reason_and_counted_each_time(leases, redis, keys, caplog):
    counted = []
    leases.on_unreadable = lambda: counted.append(1)

    def logged():
        return [record for record in caplog.records if "unreadable" in record.getMessage()]

    await redis.sadd(keys.workers, "x-0")
    for told, times, lines in (("", 3, 1), ("{}", 2, 2)):
        await redis.set(keys.worker_prefix + "x-0", told)
        for _ in range(times):
            assert await leases.current() == []
        assert len(logged()) == lines
    assert len(counted) == 5
    await leases.put(replace(RECORD, instance="x-0"), ttl_s=60)
    assert len(await leases.current()) == 1
    await redis.set(keys.worker_prefix + "x-0", "{}")  # again, after it was readable
    assert await leases.current() == []
    assert len(logged()) == 3
    await redis.delete(keys.worker_prefix + "x-0")


async def test_a_later_versions_record_is_read_as_far_as_it_is_known(leases, redis, keys):
    await leases.put(RECORD, ttl_s=60)
    record = json.loads(await redis.get(keys.worker_prefix + "p-0"))
    await redis.set(keys.worker_prefix + "p-0", json.dumps(record | {"rack": 7}))
    assert await leases.current() == [RECORD]


async def test_absent_redis_is_a_bounded_wait_that_says_so(caplog):
    started_s = time.monotonic()
    with pytest.raises(DependencyUnavailable, match=r"no Redis at redis://127.0.0.1:1/0 within 0.3 s"):
        await connect_redis("redis://127.0.0.1:1/0", timeout_s=1.0, within_s=0.3)
    assert time.monotonic() - started_s < 5
    assert "waiting for Redis" in caplog.text
