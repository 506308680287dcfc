"""Connects to prefill instances ahead of work: that takes half a second, which no request need wait."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.clock import Clock
from common.errors import DependencyUnavailable, Incompatible, TandemError
from common.rpc.worker_data import TransferSource
from common.state.worker_leases import WorkerLeases, WorkerRecord
from common.telemetry.logs import get_log
from services.decode.reads import Reads

log = get_log(__name__)

_LOOK_EVERY_S = 0.25
PART_AFTER_S = 60.0  # without a lease; a stopped process that comes back sooner finds its connection


@dataclass(slots=True)
class _Acquainted:
    source: TransferSource
    seen_s: float


class Acquaintances:
    """The prefill instances that this decode instance is connected to."""

    def __init__(self, reads: Reads, clock: Clock) -> None:
        self._reads = reads
        self._clock = clock
        self._known: dict[str, _Acquainted] = {}
        self._refusals: dict[str, str] = {}  # why not, said once

    async def keep(self, leases: Callable[[], WorkerLeases]) -> None:
        """Follow the leases until cancelled. While nobody can say who has one, nothing changes."""
        while True:
            try:
                listed = await leases().current()
            except DependencyUnavailable:  # whoever keeps this instance's lease says so
                await asyncio.sleep(_LOOK_EVERY_S)
                continue
            await self.meet(listed)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def meet(self, listed: Sequence[WorkerRecord]) -> None:
        """Greet every incarnation once, part from the one that it replaced and from those that left long ago."""
        names = {record.instance for record in listed}
        self._refusals = {name: why for name, why in self._refusals.items() if name in names}
        for record in listed:
            source = TransferSource(record.instance, record.address, record.incarnation)
            before = self._known.get(record.instance)
            if record.role != "prefill":
                continue
            if before is not None and before.source == source:
                before.seen_s = self._clock.now_s()
            elif await self._greet(source):
                self._known[record.instance] = _Acquainted(source, self._clock.now_s())
                if before is not None:
                    await self._part(before.source)
        for name, one in list(self._known.items()):
            if self._clock.now_s() - one.seen_s > PART_AFTER_S:
                del self._known[name]
                await self._part(one.source)

    async def _part(self, source: TransferSource) -> None:
        now = [one.source for one in self._known.values()]
        if not any((one.instance, one.incarnation) == (source.instance, source.incarnation) for one in now):
            self._reads.part(source)
        if not any(one.address == source.address for one in now):
            await self._reads.hang_up(source.address)

    async def _greet(self, source: TransferSource) -> bool:
        try:
            await self._reads.acquaint(source)
        except TandemError as error:
            if self._refusals.get(source.instance) != str(error):
                self._refusals[source.instance] = str(error)
                said = log.error if isinstance(error, Incompatible) else log.info
                said("prefill cannot be read from", instance=source.instance, why=error)
            return False
        self._refusals.pop(source.instance, None)
        return True
