"""What an instance tells the cluster about itself: its lease, its load, and the blocks that it caches.

All of it are hints to schedulers. Redis or NATS may be gone for any time: then less is known, and nothing stops.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from common.bus.connection import Bus
from common.bus.exported import exported_bus
from common.bus.load_reporter import LoadReporter
from common.bus.messages import CancelNotice, DrainNotice
from common.bus.subjects import Subjects
from common.engine.decode_engine import DecodeEngine
from common.engine.loop import EngineLoop
from common.engine.prefill_engine import PrefillEngine
from common.errors import DependencyUnavailable, TandemError
from common.process.dependencies import require_addresses, wait_for_nats, wait_for_redis
from common.state.connect import close_redis
from common.state.exported import exported_publisher
from common.state.index_publisher import IndexPublisher
from common.state.index_writer import IndexWriter
from common.state.keys import Keys
from common.state.worker_leases import LeaseKeeper, WorkerLeases, WorkerRecord
from common.telemetry.families import instance_labels
from common.telemetry.worker_metrics import WorkerMetrics
from common.worker.rank_main import RankContext

Engine = PrefillEngine | DecodeEngine


class ClusterAnnouncer:
    """One instance's voice.

    Args:
        registry: where the connections to NATS and Redis show what they counted, once there are any.
        engine: asked on its own thread for load and cache.
        cancel: somebody says that this work is not wanted any more.
    """

    def __init__(
        self,
        context: RankContext,
        engine: EngineLoop[Any, Any],
        metrics: WorkerMetrics,
        registry: CollectorRegistry,
        cancel: Callable[[str], object],
    ) -> None:
        require_addresses(("redis.url", context.config.redis.url), ("nats.url", context.config.nats.url))
        self._context = context
        self._engine = engine
        self._metrics = metrics
        self._registry = registry
        self._cancel = cancel
        self._keys = Keys(context.config.cluster)
        self._subjects = Subjects(context.config.cluster)
        self._tasks: list[asyncio.Task[None]] = []
        self._redis: Redis | None = None
        self._leases: WorkerLeases | None = None
        self._bus: Bus | None = None
        self._keeper: LeaseKeeper | None = None
        self._writer: IndexWriter | None = None

    async def start(self, address: str, stop: asyncio.Event) -> None:
        """Wait for Redis and NATS within their bounds, then keep telling.

        Raises:
            DependencyUnavailable: one of them did not come.
            Cancelled: `stop` was set first.
        """
        name, incarnation = self._context.place.instance, self._context.incarnation
        self._redis = await wait_for_redis(self._context.config.redis, stop)
        self._leases = WorkerLeases(self._redis, self._keys)
        self._leases.on_unreadable = self._metrics.unreadable_leases.inc
        self._bus = await wait_for_nats(self._context.config.nats, name, stop)
        await self._bus.subscribe(self._subjects.cancel, CancelNotice, self._hear_cancel)
        pod = self._context.place.pod
        model, dp_rank = self._context.config.model.name, self._context.place.dp_rank
        labels = instance_labels(model=model, role=pod.role, dp_rank=dp_rank)
        self._registry.register(exported_bus(self._bus.counters, labels))
        record = WorkerRecord(name, pod.role, pod.group_name, address, incarnation)
        self._keeper = LeaseKeeper(self.leases, record, self._context.config.redis.worker_lease_s)
        self._start_task(self._keeper.run())
        self._start_task(self._report_load(LoadReporter(self._bus, self._subjects, name, incarnation)))
        if pod.role == "prefill":  # only what prefill caches decides placements
            self._writer = IndexWriter(self._redis, self._keys, name, incarnation)
            publisher = IndexPublisher(self._writer, self._changes, self._snapshot)
            self._registry.register(exported_publisher(publisher.counters, labels))
            self._start_task(publisher.run())

    async def drain(self) -> None:
        """Say that no new work is welcome."""
        if self._keeper is None or self._bus is None:
            return
        record = self._keeper.record
        await self._bus.publish(self._subjects.drain(record.instance), DrainNotice(record.instance, record.incarnation))
        await self._keeper.update(replace(record, draining=True))

    async def close(self) -> None:
        """Take back lease and index entries."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(DependencyUnavailable):  # they lapse by themselves
            if self._keeper is not None:
                await self.leases.end(self._keeper.record)
            if self._writer is not None:
                await self._writer.reset()
        if self._bus is not None:
            await self._bus.close()
        if self._redis is not None:
            await close_redis(self._redis)

    @property
    def leases(self) -> WorkerLeases:
        """Of the whole cluster; once started."""
        if self._leases is None:
            raise DependencyUnavailable("Redis is not connected")
        return self._leases

    @property
    def error(self) -> BaseException | None:
        """Why this instance has to end: a later incarnation took its name, or a fault of ours."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                return task.exception()
        return None

    def _start_task(self, work: Any) -> None:  # noqa: ANN401
        self._tasks.append(asyncio.create_task(work))

    def _hear_cancel(self, notice: CancelNotice) -> None:
        with suppress(TandemError):  # an engine that has ended holds no work
            self._cancel(notice.work_id)

    async def _report_load(self, reporter: LoadReporter) -> None:
        shown_steps = 0
        while True:
            load, blocks, steps = await self._ask(lambda engine: (engine.load(), engine.pool.counts(), engine.steps))
            await reporter.report(asdict(load))
            self._metrics.steps.inc(steps - shown_steps)
            shown_steps = steps
            self._metrics.show(load.running, load.queued, load.queued_tokens, load.step_s)
            self._metrics.show_blocks(free=blocks.free, owned=blocks.owned, cached=blocks.cached)
            await asyncio.sleep(self._context.config.nats.load_interval_s)

    async def _changes(self) -> tuple[Sequence[bytes], Sequence[bytes]]:
        return await self._ask(lambda engine: (engine.pool.published_hashes(), engine.pool.evicted_hashes()))

    async def _snapshot(self) -> Collection[bytes]:
        def drained(engine: Engine) -> Collection[bytes]:
            engine.pool.published_hashes()
            engine.pool.evicted_hashes()
            return engine.pool.cached_hashes()

        return await self._ask(drained)

    async def _ask(self, question: Callable[[Engine], Any]) -> Any:  # noqa: ANN401
        return await asyncio.wrap_future(self._engine.post(question))
