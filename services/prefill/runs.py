"""The scheduler's view of prefill: one stream of events for each piece of work."""

import asyncio
from collections.abc import AsyncIterator

from common.errors import DuplicateRequest, TandemError
from common.rpc.worker_data import PrefillEvent, PrefillFirstToken
from common.telemetry.trace import Trace, current_trace


class _Run:
    def __init__(self, kept: bool) -> None:
        self.trace = current_trace()
        self.events: asyncio.Queue[PrefillEvent | None] = asyncio.Queue()
        self.kept = kept  # a reader will still come for the blocks
        self.has_token = False

    @property
    def over(self) -> bool:
        return self.has_token and not self.kept


class Runs:
    """Open Run streams by work id. Lives on the event loop.

    A stream ends after an error, and else once the first token is out and no reader needs the blocks any more: so the
    scheduler sees a prefill that dies in the middle of a transfer.
    """

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def open(self, work_id: str, *, keep_for_decode: bool) -> None:
        if work_id in self._runs:
            raise DuplicateRequest("work.work_id", work_id, "is already here")
        self._runs[work_id] = _Run(keep_for_decode)

    def kept(self, work_id: str) -> bool:
        """Whether a reader is still to come for its blocks."""
        run = self._runs.get(work_id)
        return run is not None and run.kept

    def trace(self, work_id: str) -> Trace | None:
        """Of the request that the work is for."""
        run = self._runs.get(work_id)
        return None if run is None else run.trace

    def put(self, work_id: str, event: PrefillEvent) -> None:
        """Hand an event on. What nobody listens to any more is dropped."""
        run = self._runs.get(work_id)
        if run is None:
            return
        run.events.put_nowait(event)
        run.has_token = run.has_token or isinstance(event, PrefillFirstToken)
        if run.over:
            run.events.put_nowait(None)

    def released(self, work_id: str) -> None:
        """The work's reader is done."""
        run = self._runs.get(work_id)
        if run is not None and run.kept:
            run.kept = False
            if run.over:
                run.events.put_nowait(None)

    async def events(self, work_id: str) -> AsyncIterator[PrefillEvent]:
        """The work's events to its end."""
        run = self._runs[work_id]
        while (event := await run.events.get()) is not None:
            yield event
            if isinstance(event, TandemError):
                return

    def close(self, work_id: str) -> None:
        """Nobody listens any more."""
        self._runs.pop(work_id, None)
