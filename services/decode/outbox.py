"""What waits to be sent to one scheduler: a bounded queue of step batches, one message a step."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from common.errors import Overloaded
from common.rpc.worker_data import StepBatch, WorkEvent

_RETRY_AFTER_S = 1.0


class Outbox:
    """Belongs to one open Steps stream. A scheduler that reads too slowly loses its stream and never holds blocks.

    Args:
        scheduler: whose stream it is.
        incarnation: the instance's, on every batch.
        limit_batches: how many may wait.

    Attributes:
        overflowed: the reader fell behind; nothing more is queued.
    """

    def __init__(self, scheduler: str, incarnation: int, limit_batches: int) -> None:
        self.scheduler = scheduler
        self._incarnation = incarnation
        self._limit_batches = limit_batches
        self._batches: asyncio.Queue[StepBatch | None] = asyncio.Queue()
        self.overflowed = False
        self._closed = False
        self._batches.put_nowait(StepBatch(incarnation, 0))

    def put(self, step: int, events: Sequence[WorkEvent]) -> None:
        """Queue one step's events."""
        if self._closed:
            return
        if self._batches.qsize() >= self._limit_batches:
            self.overflowed = True
            self.close()
            return
        self._batches.put_nowait(StepBatch(self._incarnation, step, tuple(events)))

    def close(self) -> None:
        """No more batches; the stream ends after those that wait."""
        if not self._closed:
            self._closed = True
            self._batches.put_nowait(None)

    async def batches(self) -> AsyncIterator[StepBatch]:
        """The stream's content; the first batch is empty and tells the incarnation.

        Raises:
            Overloaded: the reader fell behind the limit; what it missed is lost.
        """
        while (batch := await self._batches.get()) is not None:
            yield batch
        if self.overflowed:
            raise Overloaded(f"{self.scheduler} is {self._limit_batches} steps behind", _RETRY_AFTER_S)
