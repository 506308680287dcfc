"""An attempt's work at decode: placed, admitted where it is not refused, and cancelled unless it ended there."""

import asyncio
from collections.abc import Callable, Collection

from common.errors import (
    Cancelled,
    DeadlineExceeded,
    DependencyUnavailable,
    Overloaded,
    Refused,
    TandemError,
    WorkerLost,
)
from common.request import Work
from common.rpc.inference_data import Placement
from common.rpc.worker_data import DecodeRequest, TransferSource
from services.scheduler.attempt_events import Admitted, AttemptEvent
from services.scheduler.peer import DecodePeer
from services.scheduler.placement import place_decode
from services.scheduler.surroundings import Surroundings


class DecodeLeg:
    """`happen` is called with the answer to each `admit`, and with everything that decode says about the work."""

    def __init__(self, work: Work, around: Surroundings, happen: Callable[[AttemptEvent], None]) -> None:
        self._work = work
        self._around = around
        self._happen = happen
        self._peer: DecodePeer | None = None
        self._asking: asyncio.Task[None] | None = None
        self._refused_by: list[str] = []
        self.ended = False  # the instance itself ended the work and has nothing to cancel

    @property
    def name(self) -> str:
        """The instance that has the work, or is asked to take it."""
        return self._peer.known.instance if self._peer else ""

    def expect(self) -> None:
        """The work is on its way and will need a seat."""
        self._around.fleet.expect(self._work.work_id)

    def admit(self, source: TransferSource, excluded: Collection[str]) -> Placement:
        """Choose an instance and give it the transfer; `Admitted` tells how it went.

        Raises:
            NoInstance, Overloaded, InvalidInput: none can take it now, or ever.
            WorkerLost: the chosen one left the cluster or has no open stream.
        """
        fleet, settings = self._around.fleet, self._around.settings
        tokens = len(self._work.token_ids)
        avoided = {*excluded, *self._refused_by}
        placement = place_decode(tokens, fleet.decode_states(), settings.placement, avoided)
        if placement.chosen in self._refused_by:
            raise Overloaded("every decode instance refused", settings.placement.retry_after_s)
        peer = self._around.membership.decode(placement.chosen)
        if peer is None:
            raise WorkerLost(f"{placement.chosen}: left the cluster")
        peer.stream.attach(self._work.work_id, self._happen)
        fleet.book(placement.chosen, self._work.work_id, tokens)
        fleet.arrived(self._work.work_id)
        self._peer = peer
        self._asking = asyncio.create_task(self._ask(peer, DecodeRequest(self._work, source)))
        self._around.background(self._asking)
        return placement

    def refused(self, error: TandemError) -> bool:
        """Take a refusal; whether another instance may be asked."""
        name = self.name
        if isinstance(error, DependencyUnavailable | WorkerLost | DeadlineExceeded | Cancelled):
            self._around.membership.suspect(name)
        elif not isinstance(error, Refused):
            return False
        self._around.note_draining(error, name)
        self._refused_by.append(name)
        self._release()
        return len(self._refused_by) < self._around.settings.retry.decode_refusals

    def leave(self) -> None:
        self._release()
        self._around.fleet.arrived(self._work.work_id)

    def _release(self) -> None:
        peer, asking = self._peer, self._asking
        self._peer = self._asking = None
        if peer is None:
            return
        peer.stream.detach(self._work.work_id)
        self._around.fleet.close(peer.known.instance, self._work.work_id)
        if not self.ended:
            self._around.background(asyncio.create_task(self._cancel(peer, asking)))

    async def _ask(self, peer: DecodePeer, request: DecodeRequest) -> None:
        error: TandemError | None = None
        try:
            await peer.client.admit(request, self._around.settings.admit_timeout_s)
        except TandemError as caught:
            error = caught
        self._happen(Admitted(peer.known.instance, error))

    async def _cancel(self, peer: DecodePeer, asking: "asyncio.Task[None] | None") -> None:
        """After `Admit` has its answer, so that the cancel cannot come first and miss."""
        if asking is not None:
            await asyncio.wait({asking})
        try:
            await peer.client.cancel(self._work.work_id)
        except TandemError:
            self._around.metrics.lost_cancels.inc()  # a peer that is gone drops the work with the stream
            if self._around.repeat_cancel is not None:
                await self._around.repeat_cancel(self._work.work_id)
