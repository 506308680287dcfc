from typing import cast

import pytest

from common.clock import ManualClock
from common.errors import WorkerLost
from common.parallel.heartbeat import ParkedPeers, StoreHeartbeats
from common.parallel.lock_step import SchedulePolicy
from common.parallel.schedule import Schedule
from common.parallel.step_gate import LockStepGate
from tests.fakes.wake_flag import InProcessWakeFlag


def test_a_group_wakes_works_and_parks_again() -> None:
    flag = InProcessWakeFlag()
    gates = [LockStepGate(SchedulePolicy(dual_microbatch_from=4), flag) for _ in range(3)]
    assert [gate.enter() for gate in gates] == [None] * 3
    gates[1].wake()
    for counts, schedule in (
        ((0, 1, 0), Schedule.NONE),
        ((0, 4, 0), Schedule.DISPATCH_OVERLAP),
        ((0, 0, 0), Schedule.DUAL_MICROBATCH),
    ):
        assert [gate.enter() for gate in gates] == [schedule] * 3
        for gate in gates:
            gate.leave(counts)
    assert all(gate.parked and gate.step == 3 for gate in gates)
    assert [gate.enter() for gate in gates] == [None] * 3
    gates[0].wake()
    gates[2].wake()
    assert [gate.enter() for gate in gates] == [Schedule.NONE] * 3


def test_waking_a_running_group_raises_no_flag() -> None:
    flag = InProcessWakeFlag()
    gate = LockStepGate(SchedulePolicy(dual_microbatch_from=4), flag)
    gate.wake()
    assert gate.enter() is Schedule.NONE
    gate.wake()
    gate.leave((0, 0))
    gate.wake()
    assert gate.enter() is Schedule.NONE
    gate.leave((0, 0))
    assert not flag.is_raised_for(2)


class Silence:
    """Heartbeats in which rank 1 stopped."""

    def __init__(self) -> None:
        self.beats = [0, 5]

    def beat(self) -> None:
        self.beats[0] += 1

    def read(self) -> tuple[int, ...]:
        return tuple(self.beats)


def test_a_parked_group_finds_out_that_a_peer_is_gone() -> None:
    clock, beats, flag = ManualClock(), Silence(), InProcessWakeFlag()
    peers = ParkedPeers(cast(StoreHeartbeats, beats), clock, limit_s=4.0)
    gate = LockStepGate(SchedulePolicy(dual_microbatch_from=4), flag, peers)
    for _ in range(40):
        assert gate.enter() is None
        clock.advance(0.1)
    assert beats.beats[0] == 4  # four beats within the limit, however often it looks
    # A step in between starts a new count of silence.
    gate.wake()
    assert gate.enter() is Schedule.NONE
    gate.leave((0, 0))
    assert gate.enter() is None
    clock.advance(3.9)
    assert gate.enter() is None
    clock.advance(1.0)
    with pytest.raises(WorkerLost, match="parked peers 1 showed no life for 4 s"):
        gate.enter()
