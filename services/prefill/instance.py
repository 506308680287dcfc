"""What one prefill instance does with what it is asked, without wire types: runs, transfers, cancels, drain."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from common.engine.events import BlocksReady, Failed, FirstToken, HandoffReady, PrefillEvent, Started
from common.engine.loop import EngineLoop
from common.engine.prefill_engine import PrefillEngine
from common.errors import Cancelled, Draining, TandemError
from common.request import Work
from common.rpc.convert_transfer import TransferEvent, TransferOpen
from common.rpc.worker_data import PrefillEvent as RunEvent
from common.rpc.worker_data import PrefillFirstToken, PrefillStarted
from common.telemetry.logs import get_log
from common.telemetry.trace import tracing
from common.telemetry.worker_metrics import WorkerMetrics
from common.transfer.source import AnnouncementStream, TransferSource
from services.prefill.runs import Runs

log = get_log(__name__)

PrefillLoop = EngineLoop[PrefillEngine, PrefillEvent]


class PrefillInstance:
    """Lives on the event loop, between the gRPC servicer and the engine thread."""

    def __init__(
        self, engine: PrefillLoop, source: TransferSource, runs: Runs, metrics: WorkerMetrics, lease_s: float
    ) -> None:
        self._engine = engine
        self._source = source
        self._runs = runs
        self._metrics = metrics
        self._renew_every_s = lease_s / 3
        self._draining = False

    async def run(self, work: Work, *, keep_for_decode: bool) -> AsyncGenerator[RunEvent, None]:
        """Queue work and give its events; leaving early cancels it.

        Raises:
            Draining: no new work is taken.
            InvalidInput: the instance can never serve it.
        """
        if self._draining:
            raise Draining("this prefill instance takes no new work")
        self._runs.open(work.work_id, keep_for_decode=keep_for_decode)
        ended = False
        try:
            await asyncio.wrap_future(self._engine.post(lambda engine: engine.submit(work, keep_for_decode)))
            self._metrics.prompt_tokens.inc(len(work.token_ids))
            async for event in self._runs.events(work.work_id):
                ended = isinstance(event, TandemError)
                yield event
            ended = True
        except TandemError as refusal:
            ended = True
            self._metrics.count_failure(refusal)
            raise
        finally:
            self._runs.close(work.work_id)
            if not ended:
                with suppress(TandemError):  # an engine that has ended holds no work
                    self.cancel(work.work_id)

    async def transfer(
        self, opening: TransferOpen, ended_by_reader: asyncio.Event
    ) -> AsyncGenerator[TransferEvent, None]:
        """Announce one work's blocks to its reader until `ended_by_reader` or the lease's end.

        The lease is renewed while the reader's stream lives, and ends with it however that happens.

        Raises:
            LeaseLost, Incompatible: nothing can be read.
        """
        if not opening.work_id:  # a reader that connects before it has work
            self._source.check_reader(opening.incarnation, opening.compatibility)
            yield self._source.hello
            return
        stream = self._source.subscribe(
            opening.work_id, opening.incarnation, opening.compatibility, opening.first_block
        )
        try:
            yield stream.hello
            async with aclosing(self._announcements(stream, ended_by_reader)) as announcements:
                async for announcement in announcements:
                    yield announcement
        finally:
            stream.release()

    async def _announcements(
        self, stream: AnnouncementStream, ended_by_reader: asyncio.Event
    ) -> AsyncGenerator[TransferEvent, None]:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(ready.set)

        stream.call_when_ready(wake)
        end = asyncio.ensure_future(ended_by_reader.wait())
        try:
            while not end.done():
                more = asyncio.ensure_future(ready.wait())
                try:
                    await asyncio.wait({more, end}, timeout=self._renew_every_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    more.cancel()
                ready.clear()
                for announcement in stream.take():
                    yield announcement
                    if isinstance(announcement, TandemError):
                        return
                stream.renew()
        finally:
            end.cancel()

    def cancel(self, work_id: str) -> asyncio.Future[bool]:
        """End work in whatever phase it is; the result says whether it was here."""
        return asyncio.wrap_future(self._engine.post(lambda engine: engine.cancel(work_id)))

    def on_events(self, events: list[PrefillEvent]) -> None:
        """What the engine tells, in order."""
        for event in events:
            with tracing(self._runs.trace(event.work_id)):
                self._on_event(event)
        self._metrics.leases.set(len(self._source))

    def _on_event(self, event: PrefillEvent) -> None:
        match event:
            case Started():
                if self._runs.kept(event.work_id):  # else nobody reads it, and nothing would end the transfer
                    self._source.open(event.work_id, event.blocks)
                self._metrics.cached_tokens.inc(event.cached_tokens)
                self._metrics.queue_seconds.observe(event.queue_s)
                self._runs.put(event.work_id, PrefillStarted(event.cached_tokens, event.queue_s, event.blocks))
            case BlocksReady():
                self._source.announce(event.work_id, event.blocks)
            case FirstToken():
                self._metrics.generated_tokens.inc()
                self._metrics.prefill_seconds.observe(event.prefill_s)
                log.info("prefilled", work_id=event.work_id, tokens=event.token.position, prefill_s=event.prefill_s)
                self._runs.put(event.work_id, PrefillFirstToken(event.token, event.finish_reason, event.prefill_s))
            case HandoffReady():
                self._source.handoff(event.work_id, event.handoff)
            case Failed():
                self._fail(event.work_id, event.error)

    def drain(self) -> None:
        """Take no new work; what is here goes on."""
        self._draining = True

    @property
    def busy(self) -> bool:
        """Somebody still waits for this instance: a run, or a reader."""
        return bool(len(self._runs) or len(self._source))

    def _fail(self, work_id: str, error: TandemError) -> None:
        if not isinstance(error, Cancelled):
            self._metrics.count_failure(error)
            log.warning("work failed", work_id=work_id, reason=error.reason, why=error)
        self._source.end(work_id, error)
        self._runs.put(work_id, error)


class EngineLeases:
    """Where readers' releases and renewals go: to the engine thread, and a release ends the scheduler's run."""

    def __init__(self, engine: PrefillLoop, runs: Runs) -> None:
        self._engine = engine
        self._runs = runs

    def release_lease(self, work_id: str) -> None:
        with suppress(TandemError):  # an engine that has ended holds no lease
            self._engine.post(lambda engine: engine.release_lease(work_id))
        self._runs.released(work_id)

    def renew_lease(self, work_id: str) -> None:
        with suppress(TandemError):
            self._engine.post(lambda engine: engine.renew_lease(work_id))
