"""Whole requests over fake workers: the right tokens, once each, whatever happens; and nothing left behind."""

import asyncio

import pytest

from common.errors import InvalidInput
from common.request import FinishReason
from common.rpc.inference_data import GenerateRequest, SamplingOptions, Stopping
from tests.fakes.cluster import FakeCluster, tokens_of
from tests.fakes.workers import VOCAB_TOKENS

PROMPT = tuple(range(10, 60))


def ask(max_tokens: int = 20, seed: int = 3, prompt: tuple[int, ...] = PROMPT, **more: object) -> GenerateRequest:
    return GenerateRequest(
        token_ids=prompt,
        sampling=SamplingOptions(seed=seed),
        stopping=Stopping(max_tokens=max_tokens, ignore_eos=True),
        **more,
    )


def right(count: int, seed: int = 3, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    """What the fakes draw, spelled out anew."""
    return [(seed * 131 + p * 7919) % (VOCAB_TOKENS - 10) + 10 for p in range(len(prompt), len(prompt) + count)]


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
        await asyncio.sleep(0)
