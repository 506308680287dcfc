"""Two instances of one group over a real store: they end together, and a silent one is noticed."""

import pytest

from common.clock import ManualClock
from common.errors import WorkerLost
from common.parallel.heartbeat import ParkedPeers, StoreHeartbeats
from common.parallel.rendezvous import connect_store, host_store
from common.parallel.step_gate import LockStepGate
from common.parallel.wake_flag import StoreWakeFlag
from common.worker.group import POLICIES, GroupEnding


def test_one_that_drains_makes_all_drain_and_none_leaves_early() -> None:
    store = host_store("127.0.0.1", 0, timeout_s=10)
    first, second = GroupEnding(store, 2), GroupEnding(connect_store("127.0.0.1", store.port, timeout_s=10), 2)
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
    first.leave()
    assert first.all_left()


def test_a_parked_group_notices_a_silent_instance() -> None:
    store = host_store("127.0.0.1", 0, timeout_s=10)
    clock = ManualClock()
    gates = [
        LockStepGate(
            POLICIES["none"],
            StoreWakeFlag(store, "ep"),
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
