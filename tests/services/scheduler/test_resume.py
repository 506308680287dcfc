"""Workers fail in every phase: the client sees the right tokens once each, or a typed error; nothing stays behind."""

import asyncio

import pytest

from common.errors import (
    DeadlineExceeded,
    Draining,
    InternalError,
    InvalidInput,
    LeaseLost,
    Overloaded,
    TagMismatch,
    WorkerLost,
)
from tests.fakes.cluster import FakeCluster, drawn, tokens_of, until, with_settings
from tests.services.scheduler.requests import PROMPT, ask, right


@pytest.mark.parametrize("after", [1, 5, 18])
@pytest.mark.parametrize("fault", [WorkerLost("gone"), TagMismatch("block 3"), LeaseLost("late"), None], ids=str)
async def test_decode_gives_up_in_the_middle(after, fault):
    async with FakeCluster(decodes=2) as cluster:
        for decode in cluster.decodes.values():
            decode.faults = {after: fault}
        deltas = await cluster.ask(ask(request_id="r"))
        assert tokens_of(deltas) == right(20)
        assert deltas[-1].usage.completion_tokens == 20
        resumed = [w for w in cluster.prefills["p0"].works if w.generated_tokens]
        assert [w.generated_tokens for w in resumed[:1]] == [1 + after]
        assert {w.prompt_tokens for w in resumed} == {len(PROMPT)}
        explanation = await cluster.client.explain("r")
        assert explanation.resumes == len(resumed) >= 1
        assert "resume" in dict(explanation.ledger.entries)
        await cluster.idle()


async def test_decode_is_killed_with_many_streams():
    async with FakeCluster(prefills=2, decodes=2) as cluster:
        for decode in cluster.decodes.values():
            decode.step_s = 0.02
        asks = [asyncio.create_task(cluster.ask(ask(seed=seed, max_tokens=25))) for seed in range(20)]
        await until(lambda: len(cluster.decodes["d0"].works) >= 5 and drawn(cluster.decodes["d0"]) >= 10)
        await cluster.decodes["d0"].kill()
        for seed, deltas in enumerate(await asyncio.gather(*asks)):
            assert tokens_of(deltas) == right(25, seed=seed)
        assert cluster.metric("tandem_request_resumes_total") >= 5
        await cluster.idle()


async def test_the_only_decode_dies_and_comes_back():
    async with FakeCluster() as cluster:
        decode = cluster.decodes["d0"]
        decode.step_s = 0.02
        running = asyncio.create_task(cluster.ask(ask()))
        await until(lambda: drawn(decode) >= 3)
        await decode.restart()
        assert tokens_of(await running) == right(20)
        await cluster.idle()


async def test_a_wait_for_capacity_is_logged_once(caplog):
    caplog.set_level("INFO")
    async with FakeCluster() as cluster:
        decode = cluster.decodes["d0"]
        decode.step_s = 0.02
        running = asyncio.create_task(cluster.ask(ask()))
        await until(lambda: bool(decode.works))
        await decode.kill()
        await until(lambda: cluster.metric("tandem_request_resumes_total") >= 5)
        failed = [record.tandem_facts["why"] for record in caplog.records if record.getMessage() == "attempt failed"]
        assert len(failed) == len(set(failed))
        await decode.restart()
        assert tokens_of(await running) == right(20)
        await cluster.idle()


async def test_prefill_fails_before_the_first_token_once():
    async with FakeCluster(prefills=2) as cluster:
        for prefill in cluster.prefills.values():
            prefill.failures = [WorkerLost("rank 3 died")]
        cluster.prefills["p1"].failures = []
        for _ in range(4):
            assert tokens_of(await cluster.ask(ask())) == right(20)
        await cluster.idle()


async def test_prefill_fails_everywhere():
    async with FakeCluster(prefills=2) as cluster:
        for prefill in cluster.prefills.values():
            prefill.failures = [WorkerLost("rank 3 died")] * 5
        with pytest.raises(WorkerLost, match="rank 3 died"):
            await cluster.ask(ask())
        assert sum(5 - len(p.failures) for p in cluster.prefills.values()) == 2  # once elsewhere, no more
        await cluster.idle()


async def test_prefill_is_killed_while_it_computes():
    """C3, the scheduler's side: decode is told, and the work is done elsewhere."""
    async with FakeCluster(prefills=2) as cluster:
        for prefill in cluster.prefills.values():
            prefill.delay_s = 0.3
        running = asyncio.create_task(cluster.ask(ask()))
        await until(lambda: bool(cluster.decodes["d0"].works))
        victim = next(p for p in cluster.prefills.values() if p.leases)
        await victim.kill()
        assert tokens_of(await running) == right(20)
        await cluster.idle()


async def test_prefill_is_killed_behind_the_first_token_and_decode_says_nothing():
    async with FakeCluster(prefills=2, settings=with_settings(handoff_grace_s=0.2)) as cluster:
        decode = cluster.decodes["d0"]
        decode.join_delay_s = 30.0  # a read from a peer that is gone need not end by itself
        running = asyncio.create_task(cluster.ask(ask()))
        await until(lambda: any(p.computed_tokens for p in cluster.prefills.values()) and bool(decode.works))
        first = next(p for p in cluster.prefills.values() if p.computed_tokens)
        await first.kill()
        decode.join_delay_s = 0.0
        assert tokens_of(await running) == right(20)
        await cluster.idle()


async def test_prefill_ends_without_a_word():
    async with FakeCluster() as cluster:
        cluster.prefills["p0"].mute_works = 1
        with pytest.raises(InternalError, match="without a first token"):
            await cluster.ask(ask())
        assert tokens_of(await cluster.ask(ask())) == right(20)


async def test_an_error_that_is_the_requests_own_is_not_retried():
    async with FakeCluster(prefills=2) as cluster:
        for prefill in cluster.prefills.values():
            prefill.failures = [InvalidInput("prompt", "x", "y")]
        with pytest.raises(InvalidInput):
            await cluster.ask(ask())
        assert sum(len(p.failures) for p in cluster.prefills.values()) == 1
        await cluster.idle()


@pytest.mark.parametrize("refusal", [Overloaded("full", 0.1), Draining("bye")], ids=str)
async def test_decode_refuses_and_another_is_asked(refusal):
    async with FakeCluster(decodes=3) as cluster:
        cluster.decodes["d0"].refusals = [refusal]
        cluster.decodes["d1"].refusals = [refusal]
        for _ in range(3):
            assert tokens_of(await cluster.ask(ask())) == right(20)
        await cluster.idle()


async def test_decode_tokens_may_overtake_the_first():
    async with FakeCluster() as cluster:
        cluster.prefills["p0"].first_token_delay_s = 0.2
        assert tokens_of(await cluster.ask(ask())) == right(20)
        await cluster.idle()


async def test_repeated_tokens_are_fenced_by_position():
    async with FakeCluster() as cluster:
        cluster.decodes["d0"].repeat_last = True
        deltas = await cluster.ask(ask())
        assert tokens_of(deltas) == right(20)
        assert deltas[-1].usage.completion_tokens == 20
        assert cluster.metric("tandem_fenced_tokens_total") >= 18


async def test_a_deadline_ends_both_sides():
    async with FakeCluster() as cluster:
        cluster.decodes["d0"].step_s = 0.05
        with pytest.raises(DeadlineExceeded):
            await cluster.ask(ask(max_tokens=1000, deadline_ms=300))
        await cluster.idle(timeout_s=1.0)
        cluster.prefills["p0"].delay_s = 5.0
        with pytest.raises(DeadlineExceeded):
            await cluster.ask(ask(deadline_ms=300))
        await cluster.idle(timeout_s=1.0)
        works = [*cluster.prefills["p0"].works]
        assert all(work.deadline_s is not None for work in works)  # workers know it too
