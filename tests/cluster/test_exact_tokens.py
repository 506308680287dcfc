"""Greedy tokens through all processes equal the reference's, token for token."""

import asyncio
import random

import pytest

from tests.cluster.conftest import CONFIGURATIONS, LONG, Clusters
from tests.cluster.running import ask, greedy
from tests.oracle.transformers_model import Oracle

TOKENS = 16
LENGTHS = {
    "pairs": (1, 15, 16, 17, 65, 200),
    "ep2": (1, 40, 130),
    "tp2": (17, 70),
    "decode-tp2": (1, 17, 70),
    "prefill-tp2": (16, 17, 150),
    "ep4": (1, 15, 33, 64, 90),  # more than instances
    "ep4-tp2": (1, 33, 64),
}


def prompts(configuration: str) -> list[list[int]]:
    draws = random.Random(configuration)
    return [[draws.randrange(2, 512) for _ in range(length)] for length in LENGTHS[configuration]]


@pytest.mark.parametrize(
    "configuration",
    [pytest.param(name, marks=pytest.mark.matrix if name in LONG else ()) for name in CONFIGURATIONS],
)
def test_tokens_equal_the_reference(configuration: str, clusters: Clusters, oracle: Oracle) -> None:
    running = clusters.get(configuration)
    cases = prompts(configuration)

    async def ask_all() -> None:
        async with running.client() as client:
            for cached in (False, True):
                answers = await asyncio.gather(*(ask(client, greedy(prompt, TOKENS)) for prompt in cases))
                for prompt, answer in zip(cases, answers, strict=True):
                    assert answer.token_ids == oracle.greedy(prompt, TOKENS), f"{len(prompt)} tokens, cached {cached}"
                    assert answer.usage.prompt_tokens == len(prompt)
                    assert answer.usage.completion_tokens == TOKENS
                    assert answer.ledger_sum_s == pytest.approx(answer.ledger_total_s, abs=1e-6)
                    if cached and len(prompt) > 16:
                        assert answer.usage.cached_tokens == (len(prompt) - 1) // 16 * 16

    asyncio.run(ask_all())
    running.wait_idle()


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_max_tokens_is_exact(pairs, oracle: Oracle, tokens: int) -> None:
    prompt = prompts("pairs")[4]

    async def one() -> None:
        async with pairs.client() as client:
            answer = await ask(client, greedy(prompt, tokens))
            assert answer.token_ids == oracle.greedy(prompt, tokens)
            assert answer.usage.completion_tokens == tokens

    asyncio.run(one())
    pairs.wait_idle()
