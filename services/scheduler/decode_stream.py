"""The tokens of one decode instance: one stream for all of this replica's work there."""

import asyncio
from collections.abc import Callable

from common.errors import TandemError, WorkerLost
from common.rpc.clients import DecodeClient
from common.rpc.worker_data import WorkEvent, WorkFailed
from common.telemetry.logs import get_log

log = get_log(__name__)
_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)


class DecodeStream:
    """Keeps `Steps` open and hands each event to the work it is about.

    The instance drops our work when the stream ends, and a new process has another incarnation, so whatever ends the
    stream loses its work: everything attached gets `WorkerLost`. Nothing of an ended stream is ever delivered, which
    fences a stopped instance that comes back with late tokens.
    """

    def __init__(
        self,
        client: DecodeClient,
        instance: str,
        scheduler: str,
        *,
        opened: Callable[[int], None],
        broken: Callable[[], None],
    ) -> None:
        """
        Args:
            opened: called with the incarnation whenever work may be admitted (again).
            broken: called when it may not any more.
        """
        self._client = client
        self._instance = instance
        self._scheduler = scheduler
        self._opened, self._broken = opened, broken
        self._attached: dict[str, Callable[[WorkEvent], None]] = {}
        self._reader: asyncio.Task[None] | None = None
        self.incarnation: int | None = None  # None while the stream is not open

    def attach(self, work_id: str, take: Callable[[WorkEvent], None]) -> None:
        """Events of this work go to `take` from now on.

        Raises:
            WorkerLost: the stream is not open.
        """
        if self.incarnation is None:
            raise WorkerLost(f"{self._instance}: no open stream of tokens")
        self._attached[work_id] = take

    def detach(self, work_id: str) -> None:
        self._attached.pop(work_id, None)

    def fence(self, why: str) -> None:
        """End the present stream and lose its work; a new one is opened when the instance answers."""
        self._lose(WorkerLost(f"{self._instance}: {why}"))
        if self._reader is not None:
            self._reader.cancel()

    async def run(self) -> None:
        """Read, and open again after every end, until cancelled."""
        failures = 0
        try:
            while True:
                self._reader = asyncio.create_task(self._read())
                await asyncio.wait({self._reader})
                error = self._reader.exception() if not self._reader.cancelled() else None
                if error is not None and not isinstance(error, TandemError):
                    raise error
                was_open = self.incarnation is not None
                self._lose(WorkerLost(f"{self._instance}: stream of tokens ended: {error or 'closed'}"))
                failures = 0 if was_open else failures + 1
                await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
        finally:
            if self._reader is not None:
                self._reader.cancel()
            self._lose(WorkerLost(f"{self._instance}: left the cluster"))

    async def _read(self) -> None:
        async for batch in self._client.steps(self._scheduler):
            if self.incarnation is None:
                self.incarnation = batch.incarnation
                self._opened(batch.incarnation)
            for event in batch.events:
                take = self._attached.get(event.work_id)
                if take is not None:  # else its work ended here first
                    take(event)

    def _lose(self, error: WorkerLost) -> None:
        was_open, self.incarnation = self.incarnation is not None, None
        attached, self._attached = self._attached, {}
        for work_id, take in attached.items():
            take(WorkFailed(work_id, error))
        if was_open:
            log.warning("decode stream lost", instance=self._instance, work=len(attached), why=str(error))
            self._broken()
