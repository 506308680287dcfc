"""How an attempt learns that its prefill instance is gone."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import WorkerLost
from services.scheduler.attempt_events import AttemptEvent, PrefillEnded
from services.scheduler.prefill_leg import PrefillLeg


class Peer:
    """Its channel is closed under the call, right after it was fenced or without that."""

    def __init__(self, *, fenced: bool) -> None:
        self.lost = asyncio.Event()
        self.client = SimpleNamespace(run=self._run)
        self._fenced = fenced

    async def _run(self, _work: Any, *, keep_for_decode: bool) -> AsyncGenerator[Any, None]:
        if self._fenced:
            self.lost.set()
        if keep_for_decode:
            raise asyncio.CancelledError
        yield None


@pytest.mark.parametrize("fenced", [True, False])
async def test_a_channel_closed_under_the_call_is_a_lost_instance(fenced: bool) -> None:
    heard: list[AttemptEvent] = []
    leg = PrefillLeg(None, None, heard.append, keep_for_decode=True)  # type: ignore[arg-type]
    await asyncio.wait_for(asyncio.create_task(leg._read(Peer(fenced=fenced))), 10)  # type: ignore[arg-type]
    (event,) = heard
    assert isinstance(event, PrefillEnded)
    assert isinstance(event.error, WorkerLost)


class SlowToEnd:
    """Its call takes a while to end after it was cancelled."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.client = SimpleNamespace(run=self._run)
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.ended = False

    async def _run(self, _work: Any, *, keep_for_decode: bool) -> AsyncGenerator[Any, None]:
        self.begun.set()
        try:
            await asyncio.Event().wait()
            yield keep_for_decode
        finally:
            await self.may_end.wait()
            self.ended = True


async def test_a_second_cancellation_still_waits_for_the_calls_end() -> None:
    peer = SlowToEnd()
    leg = PrefillLeg(None, None, lambda _event: None, keep_for_decode=True)  # type: ignore[arg-type]
    reading = asyncio.create_task(leg._read(peer))  # type: ignore[arg-type]
    await peer.begun.wait()
    for _ in range(2):
        reading.cancel()
        await asyncio.wait({reading}, timeout=0.02)
    assert not reading.done()
    peer.may_end.set()
    await asyncio.wait({reading})
    assert reading.cancelled()
    assert peer.ended
