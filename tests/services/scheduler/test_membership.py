"""Who is in the cluster: joining, suspicion, fencing, removal; stale but serving without leases."""

import asyncio
from dataclasses import replace

from common.rpc.server import Probe
from services.scheduler.fleet import InstanceState
from tests.fakes.cluster import FakeCluster, drawn, tokens_of, until
from tests.fakes.stalling_proxy import StallingProxy
from tests.fakes.workers import FakeDecode, FakePrefill
from tests.services.scheduler.requests import ask, right


def state(cluster, name):
    known = cluster.replica.fleet.get(name)
    return known.state if known else None


async def test_an_instance_joins_while_serving_and_gets_work():
    async with FakeCluster() as cluster:
        late = FakePrefill("p9")
        await late.start()
        cluster.prefills["p9"] = cluster.discovery.workers["p9"] = late
        await until(lambda: state(cluster, "p9") is InstanceState.READY)
        await asyncio.gather(*(cluster.ask(ask(prompt=tuple(range(seed, seed + 40)))) for seed in range(10, 20)))
        assert late.works


async def test_an_incompatible_instance_never_gets_work():
    async with FakeCluster() as cluster:
        other = FakeDecode("d9", cluster.prefills)
        other.compatibility = replace(other.compatibility, block_tokens=64)
        await other.start()
        cluster.decodes["d9"] = cluster.discovery.workers["d9"] = other
        await until(lambda: "d9" in {i.instance for i in cluster.replica.fleet})
        for _ in range(5):
            assert tokens_of(await cluster.ask(ask())) == right(20)
        assert state(cluster, "d9") is InstanceState.JOINING
        assert not other.seen


async def test_a_frozen_engine_leaves_rotation_and_its_work_goes_elsewhere():
    """A6: the process answers, its engine makes no progress."""
    async with FakeCluster(decodes=2) as cluster:
        for decode in cluster.decodes.values():
            decode.step_s = 0.02
        running = [asyncio.create_task(cluster.ask(ask(seed=seed, max_tokens=40))) for seed in range(6)]
        await until(lambda: all(len(d.works) >= 2 for d in cluster.decodes.values()))
        frozen = cluster.decodes["d0"]
        frozen.step_s = 100.0
        for work in frozen.works.values():
            work.task.cancel()  # no further token
        await frozen.health.set(Probe.LIVENESS, serving=False)
        await until(lambda: state(cluster, "d0") is InstanceState.SUSPECT, 2.0)
        for seed, deltas in enumerate(await asyncio.gather(*running)):
            assert tokens_of(deltas) == right(40, seed=seed)
        seen = len(frozen.seen)
        await cluster.ask(ask())
        assert len(frozen.seen) == seen
        frozen.step_s = 0.001
        await frozen.health.set(Probe.LIVENESS, serving=True)
        await until(lambda: state(cluster, "d0") is InstanceState.READY)


async def test_a_stopped_process_is_fenced_and_its_late_tokens_are_nothing():
    async with FakeCluster() as cluster:
        stopped = FakeDecode("d9", cluster.prefills)
        stopped.step_s = 0.05
        await stopped.start()
        proxy = StallingProxy(stopped.address)
        await proxy.start()
        cluster.decodes["d9"] = stopped
        cluster.decodes["d0"].max_running = 0
        await cluster.decodes["d0"].restart()
        behind = FakeDecode("d9", cluster.prefills)
        behind.address, behind.incarnation = proxy.address, stopped.incarnation
        cluster.discovery.workers["d9"] = behind
        await until(lambda: state(cluster, "d9") is InstanceState.READY)
        running = asyncio.create_task(cluster.ask(ask(max_tokens=40)))
        await until(lambda: drawn(stopped) >= 3)
        proxy.stall()
        before = drawn(stopped)
        await until(lambda: state(cluster, "d9") is InstanceState.SUSPECT, 3.0)
        cluster.decodes["d0"].max_running = 64
        await cluster.decodes["d0"].restart()
        await until(lambda: drawn(stopped) >= before + 5)
        proxy.resume()
        assert tokens_of(await running) == right(40)
        await until(lambda: state(cluster, "d9") is InstanceState.READY)
        await cluster.idle()
        await proxy.stop()


async def test_a_draining_instance_finishes_and_gets_nothing_new():
    async with FakeCluster(decodes=2) as cluster:
        for decode in cluster.decodes.values():
            decode.step_s = 0.02
        running = [asyncio.create_task(cluster.ask(ask(seed=seed))) for seed in range(4)]
        await until(lambda: [len(d.works) for d in cluster.decodes.values()] == [2, 2])
        cluster.replica.membership.drain("d0", cluster.decodes["d0"].incarnation)
        assert state(cluster, "d0") is InstanceState.DRAINING
        seen = len(cluster.decodes["d0"].seen)
        for _ in range(3):
            await cluster.ask(ask(max_tokens=3))
        for seed, deltas in enumerate(await asyncio.gather(*running)):
            assert tokens_of(deltas) == right(20, seed=seed)
        assert len(cluster.decodes["d0"].seen) == seen
        assert cluster.metric("tandem_request_resumes_total") == 0


async def test_a_held_instance_gets_nothing_new_until_the_hold_ends():
    async with FakeCluster(decodes=2) as cluster:
        held = cluster.decodes["d0"]
        hold_s = 2.0
        begun_s = asyncio.get_running_loop().time()
        cluster.replica.membership.hold("d0", held.incarnation, hold_s)
        assert state(cluster, "d0") is InstanceState.DRAINING
        for _ in range(3):
            await cluster.ask(ask(max_tokens=3))
        assert not held.seen
        await until(lambda: state(cluster, "d0") is InstanceState.READY)
        assert asyncio.get_running_loop().time() - begun_s >= hold_s
        cluster.replica.membership.hold("d0", held.incarnation + 1, 60.0)  # of memory that is gone
        assert state(cluster, "d0") is InstanceState.READY


async def test_readiness_off_is_draining_too():
    async with FakeCluster(decodes=2) as cluster:
        await cluster.decodes["d0"].health.set(Probe.READINESS, serving=False)
        await until(lambda: state(cluster, "d0") is InstanceState.DRAINING)
        await cluster.ask(ask())
        assert not cluster.decodes["d0"].seen


async def test_without_leases_everybody_stays_and_serves():
    async with FakeCluster() as cluster:
        cluster.discovery.gone = True
        await until(lambda: not cluster.replica.membership.leases_known)
        assert tokens_of(await cluster.ask(ask())) == right(20)
        cluster.discovery.gone = False
        cluster.discovery.workers.clear()  # the leases were wiped, the workers are well
        await until(lambda: cluster.replica.membership.leases_known)
        looks = cluster.discovery.looks
        await until(lambda: cluster.discovery.looks >= looks + 5)
        assert tokens_of(await cluster.ask(ask())) == right(20)


async def test_removed_when_the_lease_lapsed_and_health_fails():
    async with FakeCluster(prefills=2) as cluster:
        await cluster.prefills["p0"].kill()
        await until(lambda: state(cluster, "p0") is InstanceState.SUSPECT)
        del cluster.discovery.workers["p0"]
        await until(lambda: state(cluster, "p0") is None, 2.0)
        assert tokens_of(await cluster.ask(ask())) == right(20)


async def test_a_restarted_instance_is_another_incarnation():
    async with FakeCluster() as cluster:
        before = cluster.replica.fleet.get("p0").incarnation
        await cluster.prefills["p0"].restart()
        await until(lambda: cluster.replica.fleet.get("p0").incarnation not in (before, 0))
        await cluster.ready()
        assert tokens_of(await cluster.ask(ask())) == right(20)
        assert cluster.decodes["d0"].seen[-1].source.incarnation == cluster.prefills["p0"].incarnation
