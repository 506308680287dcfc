"""Several scheduler replicas of one cluster, which know of each other by NATS alone."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from common.bus.connection import Bus, connect_bus
from common.bus.subjects import Subjects
from services.scheduler.replica import Replica
from tests.fakes.cluster import FakeCluster, with_settings


@asynccontextmanager
async def replicas(
    nats_url: str, cluster_name: str, count: int, share: Callable[[Replica, Bus, Subjects], Awaitable[None]]
) -> AsyncIterator[list[tuple[FakeCluster, Bus]]]:
    """Each with workers of its own and a connection to NATS, over which it shares something."""
    async with AsyncExitStack() as stack:
        subjects, made = Subjects(cluster_name), []
        for number in range(count):
            one = await stack.enter_async_context(FakeCluster(settings=with_settings(name=f"s{number}")))
            bus = await connect_bus(nats_url, f"s{number}", 5.0, 10.0)
            stack.push_async_callback(bus.close)
            await share(one.replica, bus, subjects)
            await bus.flush(5.0)
            made.append((one, bus))
        yield made
