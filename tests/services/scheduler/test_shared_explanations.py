"""Any replica says why, whichever served the request."""

import time

import pytest

from common.errors import DependencyUnavailable, InvalidInput
from services.scheduler.shared_explanations import ANSWER_WITHIN_S, share_explanations
from tests.fakes.replicas import replicas
from tests.services.scheduler.requests import ask


async def test_any_replica_explains(nats_url, cluster):
    async with replicas(nats_url, cluster, 3, share_explanations) as made:
        (server, _), *others = made
        await server.ask(ask(request_id="r"))
        explained = await server.client.explain("r")
        assert [placement.role for placement in explained.placements] == ["prefill", "decode"]
        assert explained.ledger.total_s > 0
        for other, _ in others:
            assert await other.client.explain("r") == explained


async def test_what_nobody_served_is_not_explained(nats_url, cluster):
    for count in (1, 3):
        async with replicas(nats_url, cluster, count, share_explanations) as made:
            begun_s = time.monotonic()
            with pytest.raises(InvalidInput, match="request_id = none"):
                await made[0][0].client.explain("none")
            assert time.monotonic() - begun_s < (2.0 if count > 1 else ANSWER_WITHIN_S)  # nobody to wait for


async def test_who_cannot_ask_does_not_say_that_there_was_no_such_request(cluster, own_nats):
    server = own_nats()
    async with replicas(server.url, cluster, 1, share_explanations) as made:
        ((one, bus),) = made
        await one.ask(ask(request_id="mine"))
        await bus.close()
        with pytest.raises(DependencyUnavailable, match="not connected"):
            await one.client.explain("other")
        assert (await one.client.explain("mine")).outcome == "length"
