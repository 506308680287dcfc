"""Asks running instances what they are."""

import asyncio
from collections.abc import Sequence

from common.errors import TandemError
from common.rpc.clients import DecodeClient, PrefillClient
from common.state.worker_leases import WorkerRecord
from services.launcher.doctor.facts import Peer

_TIMEOUT_S = 5.0
_AT_ONCE = 32


async def gather_peers(records: Sequence[WorkerRecord]) -> tuple[Peer, ...]:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(record: WorkerRecord) -> Peer:
        client = PrefillClient(record.address) if record.role == "prefill" else DecodeClient(record.address)
        async with gate, client:
            try:
                description = await client.describe(_TIMEOUT_S)
            except TandemError as error:
                return Peer(record.instance, record.role, None, str(error))
        return Peer(record.instance, record.role, description.compatibility)

    return tuple(await asyncio.gather(*(ask(record) for record in records)))
