"""A client that leaves, at any phase, leaves nothing behind."""

import asyncio
import random

import pytest

from common.errors import Cancelled, DeadlineExceeded
from tests.cluster.running import RunningCluster, ask, greedy

LONG = [random.Random(5).randrange(2, 512) for _ in range(700)]


@pytest.mark.parametrize("after_tokens", [1, 2, 20])
def test_leaving_in_the_stream(pairs: RunningCluster, after_tokens: int) -> None:
    async def leave() -> None:
        async with pairs.client() as client:
            seen = 0
            async for delta in client.generate(greedy([9, *LONG[:50]], 400)):
                seen += len(delta.token_ids)
                if seen >= after_tokens:
                    return

    asyncio.run(leave())
    pairs.wait_idle()


@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4])
def test_cancel_by_id_at_any_time(pairs: RunningCluster, delay_s: float) -> None:
    """From the queue over prefill and transfer to decode."""

    async def cancel() -> None:
        async with pairs.client() as client:
            name = f"cancel-{delay_s}"
            asked = asyncio.ensure_future(ask(client, greedy([int(delay_s * 1000) % 500, *LONG], 300, request_id=name)))
            await asyncio.sleep(delay_s)
            while not (await client.cancel(name)).found:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            with pytest.raises(Cancelled):
                await asked

    asyncio.run(cancel())
    pairs.wait_idle()


def test_a_deadline_ends_the_request_on_both_sides(pairs: RunningCluster) -> None:
    async def late() -> None:
        async with pairs.client() as client:
            with pytest.raises(DeadlineExceeded):
                await ask(client, greedy(LONG[:100], 900, deadline_ms=400))

    asyncio.run(late())
    pairs.wait_idle()
