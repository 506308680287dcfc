"""An attempt's work at prefill: placed, booked, read to the end of its stream, and cancelled by leaving."""

import asyncio
from collections.abc import Callable, Collection, Mapping

from common.cancellation import all_ended
from common.errors import Cancelled, TandemError, WorkerLost
from common.request import Work
from common.rpc.inference_data import Placement
from common.rpc.worker_data import TransferSource
from services.scheduler.attempt_events import AttemptEvent, PrefillEnded
from services.scheduler.peer import PrefillPeer
from services.scheduler.placement import place_prefill, uncached_tokens
from services.scheduler.surroundings import Surroundings


class PrefillLeg:
    """`happen` is called with each event, at last with `PrefillEnded`."""

    def __init__(
        self, work: Work, around: Surroundings, happen: Callable[[AttemptEvent], None], *, keep_for_decode: bool
    ) -> None:
        self._work = work
        self._around = around
        self._happen = happen
        self._keep_for_decode = keep_for_decode
        self._peer: PrefillPeer | None = None
        self._reader: asyncio.Task[None] | None = None
        self.name = ""

    def place(self, cached_blocks: Mapping[str, int], excluded: Collection[str]) -> Placement:
        """Choose an instance and book it; `run` follows.

        Raises:
            NoInstance, InvalidInput: none can take it now, or ever.
        """
        fleet, policy = self._around.fleet, self._around.settings.placement
        tokens = len(self._work.token_ids)
        placement = place_prefill(tokens, fleet.prefill_states(), cached_blocks, fleet.utilisation(), policy, excluded)
        self.name = placement.chosen
        uncached = uncached_tokens(tokens, cached_blocks.get(self.name, 0), policy.block_tokens)
        fleet.book(self.name, self._work.work_id, uncached)
        return placement

    def run(self) -> None:
        """
        Raises:
            WorkerLost: the instance left the cluster.
        """
        self._peer = self._around.membership.prefill(self.name)
        if self._peer is None:
            raise WorkerLost(f"{self.name}: left the cluster")
        self._reader = asyncio.create_task(self._read(self._peer))

    def source(self) -> TransferSource:
        """Where decode finds the work's blocks."""
        known = self._around.fleet.get(self.name)
        if self._peer is None or known is None:
            raise WorkerLost(f"{self.name}: left the cluster")
        return TransferSource(self.name, self._peer.known.address, known.incarnation)

    def computed(self) -> None:
        """The first token came: the instance has nothing more to compute for this work."""
        self._around.fleet.close(self.name, self._work.work_id)

    def leave(self) -> None:
        """Stop reading, which cancels what is left of the work there."""
        if self._reader is not None:
            self._reader.cancel()
        self._around.fleet.close(self.name, self._work.work_id)

    async def _read(self, peer: PrefillPeer) -> None:
        """Until the stream ends, the instance is fenced, or we leave."""
        lost = asyncio.create_task(peer.lost.wait())
        run = asyncio.create_task(self._forward(peer))
        try:
            await asyncio.wait({lost, run}, return_when=asyncio.FIRST_COMPLETED)
            # Closing a fenced instance's channel cancels the calls on it from below: that is its loss, not our leaving.
            ended = run.done() and not run.cancelled()
            error = run.result() if ended else WorkerLost(f"{self.name}: fenced")
        finally:
            lost.cancel()
            run.cancel()
            await all_ended({run})
        self._happen(PrefillEnded(error))

    async def _forward(self, peer: PrefillPeer) -> TandemError | None:
        events = peer.client.run(self._work, keep_for_decode=self._keep_for_decode)
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
