"""Connects to prefill instances ahead of work: that takes half a second, which no request need wait."""

import asyncio
from collections.abc import Callable

from common.errors import DependencyUnavailable, TandemError
from common.rpc.worker_data import TransferSource
from common.state.worker_leases import WorkerLeases, WorkerRecord
from common.telemetry.logs import get_log
from services.decode.reads import Reads

log = get_log(__name__)

_LOOK_EVERY_S = 0.25


async def keep_acquainted(leases: Callable[[], WorkerLeases], reads: Reads) -> None:
    """Greet every prefill incarnation once, until cancelled."""
    greeted: set[tuple[str, int]] = set()
    while True:
        try:
            listed = await leases().current()
        except DependencyUnavailable:  # whoever keeps this instance's lease says so
            listed = []
        for record in listed:
            who = (record.instance, record.incarnation)
            if record.role == "prefill" and who not in greeted and await _greet(record, reads):
                greeted.add(who)
        await asyncio.sleep(_LOOK_EVERY_S)


async def _greet(record: WorkerRecord, reads: Reads) -> bool:
    try:
        await reads.acquaint(TransferSource(record.instance, record.address, record.incarnation))
    except TandemError as error:
        log.info("prefill does not answer yet", instance=record.instance, why=error)
        return False
    return True
