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

from common.errors import DependencyUnavailable, InternalError, TandemError, TransferError, WorkerLost
from common.request import FinishReason, GeneratedToken, Work
from common.rpc.inference_data import Placement
from common.rpc.worker_data import PrefillFirstToken, PrefillStarted, WorkFailed, WorkJoined, WorkPreempted, WorkTokens
from services.scheduler.attempt_events import Admitted, AttemptEvent, HandoffLost, PrefillEnded
from services.scheduler.decode_leg import DecodeLeg
from services.scheduler.ledger import LedgerClock, Part
from services.scheduler.prefill_leg import PrefillLeg
from services.scheduler.surroundings import Surroundings


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
        self._around = around
        self._ledger = ledger
        self._take = take
        self._placed = placed
        self._excluded = excluded
        self._resumes = resumes
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._needs_decode = work.limits.max_tokens - work.generated_tokens > 1  # one token is prefill's alone
        self._prefill = PrefillLeg(work, around, self._happen, keep_for_decode=self._needs_decode)
        self._decode = DecodeLeg(work, around, self._happen)
        self._has_first = False
        self._joined = False
        self._early: list[WorkTokens] = []
        self._finished = False
        self.report = AttemptReport()

    async def run(self, cached_blocks: Mapping[str, int]) -> None:
        """To the end of the choice.

        Raises:
            AttemptFailed: the choice goes on elsewhere or ends, which is not decided here.
            Preempted
        """
        try:
            self.report.placements.append(self._prefill.place(cached_blocks, self._excluded))
            if self._needs_decode:
                self._decode.expect()
            self._placed()
            self._prefill.run()
            await self._outcome
        except TandemError as error:
            raise AttemptFailed(Fault(error)) from error
        finally:
            if not self._outcome.cancel() and not self._outcome.cancelled():
                self._outcome.exception()  # a cancel may have come between it and us
            self._prefill.leave()
            self._decode.leave()

    def _happen(self, event: AttemptEvent) -> None:
        if self._outcome.done():
            return
        try:
            self._handle(event)
        except (TandemError, AttemptFailed, Preempted) as error:
            self._outcome.set_exception(error)
        else:
            if self._finished:
                self._outcome.set_result(None)

    def _handle(self, event: AttemptEvent) -> None:
        match event:
            case PrefillStarted():
                self._on_started(event)
            case PrefillFirstToken():
                self._on_first_token(event)
            case PrefillEnded():
                self._on_prefill_ended(event.error)
            case Admitted():
                self._on_admitted(event)
            case HandoffLost():
                if not self._joined:
                    raise self._failed(event.error, self._prefill.name)
            case WorkJoined():
                self._on_joined(event)
            case WorkTokens():
                self._on_tokens(event)
            case WorkPreempted():
                self._decode.ended = True
                raise Preempted
            case WorkFailed():
                self._decode.ended = True
                raise self._failed(event.error, self._decode.name)

    def _on_started(self, event: PrefillStarted) -> None:
        if not self._resumes:
            self._ledger.enter(Part.PREFILL)
        self.report.cached_tokens = event.cached_tokens
        if self._needs_decode:
            self._admit()

    def _on_first_token(self, event: PrefillFirstToken) -> None:
        self._prefill.computed()
        self._has_first = True
        self._ledger.enter(Part.DECODE_QUEUE)
        self._give(event.token, event.finish_reason)
        early, self._early = self._early, []
        for tokens in early:
            if not self._finished:  # the first token may have completed a stop string
                self._on_tokens(tokens)

    def _on_prefill_ended(self, error: TandemError | None) -> None:
        """After the first token decode alone knows whether it has all latent, so it has the word for a while."""
        if not self._has_first or not self._decode.name:
            name = self._prefill.name
            raise self._failed(error or InternalError(f"{name}: prefill ended without a first token"), name)
        if error is not None and not self._joined:
            grace_s = self._around.settings.handoff_grace_s
            asyncio.get_running_loop().call_later(grace_s, self._happen, HandoffLost(error))

    def _on_admitted(self, event: Admitted) -> None:
        if event.error is None:
            return
        if not self._decode.refused(event.error):
            raise self._failed(event.error, event.instance)
        self._admit()

    def _on_joined(self, event: WorkJoined) -> None:
        self._joined = True
        self._around.fleet.observe_transfer(self._decode.name, event.exposed_transfer_s)
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
        self._decode.ended = event.finish_reason is not None
        last = len(event.tokens) - 1
        for i, token in enumerate(event.tokens):
            self._give(token, event.finish_reason if i == last else None)
            if self._finished:
                return

    def _give(self, token: GeneratedToken, finish: FinishReason | None) -> None:
        goes_on = self._take(token, finish)
        self._finished = self._finished or not goes_on

    def _admit(self) -> None:
        self.report.placements.append(self._decode.admit(self._prefill.source(), self._excluded))

    def _failed(self, error: TandemError, instance: str) -> AttemptFailed:
        """Also looks after the instance when the error says that it may be gone."""
        self._around.note_draining(error, instance)
        if isinstance(error, WorkerLost | DependencyUnavailable) and instance:
            self._around.membership.suspect(instance)
            error = error if isinstance(error, WorkerLost) else WorkerLost(str(error))
        against = {instance}
        if isinstance(error, TransferError) and not self._has_first:
            against.add(self._prefill.name)  # its end of the transfer may be the dead one
        return AttemptFailed(Fault(error, frozenset(against - {""})))
