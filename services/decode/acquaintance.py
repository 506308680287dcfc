"""Connects to prefill instances ahead of work: that takes half a second, which no request need wait."""

import asyncio
from collections.abc import Callable

from common.errors import DependencyUnavailable, TandemError
from common.rpc.worker_data import TransferSource
from common.state.worker_leases import WorkerLeases
from common.telemetry.logs import get_log
from services.decode.reads import Reads

log = get_log(__name__)

_LOOK_EVERY_S = 0.25


async def keep_acquainted(leases: Callable[[], WorkerLeases], reads: Reads) -> None:
    """Greet every prefill incarnation once and part from the one it replaced, until cancelled."""
    known: dict[str, TransferSource] = {}
    while True:
        try:
            listed = await leases().current()
        except DependencyUnavailable:  # whoever keeps this instance's lease says so
            listed = []
        for record in listed:
            source = TransferSource(record.instance, record.address, record.incarnation)
            before = known.get(record.instance)
            if record.role == "prefill" and source != before and await _greet(source, reads):
                known[record.instance] = source
                if before is not None and before.incarnation != source.incarnation:
                    reads.part(before)
        await asyncio.sleep(_LOOK_EVERY_S)


async def _greet(source: TransferSource, reads: Reads) -> bool:
    try:
        await reads.acquaint(source)
    except TandemError as error:
        log.info("prefill does not answer yet", instance=source.instance, why=error)
        return False
    return True
