"""Keeps the prefix index in step with a cache, and comes back by itself after anything that Redis may do."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from common.errors import DependencyUnavailable, WorkerLost
from common.state.index_writer import IndexWriter
from common.telemetry.logs import get_log

log = get_log(__name__)


@dataclass(slots=True)
class PublisherCounters:
    """Totals since the start."""

    written: int = 0
    failures: int = 0
    repairs: int = 0
    repaired_missing: int = 0
    repaired_phantom: int = 0


class IndexPublisher:
    """
    Args:
        writer: of the instance.
        changes: what came and what went since the last call of either function, drained on the engine's thread.
        snapshot: everything cached now; drains changes, which it contains.
        interval_s: between batches.
        repair_interval_s: between comparisons of the whole; also how soon a failure is tried again.
    """

    def __init__(
        self,
        writer: IndexWriter,
        changes: Callable[[], Awaitable[tuple[Sequence[bytes], Sequence[bytes]]]],
        snapshot: Callable[[], Awaitable[Collection[bytes]]],
        interval_s: float = 0.05,
        repair_interval_s: float = 10.0,
    ) -> None:
        self._writer = writer
        self._changes = changes
        self._snapshot = snapshot
        self._interval_s = interval_s
        self._repair_interval_s = repair_interval_s
        self.counters = PublisherCounters()

    async def run(self) -> None:
        """Until cancelled, or until a later incarnation has taken the instance's name."""
        loop = asyncio.get_running_loop()
        repair_due_s = loop.time()
        while True:
            try:
                if loop.time() >= repair_due_s:
                    repair_due_s = loop.time() + self._repair_interval_s
                    await self._repair()
                elif not self._writer.dirty:
                    await self._write()
            except DependencyUnavailable as error:
                self.counters.failures += 1
                log.warning("prefix index not written", why=str(error))
                repair_due_s = min(repair_due_s, loop.time() + self._repair_interval_s / 10)
            except WorkerLost as error:
                log.error("prefix index given up", why=str(error))
                return
            await asyncio.sleep(self._interval_s)

    async def _write(self) -> None:
        added, removed = await self._changes()
        if added or removed:
            await self._writer.write(added, removed)
            self.counters.written += len(added) + len(removed)

    async def _repair(self) -> None:
        repair = await self._writer.repair(await self._snapshot())
        self.counters.repairs += 1
        self.counters.repaired_missing += repair.missing
        self.counters.repaired_phantom += repair.phantom
