"""Whole requests over fake workers: the right tokens, once each, whatever happens; and nothing left behind."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from common.clock import MonotonicClock
from common.errors import DuplicateRequest, InvalidInput, UnknownModel
from common.request import FinishReason
from common.rpc.inference_data import GenerateRequest, SamplingOptions, Stopping
from services.scheduler.replica import build_replica
from tests.fakes.cluster import CARD, SETTINGS, FakeCluster, tokens_of, until, with_settings
from tests.services.scheduler.requests import PROMPT, ask, right


async def test_the_thin_line():
    async with FakeCluster() as cluster:
        deltas = await cluster.ask(ask())
        assert tokens_of(deltas) == right(20)
        assert [d.finish_reason for d in deltas if d.finish_reason] == [FinishReason.LENGTH]
        last = deltas[-1]
        assert last.usage.prompt_tokens == 50
        assert last.usage.completion_tokens == 20
        assert last.usage.drafted_tokens == last.usage.accepted_tokens == 19
        assert sum(seconds for _, seconds in last.ledger.entries) == pytest.approx(last.ledger.total_s)
        await cluster.idle()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("tokens_per_step", [1, 2])
async def test_exactly_as_many_tokens_as_asked(count, tokens_per_step):
    async with FakeCluster() as cluster:
        cluster.decodes["d0"].tokens_per_step = tokens_per_step
        deltas = await cluster.ask(ask(max_tokens=count))
        assert tokens_of(deltas) == right(count)
        assert deltas[-1].usage.completion_tokens == count
        await cluster.idle()


async def test_a_refused_request_names_field_and_limit_and_the_next_is_served():
    async with FakeCluster() as cluster:
        with pytest.raises(InvalidInput, match=r"prompt\.token_ids\[0\] = -1"):
            await cluster.ask(ask(prompt=(-1,)))
        assert tokens_of(await cluster.ask(ask())) == right(20)


async def test_choices_have_seeds_of_their_own_and_share_the_prompt():
    async with FakeCluster() as cluster:
        deltas = await cluster.ask(ask(n=4, max_tokens=6))
        for choice in range(4):
            assert tokens_of(deltas, choice) == right(6, seed=3 + choice)
            assert sum(d.finish_reason is not None for d in deltas if d.choice == choice) == 1
        assert [d for d in deltas if d.usage is not None] == [deltas[-1]]
        assert deltas[-1].usage.prompt_tokens == 50
        assert deltas[-1].usage.completion_tokens == 24
        # 48 of 50 tokens are full blocks: computed once, then cached.
        assert cluster.prefills["p0"].computed_tokens == 50 + 3 * 2
        await cluster.idle()


async def test_log_probabilities_come_with_their_tokens():
    async with FakeCluster() as cluster:
        deltas = await cluster.ask(ask(logprobs=2, max_tokens=5))
        pairs = [pair for delta in deltas for pair in delta.logprobs]
        assert [token for token, _ in pairs] == right(5)
        assert all(len(logprobs.top) == 2 and logprobs.chosen == -0.5 for _, logprobs in pairs)


async def test_a_stop_id_ends_on_both_sides_and_is_the_last_id():
    async with FakeCluster() as cluster:
        for place in (0, 3):  # drawn by prefill, drawn by decode
            stop = right(20)[place]
            request = GenerateRequest(
                token_ids=PROMPT, sampling=SamplingOptions(seed=3), stopping=Stopping(20, stop_token_ids=(stop,))
            )
            deltas = await cluster.ask(request)
            assert tokens_of(deltas) == right(20)[: place + 1]
            assert (deltas[-1].finish_reason, deltas[-1].stop) == (FinishReason.STOP, str(stop))
        await cluster.idle()


async def test_a_live_id_is_taken_and_free_again_after_its_end():
    """A2."""
    async with FakeCluster() as cluster:
        cluster.decodes["d0"].step_s = 0.02
        first = asyncio.create_task(cluster.ask(ask(request_id="same")))
        await until(lambda: cluster.replica.core.live_requests == 1)
        with pytest.raises(DuplicateRequest, match="same"):
            await cluster.ask(ask(request_id="same"))
        assert tokens_of(await first) == right(20)
        assert tokens_of(await cluster.ask(ask(request_id="same"))) == right(20)


async def test_many_at_once_are_never_mixed():
    async with FakeCluster(prefills=2, decodes=2) as cluster:
        answers = await asyncio.gather(*(cluster.ask(ask(seed=seed, max_tokens=10 + seed % 7)) for seed in range(60)))
        for seed, deltas in enumerate(answers):
            assert tokens_of(deltas) == right(10 + seed % 7, seed=seed)
        await cluster.idle()


async def test_tenants_never_share_a_prefix():
    """B7."""
    async with FakeCluster() as cluster:
        cached = [(await cluster.ask(ask(tenant=t, max_tokens=2)))[-1].usage.cached_tokens for t in ("t1", "t2", "t1")]
        assert cached == [0, 0, 48]
        assert cluster.index.asked[0] == cluster.index.asked[2] != cluster.index.asked[1]


async def test_the_index_leads_to_the_holder_and_its_silence_costs_nothing():
    async with FakeCluster(prefills=3) as cluster:
        await cluster.ask(ask(max_tokens=2))
        holder = next(p for p in cluster.prefills.values() if p.works)
        for _ in range(3):
            assert (await cluster.ask(ask(max_tokens=2)))[-1].usage.cached_tokens == 48
        assert len(holder.works) == 4
        cluster.index.answers = False
        assert tokens_of(await cluster.ask(ask(max_tokens=2))) == right(2)
        assert cluster.metric("tandem_prefix_lookups_unanswered_total") == 1


async def test_the_ledger_names_where_the_time_went():
    async with FakeCluster() as cluster:
        prefill, decode = cluster.prefills["p0"], cluster.decodes["d0"]
        prefill.start_delay_s, prefill.delay_s, decode.join_delay_s, decode.step_s = 0.1, 0.2, 0.15, 0.02
        ledger = (await cluster.ask(ask(max_tokens=11)))[-1].ledger
        parts = dict(ledger.entries)
        assert parts["prefill_queue"] == pytest.approx(0.1, abs=0.05)
        assert parts["prefill"] == pytest.approx(0.2, abs=0.05)
        assert parts["exposed_transfer"] == pytest.approx(0.15, abs=0.05)
        assert parts["steps"] == pytest.approx(0.2, abs=0.08)
        assert sum(parts.values()) == pytest.approx(ledger.total_s, abs=1e-9)


async def test_an_explanation_has_every_candidate_and_is_kept_for_the_last_requests_only():
    async with FakeCluster(prefills=2, decodes=2, settings=with_settings(explained_requests=2)) as cluster:
        for name in ("r1", "r2", "r3"):
            await cluster.ask(ask(request_id=name, max_tokens=3))
        explanation = await cluster.client.explain("r3")
        assert [p.role for p in explanation.placements] == ["prefill", "decode"]
        assert {c.instance for c in explanation.placements[0].candidates} == {"p0", "p1"}
        chosen = next(c for c in explanation.placements[0].candidates if c.instance == explanation.placements[0].chosen)
        assert chosen.cost == pytest.approx(sum(chosen.parts.values()))
        assert (explanation.outcome, explanation.resumes) == ("length", 0)
        assert explanation.predicted_cached_blocks == explanation.actual_cached_blocks == 3
        assert sum(s for _, s in explanation.ledger.entries) == pytest.approx(explanation.ledger.total_s)
        with pytest.raises(InvalidInput, match="r1"):
            await cluster.client.explain("r1")


async def test_model_and_cluster_information():
    async with FakeCluster(prefills=1, decodes=1) as cluster:
        model = await cluster.client.model()
        assert (model.model, model.fingerprint, model.context_tokens, model.has_tokenizer) == (
            "tiny",
            "fp",
            4096,
            False,
        )
        with pytest.raises(UnknownModel):
            await cluster.client.model("other")
        info = await cluster.client.cluster()
        assert {(i.instance, i.role, i.state) for i in info.instances} == {
            ("p0", "prefill", "ready"),
            ("d0", "decode", "ready"),
        }


async def test_a_prompt_over_the_pools_is_refused_cleanly():
    """C2: fits the API limit, not the pool."""
    async with FakeCluster() as cluster:
        cluster.prefills["p0"].total_blocks = 4
        await cluster.prefills["p0"].restart()
        await until(lambda: cluster.replica.fleet.get("p0").incarnation == cluster.prefills["p0"].incarnation)
        await cluster.ready()
        with pytest.raises(InvalidInput, match="largest prefill pool holds 64 tokens"):
            await cluster.ask(ask(prompt=(5,) * 100))
        await cluster.idle()


async def test_a_whole_context_and_all_its_log_probabilities():
    """A5."""
    card = replace(CARD, context_tokens=125_000)
    async with FakeCluster(card=card, settings=with_settings(outbox_tokens=10_000)) as cluster:
        worker = [*cluster.prefills.values(), *cluster.decodes.values()]
        for one in worker:
            one.total_blocks = 10_000
            await one.restart()
        await until(lambda: all(i.description.total_blocks == 10_000 for i in cluster.replica.fleet if i.description))
        await cluster.ready()
        cluster.decodes["d0"].tokens_per_step = 50
        deltas = await cluster.ask(ask(prompt=(7,) * 120_000, max_tokens=4000, logprobs=20), timeout_s=60)
        assert sum(len(d.token_ids) for d in deltas) == sum(len(d.logprobs) for d in deltas) == 4000


async def test_one_id_on_two_replicas_is_two_requests():
    """A2, across front doors: work has names of its own, so nothing mixes."""
    async with FakeCluster() as cluster:
        other = build_replica(
            CARD, None, cluster.discovery, cluster.index, SETTINGS, MonotonicClock(), CollectorRegistry()
        )
        membership = asyncio.create_task(other.membership.run())
        await until(other.ready)

        async def there():
            return [delta async for delta in other.core.generate(ask(request_id="same", seed=8))]

        here, elsewhere = await asyncio.gather(cluster.ask(ask(request_id="same")), there())
        assert tokens_of(here) == right(20)
        assert tokens_of(elsewhere) == right(20, seed=8)
        membership.cancel()
        await asyncio.wait({membership})
