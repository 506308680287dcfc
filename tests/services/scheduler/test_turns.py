"""Waiting, fairness between tenants and shedding, end to end over fake workers."""

import asyncio
import time

import pytest

from common.errors import Cancelled, DeadlineExceeded, Draining, NoInstance, Overloaded
from services.scheduler.settings import AdmissionPolicy
from tests.fakes.cluster import FakeCluster, tokens_of, until, with_settings
from tests.services.scheduler.requests import ask, right


def narrow(cluster, seats=2):
    cluster.decodes["d0"].max_running = seats
    return cluster.decodes["d0"].restart()


async def seated(cluster, seats):
    await until(
        lambda: (
            cluster.replica.fleet.get("d0").description is not None
            and cluster.replica.fleet.get("d0").description.max_running == seats
        )
    )
    await cluster.ready()


async def test_what_does_not_fit_waits_and_is_served():
    async with FakeCluster() as cluster:
        await narrow(cluster)
        await seated(cluster, 2)
        cluster.decodes["d0"].step_s = 0.005
        answers = await asyncio.gather(*(cluster.ask(ask(seed=seed)) for seed in range(10)))
        for seed, deltas in enumerate(answers):
            assert tokens_of(deltas) == right(20, seed=seed)
        await cluster.idle()


async def test_over_capacity_is_shed_at_once_with_a_hint():
    settings = with_settings(admission=AdmissionPolicy(max_waiting=5, max_wait_s=10.0))
    async with FakeCluster(settings=settings) as cluster:
        await narrow(cluster)
        await seated(cluster, 2)
        cluster.decodes["d0"].step_s = 0.03
        served = [asyncio.create_task(cluster.ask(ask(seed=seed))) for seed in range(7)]
        await until(lambda: cluster.replica.turns.waiting == 5)
        times = []
        for _ in range(5):
            start_s = time.monotonic()
            with pytest.raises(Overloaded, match="5 requests wait") as shed:
                await cluster.ask(ask())
            times.append(time.monotonic() - start_s)
            assert shed.value.retry_after_s > 0
        assert min(times) <= 0.1
        for seed, deltas in enumerate(await asyncio.gather(*served)):
            assert tokens_of(deltas) == right(20, seed=seed)
        await cluster.idle()


async def test_a_flooding_tenant_does_not_delay_a_quiet_one():
    settings = with_settings(admission=AdmissionPolicy(max_waiting=100, max_wait_s=60.0))
    async with FakeCluster(settings=settings) as cluster:
        await narrow(cluster)
        await seated(cluster, 2)
        cluster.decodes["d0"].step_s = 0.005
        ended = []

        async def one(tenant, seed):
            await cluster.ask(ask(seed=seed, tenant=tenant))
            ended.append(tenant)

        flood = [asyncio.create_task(one("flood", seed)) for seed in range(30)]
        await until(lambda: cluster.replica.turns.waiting >= 20)
        quiet = [asyncio.create_task(one("quiet", seed)) for seed in range(4)]
        await until(lambda: len(ended) + cluster.replica.turns.live == len(flood) + len(quiet))  # all have arrived
        before = len(ended)
        await asyncio.gather(*flood, *quiet)
        assert "quiet" not in ended[before + 2 + 8 + 2 :]  # what had its turn, eight shared ones, some slack
        await cluster.idle()


async def test_without_decode_requests_wait_and_then_are_shed():
    settings = with_settings(admission=AdmissionPolicy(max_wait_s=0.3))
    async with FakeCluster(settings=settings) as cluster:
        await cluster.decodes["d0"].kill()
        await until(lambda: not cluster.replica.fleet.ready("decode"))
        with pytest.raises(NoInstance, match="no decode instance") as shed:
            await cluster.ask(ask())
        assert shed.value.retry_after_s > 0
        await cluster.idle()


async def test_a_deadline_ends_the_wait_for_a_turn():
    async with FakeCluster() as cluster:
        await cluster.decodes["d0"].kill()
        await until(lambda: not cluster.replica.fleet.ready("decode"))
        start_s = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="turn"):
            async for _ in cluster.replica.core.generate(ask(deadline_ms=200)):
                pass
        assert time.monotonic() - start_s < 2.0
        await cluster.idle()


async def test_a_cancel_while_waiting_frees_the_place():
    async with FakeCluster() as cluster:
        await narrow(cluster, 1)
        await seated(cluster, 1)
        cluster.decodes["d0"].step_s = 0.02
        first = asyncio.create_task(cluster.ask(ask()))
        await until(lambda: bool(cluster.decodes["d0"].works))
        second = asyncio.create_task(cluster.ask(ask(request_id="second")))
        await until(lambda: cluster.replica.turns.waiting == 1)
        assert (await cluster.client.cancel("second")).found
        with pytest.raises(Cancelled):
            await second
        assert cluster.replica.turns.waiting == 0
        assert tokens_of(await first) == right(20)
        await cluster.idle()


async def test_draining_finishes_what_lives_and_refuses_the_rest():
    async with FakeCluster() as cluster:
        cluster.decodes["d0"].step_s = 0.02
        running = asyncio.create_task(cluster.ask(ask()))
        await until(lambda: bool(cluster.decodes["d0"].works))
        drained = asyncio.create_task(cluster.replica.core.drain(10.0, asyncio.Event()))
        await asyncio.sleep(0)
        with pytest.raises(Draining):
            await cluster.ask(ask())
        assert tokens_of(await running) == right(20)
        await drained


async def test_a_drain_that_takes_too_long_cancels():
    async with FakeCluster() as cluster:
        cluster.decodes["d0"].step_s = 0.1
        running = asyncio.create_task(cluster.ask(ask(max_tokens=1000)))
        await until(lambda: bool(cluster.decodes["d0"].works))
        await cluster.replica.core.drain(0.1, asyncio.Event())
        with pytest.raises(Cancelled, match="shuts down"):
            await running
        await cluster.idle()


async def test_a_drain_is_cut_short_when_told():
    async with FakeCluster() as cluster:
        cluster.decodes["d0"].step_s = 0.1
        running = asyncio.create_task(cluster.ask(ask(max_tokens=1000)))
        await until(lambda: bool(cluster.decodes["d0"].works))
        at_once = asyncio.Event()
        drained = asyncio.create_task(cluster.replica.core.drain(60.0, at_once))
        await until(lambda: cluster.replica.core.draining)
        at_once.set()
        with pytest.raises(Cancelled, match="shuts down"):
            await running
        await asyncio.wait_for(drained, 5.0)
        await cluster.idle()


async def test_every_series_is_there_before_the_first_request():
    async with FakeCluster() as cluster:
        assert cluster.metric("tandem_failed_requests_total", error_type="OVERLOADED") == 0
        assert cluster.metric("tandem_finished_choices_total", finish_reason="stop") == 0
        await cluster.ask(ask())
        assert cluster.metric("tandem_finished_choices_total", finish_reason="length") == 1
        assert cluster.metric("tandem_request_generated_tokens_total") == 20
        assert cluster.metric("tandem_time_to_first_token_seconds_count") == 1
        assert cluster.metric("tandem_inter_token_seconds_count") == 19
