"""What one decode instance does with what it is asked, without wire types: admit, read, send tokens, cancel, drain."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from common.engine.decode_engine import DecodeEngine
from common.engine.events import DecodeEvent, Failed, Preempted, Reserved, Tokens
from common.engine.loop import EngineLoop
from common.errors import Cancelled, Draining, DuplicateRequest, Refused, TandemError
from common.request import Work
from common.rpc.worker_data import (
    DecodeRequest,
    StepBatch,
    TransferSource,
    WorkEvent,
    WorkFailed,
    WorkJoined,
    WorkPreempted,
    WorkTokens,
)
from common.telemetry.logs import get_log
from common.telemetry.trace import Trace, current_trace, tracing
from common.telemetry.worker_metrics import WorkerMetrics
from services.decode.outbox import Outbox
from services.decode.reads import Reads, Wanted

log = get_log(__name__)

DecodeLoop = EngineLoop[DecodeEngine, DecodeEvent]


@dataclass(slots=True)
class _Admitted:
    work: Work
    source: TransferSource
    outbox: Outbox
    queue_s: float = 0.0
    reading_blocks: int = 0
    trace: Trace | None = field(default_factory=current_trace)


class DecodeInstance:
    """Lives on the event loop, between the gRPC servicer, the engine thread and the reads.

    Args:
        chain_hashes: of a work's full blocks.
        outbox_limit_batches: steps that a scheduler may be behind.
    """

    def __init__(
        self,
        engine: DecodeLoop,
        reads: Reads,
        metrics: WorkerMetrics,
        incarnation: int,
        block_bytes: int,
        chain_hashes: Callable[[Work], list[bytes]],
        outbox_limit_batches: int = 4096,
    ) -> None:
        self._engine = engine
        self._reads = reads
        self._metrics = metrics
        self._incarnation = incarnation
        self._block_bytes = block_bytes
        self._chain_hashes = chain_hashes
        self._outbox_limit_batches = outbox_limit_batches
        self._outboxes: dict[str, Outbox] = {}
        self._works: dict[str, _Admitted] = {}
        self._step = 0
        self._draining = False

    async def steps(self, scheduler: str) -> AsyncGenerator[StepBatch, None]:
        """All tokens of one scheduler's work; when the stream ends, however it does, that work is dropped.

        A second stream of the same scheduler takes the place of the first, whose work is dropped.
        """
        outbox = Outbox(scheduler, self._incarnation, self._outbox_limit_batches)
        if (previous := self._outboxes.get(scheduler)) is not None:
            self._drop(previous)
        self._outboxes[scheduler] = outbox
        try:
            async for batch in outbox.batches():
                yield batch
        finally:
            self._drop(outbox)

    async def admit(self, request: DecodeRequest) -> int:
        """Queue work; returns how many were queued before it.

        Raises:
            Draining, Refused: it is not taken here now.
            InvalidInput: the instance can never serve it; DuplicateRequest: it is here.
        """
        work = request.work
        if self._draining:
            raise Draining("this decode instance takes no new work")
        outbox = self._outboxes.get(work.scheduler)
        if outbox is None:
            raise Refused(f"no Steps stream of {work.scheduler} is open here")
        if work.work_id in self._works:
            raise DuplicateRequest("work_id", work.work_id, "is already here")
        asked = self._engine.post(lambda engine: engine.admit(work))
        self._works[work.work_id] = _Admitted(work, request.source, outbox)
        # Who asks may give up in the meantime. The engine takes the work all the same, so its books must be kept.
        return await asyncio.shield(asyncio.ensure_future(self._admitted(work, asked)))

    async def _admitted(self, work: Work, asked: "Future[int]") -> int:
        try:
            return await asyncio.wrap_future(asked)
        except TandemError as refusal:
            self._metrics.count_failure(refusal)
            self._works.pop(work.work_id, None)
            raise

    def cancel(self, work_id: str) -> asyncio.Future[bool]:
        """End work in whatever phase it is; the result says whether it was here."""
        return asyncio.wrap_future(self._engine.post(lambda engine: engine.cancel(work_id)))

    def on_events(self, events: list[DecodeEvent]) -> None:
        """What one engine step tells."""
        self._step += 1
        messages: defaultdict[int, list[WorkEvent]] = defaultdict(list)
        boxes: dict[int, Outbox] = {}
        for event in events:
            admitted = self._works.get(event.work_id)
            if admitted is None:
                continue
            with tracing(admitted.trace):
                message = self._message(admitted, event)
            if message is not None:
                boxes[id(admitted.outbox)] = admitted.outbox
                messages[id(admitted.outbox)].append(message)
        for key, outbox in boxes.items():
            self._send(outbox, messages[key])

    def joined(self, work_id: str, exposed_transfer_s: float, *, over: bool) -> None:
        """All latent of the work is here; its tokens come next, unless its first one was its last."""
        admitted = self._works.pop(work_id, None) if over else self._works.get(work_id)
        if admitted is not None:
            self._metrics.transferred_bytes.inc(admitted.reading_blocks * self._block_bytes)
            admitted.reading_blocks = 0
            self._metrics.exposed_transfer_seconds.observe(exposed_transfer_s)
            self._send(admitted.outbox, [WorkJoined(work_id, admitted.queue_s, exposed_transfer_s)])

    def drain(self) -> None:
        """Take no new work; what is here goes on."""
        self._draining = True

    @property
    def busy(self) -> bool:
        return bool(self._works or len(self._reads))

    def close(self) -> None:
        """End every stream, once nothing is left to send."""
        for outbox in self._outboxes.values():
            outbox.close()

    def _send(self, outbox: Outbox, events: Sequence[WorkEvent]) -> None:
        outbox.put(self._step, events)
        if outbox.overflowed and self._outboxes.get(outbox.scheduler) is outbox:
            # At once: its transport may never take what it has, and the stream would not end.
            self._drop(outbox)

    def _message(self, admitted: _Admitted, event: DecodeEvent) -> WorkEvent | None:
        match event:
            case Reserved():
                self._begin_read(admitted, event)
                return None
            case Tokens():
                self._metrics.generated_tokens.inc(len(event.tokens))
                self._metrics.drafted_tokens.inc(event.drafted)
                self._metrics.accepted_tokens.inc(event.accepted)
                if event.finish_reason is not None:
                    del self._works[event.work_id]
                    log.info("decoded", work_id=event.work_id, finish=event.finish_reason.value)
                return WorkTokens(event.work_id, event.tokens, event.finish_reason, event.drafted, event.accepted)
            case Preempted():
                self._metrics.preemptions.inc()
                del self._works[event.work_id]
                return WorkPreempted(event.work_id)
            case Failed():
                del self._works[event.work_id]
                if admitted.reading_blocks:
                    self._reads.abort(event.work_id)
                if not isinstance(event.error, Cancelled):
                    self._metrics.count_failure(event.error)
                    log.warning("work failed", work_id=event.work_id, reason=event.error.reason, why=event.error)
                return WorkFailed(event.work_id, event.error)

    def _begin_read(self, admitted: _Admitted, reserved: Reserved) -> None:
        admitted.queue_s = reserved.queue_s
        admitted.reading_blocks = len(reserved.blocks) - reserved.cached_blocks
        self._metrics.queue_seconds.observe(reserved.queue_s)
        self._metrics.prompt_tokens.inc(len(admitted.work.token_ids))
        self._reads.start(
            Wanted(
                reserved.work_id,
                admitted.source,
                reserved.cached_blocks,
                reserved.blocks,
                tuple(self._chain_hashes(admitted.work)),
            )
        )

    def _drop(self, outbox: Outbox) -> None:
        """The scheduler is not there any more: nobody wants its work."""
        outbox.close()
        if self._outboxes.get(outbox.scheduler) is outbox:
            del self._outboxes[outbox.scheduler]
        left = [work_id for work_id, admitted in self._works.items() if admitted.outbox is outbox]
        if left:
            log.info("dropping a scheduler's work", scheduler=outbox.scheduler, works=len(left))
        with suppress(TandemError):  # an engine that has ended holds no work
            for work_id in left:
                self.cancel(work_id)
