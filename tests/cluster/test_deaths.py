"""A process that dies costs a pause, never a token."""

import asyncio
import random
import signal

import pytest

from tests.cluster.running import ANSWER_TIMEOUT_S, START_TIMEOUT_S, RunningCluster, ask, greedy
from tests.oracle.transformers_model import Oracle

TOKENS = 80


def prompt(seed: int, tokens: int = 90) -> list[int]:
    draws = random.Random(seed)
    return [draws.randrange(2, 512) for _ in range(tokens)]


def restart(running: RunningCluster, pod: str) -> None:
    """What an operator would do with a pod that ended."""
    running.cluster.children[pod].end(0.0)
    running.cluster.restart(pod)
    running.cluster.wait_ready(START_TIMEOUT_S)


def kill_while_answering(running: RunningCluster, oracle: Oracle, role: str, seeds: range, at_token: int) -> None:
    """Ask several prompts, kill every rank of the busiest pod of `role` once all have `at_token` tokens, compare."""
    pods = [f"{role}-{group}-node-0" for group in range(2)]

    async def scenario() -> str:
        async with running.client() as client:
            reached = asyncio.Event()
            counts: dict[int, int] = {}

            def heard(seed: int, tokens: int) -> None:
                counts[seed] = tokens
                if len(counts) == len(seeds) and min(counts.values()) >= at_token:
                    reached.set()

            asked = [
                asyncio.ensure_future(
                    ask(client, greedy(prompt(seed), TOKENS), lambda tokens, seed=seed: heard(seed, tokens))
                )
                for seed in seeds
            ]
            await asyncio.wait_for(reached.wait(), ANSWER_TIMEOUT_S)
            cluster = await client.cluster()
            busy = max((i for i in cluster.instances if i.role == role), key=lambda i: i.running)
            pod = f"{busy.group}-node-0"
            assert pod in pods
            for process in running.ranks(pod):
                process.send_signal(signal.SIGKILL)
            for seed, answer in zip(seeds, await asyncio.gather(*asked), strict=True):
                assert answer.token_ids == oracle.greedy(prompt(seed), TOKENS), f"prompt {seed}"
                assert answer.usage.completion_tokens == TOKENS
            return pod

    pod = asyncio.run(scenario())
    running.wait_for("the pod ends with its rank", lambda: not running.cluster.children[pod].running())
    running.wait_for("the instance leaves the pools", lambda: len(running.instances()) == 3)
    restart(running, pod)
    running.wait_idle()


def test_a_killed_decode_is_resumed_elsewhere(pairs: RunningCluster, oracle: Oracle) -> None:
    kill_while_answering(pairs, oracle, "decode", range(100, 103), at_token=10)


@pytest.mark.faults
def test_a_killed_prefill_hurts_nobody_who_has_left_it(pairs: RunningCluster, oracle: Oracle) -> None:
    kill_while_answering(pairs, oracle, "prefill", range(200, 203), at_token=3)


def test_a_prefill_killed_under_way_is_retried(pairs: RunningCluster, oracle: Oracle) -> None:
    """Killed before the first token; the request goes to the other instance."""
    long = prompt(300, 900)

    async def scenario() -> str:
        async with pairs.client() as client:
            asked = asyncio.ensure_future(ask(client, greedy(long, 8)))
            while True:
                busy = [i for i in (await client.cluster()).instances if i.role == "prefill" and i.running]
                if busy:
                    break
                assert not asked.done()
                await asyncio.sleep(0.01)
            pod = f"{busy[0].group}-node-0"
            for process in pairs.ranks(pod):
                process.send_signal(signal.SIGKILL)
            assert (await asked).token_ids == oracle.greedy(long, 8)
            return pod

    pod = asyncio.run(scenario())
    pairs.wait_for("the pod ends", lambda: not pairs.cluster.children[pod].running())
    restart(pairs, pod)
    pairs.wait_idle()


def test_a_drained_decode_finishes_what_it_has(pairs: RunningCluster, oracle: Oracle) -> None:
    """SIGTERM under load: no request fails, the pod ends by itself with code 0."""
    seeds = range(400, 403)

    async def scenario() -> str:
        async with pairs.client() as client:
            started = asyncio.Event()
            asked = [
                asyncio.ensure_future(ask(client, greedy(prompt(seed), TOKENS), lambda _: started.set()))
                for seed in seeds
            ]
            await asyncio.wait_for(started.wait(), ANSWER_TIMEOUT_S)
            cluster = await client.cluster()
            busy = max((i for i in cluster.instances if i.role == "decode"), key=lambda i: i.running)
            pod = f"{busy.group}-node-0"
            pairs.cluster.children[pod].signal(signal.SIGTERM)
            more = [asyncio.ensure_future(ask(client, greedy(prompt(seed), 20))) for seed in range(410, 412)]
            for seed, answer in zip(seeds, await asyncio.gather(*asked), strict=True):
                assert answer.token_ids == oracle.greedy(prompt(seed), TOKENS)
            for seed, answer in zip(range(410, 412), await asyncio.gather(*more), strict=True):
                assert answer.token_ids == oracle.greedy(prompt(seed), 20)
            return pod

    pod = asyncio.run(scenario())
    pairs.wait_for("the pod ends", lambda: not pairs.cluster.children[pod].running())
    assert "drained" in pairs.log(pod)
    assert pairs.cluster.children[pod].code() == 0
    restart(pairs, pod)
    pairs.wait_idle()


@pytest.mark.faults
def test_a_stopped_decode_is_fenced_and_comes_back(pairs: RunningCluster, oracle: Oracle) -> None:
    """SIGSTOP for longer than its lease: out of rotation, its work goes on elsewhere, its late tokens reach nobody."""
    seeds = range(500, 503)

    async def scenario() -> None:
        async with pairs.client() as client:
            started = asyncio.Event()
            asked = [
                asyncio.ensure_future(ask(client, greedy(prompt(seed), TOKENS), lambda _: started.set()))
                for seed in seeds
            ]
            await asyncio.wait_for(started.wait(), ANSWER_TIMEOUT_S)
            cluster = await client.cluster()
            busy = max((i for i in cluster.instances if i.role == "decode"), key=lambda i: i.running)
            ranks = pairs.ranks(f"{busy.group}-node-0")
            for process in ranks:
                process.suspend()
            try:
                for seed, answer in zip(seeds, await asyncio.gather(*asked), strict=True):
                    assert answer.token_ids == oracle.greedy(prompt(seed), TOKENS), f"prompt {seed}"
                    assert answer.usage.completion_tokens == TOKENS
            finally:
                for process in ranks:
                    process.resume()

    asyncio.run(scenario())
    pairs.wait_for("everybody is ready again", lambda: all(i.state == "ready" for i in pairs.instances()))
    pairs.wait_idle()


@pytest.mark.faults
def test_a_stopped_prefill_is_read_from_no_more(pairs: RunningCluster, oracle: Oracle) -> None:
    """SIGSTOP in the middle of a prompt: the request goes to the other instance."""
    long = prompt(600, 900)

    async def scenario() -> None:
        async with pairs.client() as client:
            asked = asyncio.ensure_future(ask(client, greedy(long, 8)))
            while not (busy := [i for i in (await client.cluster()).instances if i.role == "prefill" and i.running]):
                assert not asked.done()
                await asyncio.sleep(0.01)
            ranks = pairs.ranks(f"{busy[0].group}-node-0")
            for process in ranks:
                process.suspend()
            try:
                assert (await asked).token_ids == oracle.greedy(long, 8)
            finally:
                for process in ranks:
                    process.resume()

    asyncio.run(scenario())
    pairs.wait_for("everybody is ready again", lambda: all(i.state == "ready" for i in pairs.instances()))
    pairs.wait_idle()
