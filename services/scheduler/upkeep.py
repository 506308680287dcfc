"""What a replica does beside serving: knows and hears its cluster, says whether it is ready, and cleans the index."""

import asyncio

from common.rpc.server import Health, Probe
from services.scheduler.hearing import Hearing
from services.scheduler.index_collection import collect_forever
from services.scheduler.links import Links
from services.scheduler.replica import Replica
from services.scheduler.request_cancels import share_cancels
from services.scheduler.shared_explanations import share_explanations

READINESS_INTERVAL_S = 0.1


async def keep_up(replica: Replica, links: Links, health: Health) -> None:
    """Until cancelled. Ends by itself only by a fault of ours, and then the process is to end."""
    await Hearing(replica.fleet, replica.membership, replica.around.metrics).begin(links.bus, links.subjects)
    await share_cancels(replica, links.bus, links.subjects)
    await share_explanations(replica, links.bus, links.subjects)
    async with asyncio.TaskGroup() as group:
        group.create_task(replica.membership.run())
        group.create_task(collect_forever(links.index, links.leases, replica.fleet))
        group.create_task(_tell_readiness(replica, health))


async def _tell_readiness(replica: Replica, health: Health) -> None:
    while True:
        await health.set(Probe.READINESS, serving=replica.ready())
        await asyncio.sleep(READINESS_INTERVAL_S)
