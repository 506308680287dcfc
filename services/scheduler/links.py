"""What a replica hangs on outside: Redis and NATS. Both are waited for at the start, within their bounds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from common.bus.connection import Bus, connect_bus
from common.bus.messages import CancelNotice
from common.bus.subjects import Subjects
from common.clock import Clock
from common.config.address import without_password
from common.config.cluster import EMBEDDED, ClusterConfig
from common.errors import ConfigError
from common.state.connect import connect_redis
from common.state.keys import Keys
from common.state.prefix_index import PrefixIndex
from common.state.worker_leases import WorkerLeases
from common.worker.stop_signal import unless_stopped


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
    for field, url in (("redis.url", config.redis.url), ("nats.url", config.nats.url)):
        if url == EMBEDDED:
            raise ConfigError(f"{field} = {url}: only `tandem up` starts its own; a single process needs the address")
    redis = await unless_stopped(
        stop,
        f"Redis at {without_password(config.redis.url)}",
        connect_redis(config.redis.url, config.redis.timeout_s, config.redis.start_timeout_s),
    )
    try:
        bus = await unless_stopped(
            stop,
            f"NATS at {without_password(config.nats.url)}",
            connect_bus(config.nats.url, name, config.nats.timeout_s, config.nats.start_timeout_s),
        )
        keys = Keys(config.cluster)
        index = PrefixIndex(redis, keys, clock, config.scheduler.lookup_budget_ms / 1000)
        try:
            yield Links(WorkerLeases(redis, keys), index, bus, Subjects(config.cluster))
        finally:
            await bus.close()
    finally:
        await redis.aclose()
