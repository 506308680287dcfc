"""A process that is stopped and comes back: out of rotation in time, its work elsewhere, nothing of it twice."""

import asyncio
import signal
import time
from contextlib import suppress

import pytest

from tests.cluster.running import RunningCluster, ask, greedy
from tests.cluster.test_deaths import prompt
from tests.oracle.transformers_model import Oracle

TOKENS = 100
OUT_WITHIN_S = 10.0


def clear_seeds(oracle: Oracle, length: int, tokens: int, count: int, first: int = 500) -> list[int]:
    """Seeds of prompts whose every greedy choice is clear: a tie is not a test."""
    found: list[int] = []
    seed = first
    while len(found) < count:
        with suppress(AssertionError):
            oracle.greedy(prompt(seed, length), tokens)
            found.append(seed)
        seed += 1
    return found


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_a_stopped_worker_is_left_and_comes_back(pairs: RunningCluster, oracle: Oracle, role: str) -> None:
    tokens = TOKENS if role == "decode" else 8
    length = 90 if role == "decode" else 600  # a prefill is stopped while it computes
    seeds = clear_seeds(oracle, length, tokens, 4)

    async def scenario() -> None:
        async with pairs.client() as client:
            begun = asyncio.Event()
            asked = [
                asyncio.ensure_future(
                    ask(
                        client,
                        greedy(prompt(seed, length), tokens),
                        lambda count: begun.set() if count >= 10 else None,
                    )
                )
                for seed in seeds
            ]
            while True:
                busy = [i for i in (await client.cluster()).instances if i.role == role and i.running]
                if busy and (role == "prefill" or begun.is_set()):
                    break
                assert not all(one.done() for one in asked)
                await asyncio.sleep(0.01)
            chosen = max(busy, key=lambda i: i.running)
            stopped = pairs.ranks(f"{chosen.group}-node-0")
            for process in stopped:
                process.send_signal(signal.SIGSTOP)
            stopped_s = time.monotonic()
            try:
                while any(
                    i.state == "ready" for i in (await client.cluster()).instances if i.instance == chosen.instance
                ):
                    assert time.monotonic() - stopped_s < OUT_WITHIN_S, "still in rotation"
                    await asyncio.sleep(0.05)
                answers = await asyncio.gather(*asked)  # the rest of the cluster brings them to their ends
                later = await ask(client, greedy(prompt(510), 8))
            finally:
                for process in stopped:
                    process.send_signal(signal.SIGCONT)
            for seed, answer in zip(seeds, answers, strict=True):
                assert answer.token_ids == oracle.greedy(prompt(seed, length), tokens), f"prompt {seed}"
                assert answer.usage.completion_tokens == tokens
            assert later.token_ids == oracle.greedy(prompt(510), 8)

    asyncio.run(scenario())
    pairs.wait_for("everybody is back", lambda: [i.state for i in pairs.instances()] == ["ready"] * 4, 30)
    pairs.wait_idle(30)
