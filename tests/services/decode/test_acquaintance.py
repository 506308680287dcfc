"""Prefill instances that come, and come again as another process."""

import asyncio

from common.errors import PeerDisconnected
from common.rpc.worker_data import TransferSource
from common.state.worker_leases import WorkerRecord
from services.decode.acquaintance import keep_acquainted


class Reads:
    def __init__(self) -> None:
        self.greeted: list[TransferSource] = []
        self.parted: list[TransferSource] = []
        self.refusals = 1

    async def acquaint(self, source: TransferSource) -> None:
        if self.refusals:
            self.refusals -= 1
            raise PeerDisconnected("not yet")
        self.greeted.append(source)

    def part(self, source: TransferSource) -> None:
        self.parted.append(source)


class Leases:
    """One look after the other; after the last one the test is over."""

    def __init__(self, *looks: list[WorkerRecord]) -> None:
        self.looks = list(looks)

    async def current(self) -> list[WorkerRecord]:
        if not self.looks:
            raise asyncio.CancelledError
        return self.looks.pop(0)


def record(instance: str, incarnation: int, role: str = "prefill") -> WorkerRecord:
    return WorkerRecord(instance, role, "g", f"127.0.0.1:{incarnation}", incarnation)


async def test_each_incarnation_is_greeted_once_and_parts_with_its_successor(monkeypatch) -> None:
    monkeypatch.setattr("services.decode.acquaintance._LOOK_EVERY_S", 0.0)
    first, second, other = record("p-0", 1), record("p-0", 2), record("d-0", 3, "decode")
    leases, reads = Leases([first, other], [first], [first], [], [second], [second]), Reads()
    await asyncio.wait({asyncio.ensure_future(keep_acquainted(lambda: leases, reads))})  # type: ignore[arg-type,return-value]
    sources = [TransferSource("p-0", f"127.0.0.1:{n}", n) for n in (1, 2)]
    assert reads.greeted == sources
    assert reads.parted == sources[:1]
