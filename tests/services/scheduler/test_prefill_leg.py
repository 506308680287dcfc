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
