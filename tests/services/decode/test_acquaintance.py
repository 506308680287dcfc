"""Prefill instances that come, come again as another process, and leave."""

import asyncio

from common.clock import ManualClock
from common.errors import DependencyUnavailable, Incompatible, PeerDisconnected
from common.rpc.worker_data import TransferSource
from common.state.worker_leases import WorkerRecord
from services.decode.acquaintance import PART_AFTER_S, Acquaintances


class Reads:
    def __init__(self) -> None:
        self.greeted: list[TransferSource] = []
        self.parted: list[TransferSource] = []
        self.hung_up: list[str] = []
        self.refusals = 0

    async def acquaint(self, source: TransferSource) -> None:
        if self.refusals:
            self.refusals -= 1
            raise PeerDisconnected("not yet")
        self.greeted.append(source)

    def part(self, source: TransferSource) -> None:
        self.parted.append(source)

    async def hang_up(self, address: str) -> None:
        self.hung_up.append(address)


class Leases:
    """One look after the other, None for no answer; after the last one the test is over."""

    def __init__(self, *looks: list[WorkerRecord] | None) -> None:
        self.looks = list(looks)

    async def current(self) -> list[WorkerRecord]:
        if not self.looks:
            raise asyncio.CancelledError
        look = self.looks.pop(0)
        if look is None:
            raise DependencyUnavailable("redis")
        return look


def record(instance: str, incarnation: int, role: str = "prefill", port: int = 0) -> WorkerRecord:
    return WorkerRecord(instance, role, "g", f"127.0.0.1:{port or incarnation}", incarnation)


def source(instance: str, incarnation: int, port: int = 0) -> TransferSource:
    return TransferSource(instance, f"127.0.0.1:{port or incarnation}", incarnation)


async def test_each_incarnation_is_greeted_once_and_parts_with_its_successor(monkeypatch) -> None:
    monkeypatch.setattr("services.decode.acquaintance._LOOK_EVERY_S", 0.0)
    first, second, other = record("p-0", 1), record("p-0", 2), record("d-0", 3, "decode")
    leases, reads = Leases([first, other], [first], [first], None, [second], [second]), Reads()
    reads.refusals = 1
    known = Acquaintances(reads, ManualClock())  # type: ignore[arg-type]
    await asyncio.wait({asyncio.ensure_future(known.keep(lambda: leases))})  # type: ignore[arg-type,return-value]
    assert reads.greeted == [source("p-0", 1), source("p-0", 2)]
    assert reads.parted == [source("p-0", 1)]
    assert reads.hung_up == ["127.0.0.1:1"]


async def test_the_connection_to_an_address_stays_when_another_process_takes_it() -> None:
    reads = Reads()
    known = Acquaintances(reads, ManualClock())  # type: ignore[arg-type]
    await known.meet([record("p-0", 1, port=9)])
    await known.meet([record("p-0", 2, port=9)])
    assert reads.parted == [source("p-0", 1, port=9)]
    assert reads.hung_up == []


async def test_the_agent_of_an_incarnation_stays_when_it_moves() -> None:
    reads = Reads()
    known = Acquaintances(reads, ManualClock())  # type: ignore[arg-type]
    await known.meet([record("p-0", 1, port=8)])
    await known.meet([record("p-0", 1, port=9)])
    assert (reads.parted, reads.hung_up) == ([], ["127.0.0.1:8"])


async def test_who_left_is_parted_with_after_a_while_and_greeted_when_it_comes_back() -> None:
    reads, clock = Reads(), ManualClock()
    known = Acquaintances(reads, clock)  # type: ignore[arg-type]
    both = [record("p-0", 1), record("p-1", 2)]
    await known.meet(both)
    clock.advance(PART_AFTER_S)
    await known.meet(both[1:])
    assert (reads.parted, reads.hung_up) == ([], [])
    clock.advance(1.0)
    await known.meet(both[1:])
    assert (reads.parted, reads.hung_up) == ([source("p-0", 1)], ["127.0.0.1:1"])
    await known.meet(both)
    assert reads.greeted == [source("p-0", 1), source("p-1", 2), source("p-0", 1)]


async def test_a_refusal_is_said_once_and_names_the_field(caplog) -> None:
    class Odd(Reads):
        async def acquaint(self, source: TransferSource) -> None:
            raise Incompatible("block_tokens", 16, 32)

    known = Acquaintances(Odd(), ManualClock())  # type: ignore[arg-type]
    for _ in range(3):
        await known.meet([record("p-0", 1)])
    said = [one for one in caplog.records if one.getMessage() == "prefill cannot be read from"]
    assert [one.levelname for one in said] == ["ERROR"]
    assert "block_tokens differs: ours 16, theirs 32" in str(vars(said[0]))
    await known.meet([])
    await known.meet([record("p-0", 1)])
    assert len([one for one in caplog.records if one.getMessage() == "prefill cannot be read from"]) == 2


async def test_who_was_refused_and_leaves_or_moves_leaves_no_connection_behind() -> None:
    reads = Reads()
    reads.refusals = 3
    known = Acquaintances(reads, ManualClock())  # type: ignore[arg-type]
    await known.meet([record("p-0", 1, port=7), record("p-1", 2, port=8)])
    assert reads.hung_up == []
    await known.meet([record("p-1", 3, port=9)])
    assert reads.hung_up == ["127.0.0.1:7", "127.0.0.1:8"]
    await known.meet([record("p-1", 4, port=9)])
    assert reads.greeted == [source("p-1", 4, port=9)]
    assert reads.hung_up == ["127.0.0.1:7", "127.0.0.1:8"]
