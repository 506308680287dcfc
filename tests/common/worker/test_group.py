"""Two instances of one group over a real store: they end together, and a silent one is noticed."""

import threading

import pytest
import torch

from common.clock import ManualClock, MonotonicClock
from common.config.cluster import ParallelConfig
from common.config.place import PodPlace, RankPlace
from common.errors import WorkerLost
from common.parallel.heartbeat import ParkedPeers, StoreHeartbeats
from common.parallel.rendezvous import connect_store, host_store
from common.parallel.step_gate import LockStepGate
from common.parallel.transport import Channel, Message
from common.parallel.wake_flag import StoreWakeFlag
from common.worker.group import POLICIES, GroupEnding, RankGroup, join_group
from services.launcher.ports import free_ports


def test_one_that_drains_makes_all_drain_and_none_leaves_early() -> None:
    store = host_store("127.0.0.1", 0, timeout_s=10)
    other, dismissed = connect_store("127.0.0.1", store.port, timeout_s=10), list[str]()
    first = GroupEnding(store, 2, lambda: dismissed.append("first"))
    second = GroupEnding(other, 2, lambda: dismissed.append("second"))
    assert not second.begun()
    first.begin()
    assert second.begun()
    first.finish()
    assert not first.finished()
    second.begin()
    second.finish()
    assert first.finished()
    assert second.finished()
    second.leave()
    assert not first.all_left()
    assert not dismissed
    first.leave()
    assert first.all_left()
    assert dismissed == ["first"]


def test_a_parked_group_notices_a_silent_instance() -> None:
    store = host_store("127.0.0.1", 0, timeout_s=10)
    clock = ManualClock()
    gates = [
        LockStepGate(
            POLICIES["none"],
            StoreWakeFlag(store, "ep", lambda: store),
            ParkedPeers(StoreHeartbeats(store, "ep", number, 2), clock, 5.0),
        )
        for number in range(2)
    ]
    for _ in range(10):
        clock.advance(1.0)
        assert [gate.enter() for gate in gates] == [None, None]
    for _ in range(5):
        clock.advance(1.0)
        assert gates[0].enter() is None
    clock.advance(1.5)
    with pytest.raises(WorkerLost, match="parked peers 1 showed no life"):
        gates[0].enter()


def test_who_leaves_first_lets_others_fetch_what_it_sent() -> None:
    """A peer fetches a message when it receives it: until then the sender must not go."""
    port = free_ports(1)
    groups: dict[int, RankGroup] = {}

    def join(rank: int) -> None:
        place = RankPlace(PodPlace("decode", 0, 0), rank, 0, rank, ParallelConfig(ep=2))
        groups[rank] = join_group(
            place, experts=2, schedule="none", rendezvous=f"127.0.0.1:{port}", host="127.0.0.1", clock=MonotonicClock(),
            meet_within_s=30, silence_s=30,
        )  # fmt: skip

    joining = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in joining:
        thread.start()
    for thread in joining:
        thread.join(60)
    first, second = groups[0].transport, groups[1].transport
    assert first is not None
    assert second is not None
    sent = Message((torch.arange(1000),), note=7)
    second.send(0, Channel.COMBINE_0, sent)
    leaving = threading.Thread(target=groups[1].close)
    leaving.start()
    leaving.join(0.2)
    assert leaving.is_alive()
    received = first.receive(1, Channel.COMBINE_0)
    assert received.note == 7
    assert torch.equal(received.tensors[0], sent.tensors[0])
    leaving.join(10)
    assert not leaving.is_alive()
    groups[0].close()
