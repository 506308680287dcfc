"""What a replica hangs on outside: Redis and NATS. Both are waited for at the start, within their bounds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from common.bus.connection import Bus
from common.bus.messages import CancelNotice
from common.bus.subjects import Subjects
from common.clock import Clock
from common.config.cluster import ClusterConfig
from common.process.dependencies import require_addresses, wait_for_nats, wait_for_redis
from common.state.connect import close_redis
from common.state.keys import Keys
from common.state.prefix_index import PrefixIndex
from common.state.worker_leases import WorkerLeases


@dataclass(frozen=True, slots=True)
class Links:
    leases: WorkerLeases
    index: PrefixIndex
    bus: Bus
    subjects: Subjects

    async def say_cancel(self, work_id: str) -> None:
        """Repeat a cancel that its worker did not answer."""
        await self.bus.publish(self.subjects.cancel, CancelNotice(work_id))


@asynccontextmanager
async def open_links(config: ClusterConfig, name: str, clock: Clock, stop: asyncio.Event) -> AsyncIterator[Links]:
    """
    Raises:
        Cancelled: `stop` was set while one of them was waited for.
        DependencyUnavailable: one of them did not answer within its `start_timeout_s`.
        ConfigError: the file still says that somebody else will start them.
    """
    require_addresses(("redis.url", config.redis.url), ("nats.url", config.nats.url))
    redis = await wait_for_redis(config.redis, stop)
    try:
        bus = await wait_for_nats(config.nats, name, stop)
        keys = Keys(config.cluster)
        index = PrefixIndex(redis, keys, clock, config.scheduler.lookup_budget_ms / 1000)
        try:
            yield Links(WorkerLeases(redis, keys), index, bus, Subjects(config.cluster))
        finally:
            await bus.close()
    finally:
        await close_redis(redis)
