"""The scheduler's view of prefill: one stream of events for each piece of work."""

import asyncio
from collections.abc import AsyncIterator

from common.rpc.worker_data import PrefillEvent
from common.errors import DuplicateRequest, TandemError


class Runs:
    """Open Run streams by work id. Lives on the event loop.

    A stream ends after an error, after the first token of work nobody will decode, and else when its lease has ended:
    so the scheduler sees a prefill that dies in the middle of a transfer.
    """

    def __init__(self) -> None:
        self._queues: dict[str, asyncio.Queue[PrefillEvent | None]] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, work_id: object) -> bool:
        return work_id in self._queues

    def open(self, work_id: str) -> None:
        if work_id in self._queues:
            raise DuplicateRequest("work.work_id", work_id, "is already here")
        self._queues[work_id] = asyncio.Queue()

    def put(self, work_id: str, event: PrefillEvent) -> None:
        """Hand an event on; an error is the last one. What nobody listens to any more is dropped."""
        queue = self._queues.get(work_id)
        if queue is not None:
            queue.put_nowait(event)

    def end(self, work_id: str) -> None:
        queue = self._queues.get(work_id)
        if queue is not None:
            queue.put_nowait(None)

    async def events(self, work_id: str) -> AsyncIterator[PrefillEvent]:
        """The work's events to its end; leaving early is the caller's to act on."""
        queue = self._queues[work_id]
        try:
            while (event := await queue.get()) is not None:
                yield event
                if isinstance(event, TandemError):
                    return
        finally:
            del self._queues[work_id]
