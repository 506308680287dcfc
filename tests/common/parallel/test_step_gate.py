from common.parallel.lock_step import SchedulePolicy
from common.parallel.schedule import Schedule
from common.parallel.step_gate import LockStepGate
from common.parallel.wake_flag import InProcessWakeFlag


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
