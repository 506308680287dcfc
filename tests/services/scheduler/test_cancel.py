"""Cancel in every phase: typed for who asked, and idle level on both sides in under a second."""

import asyncio
import os
import signal
import time

import pytest

from common.errors import Cancelled, DependencyUnavailable
from common.rpc.inference_data import CancelOutcome
from services.scheduler.request_cancels import ANSWER_WITHIN_S, share_cancels
from tests.fakes.cluster import FakeCluster, tokens_of, until, with_settings
from tests.fakes.replicas import replicas
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
            assert await cluster.client.cancel("r") == CancelOutcome(found=True, replicas=1)
            with pytest.raises(Cancelled):
                await running
        await until(lambda: not cluster.prefills["p0"].leases, 1.0, "lease freed")
        await cluster.idle(timeout_s=1.5)
        assert await cluster.client.cancel("r") == CancelOutcome(found=False, replicas=1)


async def test_1_000_cancels_between_prefill_and_decode_leave_nothing():
    """C1: decode is slow to admit; every lease is back within 2 s of its client's leaving."""
    async with FakeCluster() as cluster:
        prefill, decode = cluster.prefills["p0"], cluster.decodes["d0"]
        decode.admit_delay_s = 2.0
        together = 10
        for start in range(0, 1000, together):
            running = [asyncio.create_task(cluster.ask(ask(seed=start + i))) for i in range(together)]
            await until(lambda: len(prefill.leases) == together and len(decode.seen) == together)
            for one in running:
                one.cancel()
            await asyncio.wait(running)
            await until(lambda: not prefill.leases, 2.0, "leases freed")
            decode.seen.clear()
        decode.admit_delay_s = 0.0
        await cluster.idle()
        assert tokens_of(await cluster.ask(ask())) == right(20)


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


@pytest.mark.parametrize("between", range(4))
async def test_a_second_cancellation_of_who_reads_leaves_nothing_live(between):
    async with FakeCluster() as cluster:
        slow_steps(cluster)

        async def read() -> None:
            async for _ in cluster.replica.core.generate(ask(max_tokens=500)):
                pass

        reading = asyncio.create_task(read())
        await until(lambda: bool(cluster.decodes["d0"].works))
        reading.cancel()
        for _ in range(between):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        assert reading.cancelled()
        await cluster.idle()


async def test_any_replica_cancels(nats_url, cluster):
    async with replicas(nats_url, cluster, 3, share_cancels) as made:
        (holder, _), *others = made
        slow_steps(holder)
        for number, (other, _) in enumerate(others):
            running = asyncio.create_task(holder.ask(ask(max_tokens=500, request_id=f"r{number}")))
            await until(lambda: bool(holder.decodes["d0"].works))
            outcome = await other.replica.core.cancel(f"r{number}")
            assert outcome.found
            with pytest.raises(Cancelled):
                await running
            await holder.idle(timeout_s=1.5)
            assert await other.client.cancel(f"r{number}") == CancelOutcome(found=False, replicas=3)


async def test_an_unknown_request_is_not_found_by_as_many_as_answered(nats_url, cluster):
    async with replicas(nats_url, cluster, 3, share_cancels) as made:
        begun_s = time.monotonic()
        assert await made[0][0].replica.core.cancel("none") == CancelOutcome(found=False, replicas=3)
        assert time.monotonic() - begun_s < 2.0
    async with replicas(nats_url, cluster, 1, share_cancels) as made:
        begun_s = time.monotonic()
        assert await made[0][0].replica.core.cancel("none") == CancelOutcome(found=False, replicas=1)
        assert time.monotonic() - begun_s < ANSWER_WITHIN_S  # nobody to wait for


async def test_a_replica_that_cannot_ask_does_not_say_that_there_is_no_such_request(nats_url, cluster, own_nats):
    server = own_nats()
    async with replicas(server.url, cluster, 2, share_cancels) as made:
        (one, bus), _ = made
        slow_steps(one)
        running = asyncio.create_task(one.ask(ask(max_tokens=500, request_id="mine")))
        await until(lambda: bool(one.decodes["d0"].works))
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(DependencyUnavailable, match="nobody answered"):
                await one.client.cancel("other")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        server.stop()
        await until(lambda: not bus.connected, 20.0)
        with pytest.raises(DependencyUnavailable, match="not connected"):
            await one.client.cancel("other")
        assert (await one.client.cancel("mine")).found  # its own it can always end
        with pytest.raises(Cancelled):
            await running
