import asyncio

import pytest

from common.errors import DuplicateRequest, LeaseLost
from common.request import GeneratedToken
from common.rpc.worker_data import PrefillEvent, PrefillFirstToken, PrefillStarted
from services.prefill.runs import Runs

STARTED = PrefillStarted(0, 0.0, 1)
TOKEN = PrefillFirstToken(GeneratedToken(3, 5), None, 0.1)


async def collect(runs: Runs) -> list[PrefillEvent]:
    return [event async for event in runs.events("w")]


async def test_work_nobody_decodes_ends_with_its_token() -> None:
    runs = Runs()
    runs.open("w", keep_for_decode=False)
    runs.put("w", STARTED)
    runs.put("w", TOKEN)
    assert await asyncio.wait_for(collect(runs), 5) == [STARTED, TOKEN]


@pytest.mark.parametrize("released_first", [False, True])
async def test_kept_work_ends_once_it_has_a_token_and_no_reader(released_first: bool) -> None:
    runs = Runs()
    runs.open("w", keep_for_decode=True)
    reading = asyncio.ensure_future(collect(runs))
    runs.put("w", STARTED)
    actions = [lambda: runs.put("w", TOKEN), lambda: runs.released("w")]
    for act in reversed(actions) if released_first else actions:
        await asyncio.sleep(0)
        assert not reading.done()
        act()
    assert await asyncio.wait_for(reading, 5) == [STARTED, TOKEN]


async def test_an_error_is_the_last_event() -> None:
    runs = Runs()
    runs.open("w", keep_for_decode=True)
    lost = LeaseLost("expired")
    for event in (STARTED, TOKEN, lost):
        runs.put("w", event)
    assert await asyncio.wait_for(collect(runs), 5) == [STARTED, TOKEN, lost]
    runs.close("w")
    runs.put("w", STARTED)
    assert len(runs) == 0


async def test_an_id_is_open_once() -> None:
    runs = Runs()
    runs.open("w", keep_for_decode=False)
    with pytest.raises(DuplicateRequest):
        runs.open("w", keep_for_decode=False)
