"""Cancel in every phase: typed for who asked, and idle level on both sides in under a second."""

import asyncio

import pytest

from common.errors import Cancelled
from tests.fakes.cluster import FakeCluster, tokens_of, until, with_settings
from tests.services.scheduler.requests import ask, right


def slow_start(cluster):
    cluster.prefills["p0"].start_delay_s = 5.0


def slow_prefill(cluster):
    cluster.prefills["p0"].delay_s = 5.0


def slow_admission(cluster):
    """C1: the gap between prefill and decode."""
    cluster.decodes["d0"].admit_delay_s = 0.6


def slow_join(cluster):
    cluster.decodes["d0"].join_delay_s = 5.0


def slow_steps(cluster):
    cluster.decodes["d0"].step_s = 0.05


PHASES = {
    slow_start: lambda c: bool(c.prefills["p0"].works),
    slow_prefill: lambda c: bool(c.decodes["d0"].works),
    slow_admission: lambda c: bool(c.decodes["d0"].seen) and c.prefills["p0"].leases,
    slow_join: lambda c: bool(c.decodes["d0"].works),
    slow_steps: lambda c: bool(c.decodes["d0"].works),
}


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
@pytest.mark.parametrize("how", ["leave", "call"])
async def test_cancel(phase, how):
    async with FakeCluster() as cluster:
        phase(cluster)
        running = asyncio.create_task(cluster.ask(ask(max_tokens=500, request_id="r")))
        await until(lambda: PHASES[phase](cluster))
        if how == "leave":
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        else:
            assert await cluster.client.cancel("r")
            with pytest.raises(Cancelled):
                await running
        await until(lambda: not cluster.prefills["p0"].leases, 1.0, "lease freed")
        await cluster.idle(timeout_s=1.5)
        assert not await cluster.client.cancel("r")


async def test_many_cancels_at_random_moments_leave_nothing():
    async with FakeCluster(prefills=2, decodes=2) as cluster:
        for decode in cluster.decodes.values():
            decode.step_s, decode.admit_delay_s = 0.005, 0.01
        for prefill in cluster.prefills.values():
            prefill.delay_s = 0.01

        async def one(number: int) -> None:
            running = asyncio.create_task(cluster.ask(ask(seed=number, max_tokens=100)))
            await asyncio.sleep(0.0013 * (number % 97))
            running.cancel()
            await asyncio.wait({running})

        for start in range(0, 120, 20):
            await asyncio.gather(*(one(start + i) for i in range(20)))
        await cluster.idle()
        assert tokens_of(await cluster.ask(ask())) == right(20)


async def test_a_reader_that_does_not_read_is_ended():
    async with FakeCluster(settings=with_settings(outbox_tokens=50)) as cluster:
        cluster.decodes["d0"].step_s = 0.0
        core = cluster.replica.core
        deltas = core.generate(ask(max_tokens=3000))
        await anext(deltas)
        await cluster.prefills_and_decodes_idle()
        with pytest.raises(Cancelled, match="slow"):
            async for _ in deltas:
                pass
        await cluster.idle()
        assert cluster.metric("tandem_slow_readers_total") == 1


async def test_a_slow_reader_within_the_bound_gets_everything_in_larger_pieces():
    async with FakeCluster() as cluster:
        cluster.decodes["d0"].step_s = 0.0
        deltas = []
        async for delta in cluster.replica.core.generate(ask(max_tokens=400)):
            deltas.append(delta)
            await asyncio.sleep(0.02)
        assert tokens_of(deltas) == right(400)
        assert len(deltas) < 200
