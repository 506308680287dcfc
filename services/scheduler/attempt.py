"""One attempt at one choice: a prefill on one instance, a decode on another, and nothing left behind.

    place prefill ─ Run ─> started ─ place decode, Admit ─> first token ─> joined ─> tokens ... ─> finish
                      │                   │
                      both end with the attempt, however it ends

Everything that happens goes through `_happen`, at once and without waiting, so there is one place that decides and no
task is woken for a token. Tokens that decode sends before prefill's first token came through are kept until it has.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from common.errors import (
    Cancelled,
    DeadlineExceeded,
    DependencyUnavailable,
    Draining,
    InternalError,
    Overloaded,
    Refused,
    TandemError,
    TransferError,
    WorkerLost,
)
from common.request import FinishReason, GeneratedToken, Work
from common.rpc.inference_data import Placement
from common.rpc.worker_data import (
    DecodeRequest,
    PrefillFirstToken,
    PrefillStarted,
    TransferSource,
    WorkEvent,
    WorkFailed,
    WorkJoined,
    WorkPreempted,
    WorkTokens,
)
from services.scheduler.fleet import Fleet
from services.scheduler.ledger import LedgerClock, Part
from services.scheduler.membership import Membership
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.peer import DecodePeer, PrefillPeer
from services.scheduler.placement import place_decode, place_prefill, uncached_tokens
from services.scheduler.settings import SchedulerSettings


class Preempted(Exception):
    """Decode gave the work up to make room; the choice is resumed before new work."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that ended an attempt, and the instances that it speaks against, if any."""

    error: TandemError
    instances: frozenset[str] = frozenset()


class AttemptFailed(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault.error))
        self.fault = fault


@dataclass(frozen=True, slots=True)
class _PrefillEnded:
    error: TandemError | None


@dataclass(frozen=True, slots=True)
class _Admitted:
    instance: str
    error: TandemError | None


_Event = PrefillStarted | PrefillFirstToken | _PrefillEnded | _Admitted | WorkEvent


@dataclass(slots=True)
class Surroundings:
    """What attempts of this replica share."""

    fleet: Fleet
    membership: Membership
    settings: SchedulerSettings
    metrics: SchedulerMetrics
    background: Callable[["asyncio.Task[None]"], None]  # keeps a task until it is done


@dataclass(slots=True)
class AttemptReport:
    """What an attempt has to tell beside tokens."""

    placements: list[Placement] = field(default_factory=list)
    cached_tokens: int | None = None
    drafted: int = 0
    accepted: int = 0


class Attempt:
    """`take` is called with each token in order and with the finish reason of the last; it says whether to go on."""

    def __init__(
        self,
        work: Work,
        around: Surroundings,
        ledger: LedgerClock,
        take: Callable[[GeneratedToken, FinishReason | None], bool],
        placed: Callable[[], None],
        *,
        excluded: frozenset[str],
        resumes: bool,
    ) -> None:
        """`excluded` are instances that the last attempt's error spoke against: taken only without others."""
        self._work = work
        self._around = around
        self._ledger = ledger
        self._take = take
        self._placed = placed
        self._excluded = excluded
        self._resumes = resumes
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._booked: list[str] = []
        self._prefill: PrefillPeer | None = None
        self._prefilling = False
        self._uncached = 0
        self._decode: DecodePeer | None = None
        self._admitting: asyncio.Task[None] | None = None
        self._refusals: list[str] = []
        self._has_first = False
        self._early: list[WorkTokens] = []
        self._finished = False
        self._ended_at_decode = False
        self.report = AttemptReport()

    async def run(self, cached_blocks: Mapping[str, int]) -> None:
        """To the end of the choice.

        Raises:
            AttemptFailed: the choice goes on elsewhere or ends, which is not decided here.
            Preempted
        """
        reader: asyncio.Task[None] | None = None
        try:
            peer = self._place_prefill(cached_blocks)
            reader = asyncio.create_task(self._read_prefill(peer))
            await self._outcome
        except TandemError as error:
            raise AttemptFailed(Fault(error)) from error
        finally:
            if reader is not None:
                reader.cancel()
            if not self._outcome.cancel() and not self._outcome.cancelled():
                self._outcome.exception()  # a cancel may have come between it and us
            self._leave()

    # What may happen.

    def _happen(self, event: _Event) -> None:
        if self._outcome.done():
            return
        try:
            self._handle(event)
        except (TandemError, AttemptFailed, Preempted) as error:
            self._outcome.set_exception(error)
        else:
            if self._finished:
                self._outcome.set_result(None)

    def _handle(self, event: _Event) -> None:
        match event:
            case PrefillStarted():
                self._on_started(event)
            case PrefillFirstToken():
                self._on_first_token(event)
            case _PrefillEnded():
                self._on_prefill_ended(event.error)
            case _Admitted():
                self._on_admitted(event)
            case WorkJoined():
                self._on_joined(event)
            case WorkTokens():
                self._on_tokens(event)
            case WorkPreempted():
                self._ended_at_decode = True
                raise Preempted
            case WorkFailed():
                self._ended_at_decode = True
                raise self._failed(event.error, self._decode_name)

    def _on_started(self, event: PrefillStarted) -> None:
        if not self._resumes:
            self._ledger.enter(Part.PREFILL)
        self.report.cached_tokens = event.cached_tokens
        self._uncached = max(1, len(self._work.token_ids) - event.cached_tokens)
        self._rate_begin()
        if self._needs_decode:
            self._admit()

    def _on_first_token(self, event: PrefillFirstToken) -> None:
        self._rate_end(self._uncached)
        self._unbook(self._prefill_name)
        self._has_first = True
        self._ledger.enter(Part.DECODE_QUEUE)
        self._give(event.token, event.finish_reason)
        early, self._early = self._early, []
        for tokens in early:
            self._on_tokens(tokens)

    def _on_prefill_ended(self, error: TandemError | None) -> None:
        """After the first token decode alone knows whether it has all latent, so it has the word."""
        if not self._has_first or self._decode is None:
            name = self._prefill_name
            raise self._failed(error or InternalError(f"{name}: prefill ended without a first token"), name)

    def _on_admitted(self, event: _Admitted) -> None:
        if event.error is None:
            return
        error = event.error
        if isinstance(error, DependencyUnavailable | WorkerLost | DeadlineExceeded | Cancelled):
            self._around.membership.suspect(event.instance)
        elif not isinstance(error, Refused):
            raise self._failed(error, event.instance)
        self._note_draining(error, event.instance)
        self._refusals.append(event.instance)
        self._release_decode()
        if len(self._refusals) >= self._around.settings.retry.decode_refusals:
            raise self._failed(error, event.instance)
        self._admit()

    def _on_joined(self, event: WorkJoined) -> None:
        self._around.fleet.observe_transfer(self._decode_name, event.exposed_transfer_s)
        if not self._resumes:
            self._ledger.enter(Part.STEPS)
            self._ledger.move(Part.DECODE_QUEUE, Part.EXPOSED_TRANSFER, event.exposed_transfer_s)

    def _on_tokens(self, event: WorkTokens) -> None:
        if not self._has_first:
            self._early.append(event)
            return
        self.report.drafted += event.drafted
        self.report.accepted += event.accepted
        if self._ledger.part is not Part.STEPS:
            self._ledger.enter(Part.STEPS)
        self._ended_at_decode = event.finish_reason is not None
        last = len(event.tokens) - 1
        for i, token in enumerate(event.tokens):
            self._give(token, event.finish_reason if i == last else None)
            if self._finished:
                return

    def _give(self, token: GeneratedToken, finish: FinishReason | None) -> None:
        goes_on = self._take(token, finish)
        self._finished = self._finished or not goes_on

    # What is done about it.

    @property
    def _needs_decode(self) -> bool:
        """One token is prefill's alone."""
        return self._work.limits.max_tokens - self._work.generated_tokens > 1

    @property
    def _prefill_name(self) -> str:
        return self._prefill.known.instance if self._prefill else ""

    @property
    def _decode_name(self) -> str:
        return self._decode.known.instance if self._decode else ""

    def _place_prefill(self, cached_blocks: Mapping[str, int]) -> PrefillPeer:
        fleet, settings = self._around.fleet, self._around.settings
        tokens = len(self._work.token_ids)
        placement = place_prefill(
            tokens, fleet.prefill_states(), cached_blocks, fleet.utilisation(), settings.placement, self._excluded
        )
        self.report.placements.append(placement)
        name = placement.chosen
        self._book(name, uncached_tokens(tokens, cached_blocks.get(name, 0), settings.placement.block_tokens))
        if self._needs_decode:
            fleet.expect(self._work.work_id)
        self._placed()
        peer = self._around.membership.prefill(name)
        if peer is None:
            raise WorkerLost(f"{name}: left the cluster")
        self._prefill = peer
        return peer

    async def _read_prefill(self, peer: PrefillPeer) -> None:
        """Prefill's events into the queue. Ends by itself, when the instance is fenced, or when cancelled."""
        error: TandemError | None = None
        lost = asyncio.create_task(peer.lost.wait())
        run = asyncio.create_task(self._forward(peer))
        try:
            await asyncio.wait({lost, run}, return_when=asyncio.FIRST_COMPLETED)
            error = run.result() if run.done() else WorkerLost(f"{peer.known.instance}: fenced")
        finally:
            lost.cancel()
            run.cancel()
            await asyncio.wait({run})
        self._happen(_PrefillEnded(error))

    async def _forward(self, peer: PrefillPeer) -> TandemError | None:
        events = peer.client.run(self._work, keep_for_decode=self._needs_decode)
        try:
            async for event in events:
                if isinstance(event, TandemError):
                    return event
                self._happen(event)
        except Cancelled as error:  # not by us: we cancel this task, not the call
            return WorkerLost(str(error))
        except TandemError as error:
            return error
        finally:
            await events.aclose()
        return None

    def _admit(self) -> None:
        """Choose a decode instance and give it the transfer. `_Admitted` tells how it went."""
        fleet, settings = self._around.fleet, self._around.settings
        placement = place_decode(
            len(self._work.token_ids), fleet.decode_states(), settings.placement, self._excluded.union(self._refusals)
        )
        if placement.chosen in self._refusals:
            raise Overloaded("every decode instance refused", settings.placement.retry_after_s)
        self.report.placements.append(placement)
        peer = self._around.membership.decode(placement.chosen)
        if peer is None or self._prefill is None:
            raise WorkerLost(f"{placement.chosen}: left the cluster")
        self._book(placement.chosen, len(self._work.token_ids))
        fleet.arrived(self._work.work_id)
        self._decode = peer
        peer.stream.attach(self._work.work_id, self._happen)
        known = self._around.fleet.get(self._prefill.known.instance)
        source = TransferSource(
            self._prefill.known.instance, self._prefill.known.address, known.incarnation if known else 0
        )
        self._admitting = asyncio.create_task(self._ask(peer, DecodeRequest(self._work, source)))
        self._around.background(self._admitting)

    async def _ask(self, peer: DecodePeer, request: DecodeRequest) -> None:
        error: TandemError | None = None
        try:
            await peer.client.admit(request, self._around.settings.admit_timeout_s)
        except TandemError as caught:
            error = caught
        self._happen(_Admitted(peer.known.instance, error))

    # The end.

    def _failed(self, error: TandemError, instance: str) -> AttemptFailed:
        """Also looks after the instance when the error says that it may be gone."""
        self._note_draining(error, instance)
        if isinstance(error, WorkerLost | DependencyUnavailable) and instance:
            self._around.membership.suspect(instance)
            error = error if isinstance(error, WorkerLost) else WorkerLost(str(error))
        against = {instance}
        if isinstance(error, TransferError) and not self._has_first:
            against.add(self._prefill_name)  # its end of the transfer may be the dead one
        return AttemptFailed(Fault(error, frozenset(against - {""})))

    def _note_draining(self, error: TandemError, instance: str) -> None:
        """It says so itself, sooner than the bus does."""
        known = self._around.fleet.get(instance)
        if isinstance(error, Draining) and known is not None:
            self._around.membership.drain(instance, known.incarnation)

    def _leave(self) -> None:
        """Close bookings; end the work at decode unless it ended there itself."""
        self._rate_end(0)
        self._release_decode()
        self._around.fleet.arrived(self._work.work_id)
        for instance in list(self._booked):
            self._unbook(instance)

    def _release_decode(self) -> None:
        peer, admitting = self._decode, self._admitting
        self._decode = self._admitting = None
        if peer is None:
            return
        peer.stream.detach(self._work.work_id)
        self._unbook(peer.known.instance)
        if not self._ended_at_decode:
            self._around.background(asyncio.create_task(self._cancel_decode(peer, admitting)))

    async def _cancel_decode(self, peer: DecodePeer, admitting: "asyncio.Task[None] | None") -> None:
        """After `Admit` has its answer, so that the cancel cannot come first and miss."""
        if admitting is not None:
            await asyncio.wait({admitting})
        try:
            await peer.client.cancel(self._work.work_id)
        except TandemError:
            self._around.metrics.lost_cancels.inc()  # a peer that does not answer drops the work with the stream

    def _book(self, instance: str, tokens: int) -> None:
        self._around.fleet.book(instance, self._work.work_id, tokens)
        self._booked.append(instance)

    def _unbook(self, instance: str) -> None:
        if instance in self._booked:
            self._booked.remove(instance)
            self._around.fleet.close(instance, self._work.work_id)

    def _rate_begin(self) -> None:
        known = self._around.fleet.get(self._prefill_name)
        if known is not None and not self._prefilling:
            self._prefilling = True
            known.rate.begin()

    def _rate_end(self, tokens: int) -> None:
        known = self._around.fleet.get(self._prefill_name)
        if self._prefilling and known is not None:
            known.rate.end(tokens)
        self._prefilling = False
