"""Entries of the prefix index whose instance is gone."""

import asyncio

from common.errors import DependencyUnavailable
from common.state.prefix_index import PrefixIndex
from common.telemetry.logs import get_log
from services.scheduler.discovery import Discovery
from services.scheduler.fleet import Fleet

log = get_log(__name__)

INTERVAL_S = 10.0


async def collect_forever(index: PrefixIndex, discovery: Discovery, fleet: Fleet) -> None:
    """Every `INTERVAL_S` drop what incarnations without a lease left behind; every replica may.

    An instance that still serves keeps its entries though its lease lapsed, and nothing is dropped while nobody can
    say who has one.
    """
    while True:
        await asyncio.sleep(INTERVAL_S)
        try:
            leased = {(record.instance, record.incarnation) for record in await discovery.current()}
            serving = {(one.instance, one.incarnation) for one in fleet}
            dropped = await index.collect(leased | serving)
        except DependencyUnavailable as error:
            log.warning("index not collected", why=str(error))
            continue
        for instance, incarnation in dropped:
            log.info("index entries dropped", instance=instance, incarnation=incarnation)
