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


@dataclass(frozen=True, slots=True)
class _Stranger:
    """Has a lease and cannot be read from."""

    source: TransferSource
    why: str  # said once


class Acquaintances:
    """The prefill instances that this decode instance is connected to."""

    def __init__(self, reads: Reads, clock: Clock) -> None:
        self._reads = reads
        self._clock = clock
        self._known: dict[str, _Acquainted] = {}
        self._strangers: dict[str, _Stranger] = {}

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
        for name in self._strangers.keys() - names:
            await self._part(self._strangers.pop(name).source)
        for record in listed:
            source = TransferSource(record.instance, record.address, record.incarnation)
            before = self._known.get(record.instance)
            if record.role != "prefill":
                continue
            if before is not None and before.source == source:
                before.seen_s = self._clock.now_s()
            else:
                await self._greet(source)
        for name, one in list(self._known.items()):
            if self._clock.now_s() - one.seen_s > PART_AFTER_S:
                del self._known[name]
                await self._part(one.source)

    async def _part(self, source: TransferSource) -> None:
        now = [one.source for one in self._known.values()] + [one.source for one in self._strangers.values()]
        if not any((one.instance, one.incarnation) == (source.instance, source.incarnation) for one in now):
            self._reads.part(source)
        if not any(one.address == source.address for one in now):
            await self._reads.hang_up(source.address)

    async def _greet(self, source: TransferSource) -> None:
        known, stranger = self._known.get(source.instance), self._strangers.get(source.instance)
        try:
            await self._reads.acquaint(source)
        except TandemError as error:
            self._strangers[source.instance] = _Stranger(source, str(error))
            if stranger is None or stranger.why != str(error):
                said = log.error if isinstance(error, Incompatible) else log.info
                said("prefill cannot be read from", instance=source.instance, why=error)
        else:
            self._strangers.pop(source.instance, None)
            self._known[source.instance] = _Acquainted(source, self._clock.now_s())
            if known is not None:
                await self._part(known.source)
        if stranger is not None and stranger.source != source:
            await self._part(stranger.source)
