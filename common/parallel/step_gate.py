"""One rank's passage from step to step: asks lock_step what to do, reads and raises the flag."""

from common.parallel.lock_step import LockStep, Move, SchedulePolicy
from common.parallel.schedule import Schedule
from common.parallel.wake_flag import WakeFlag


class StepGate:
    """The caller loops over ``enter``: given a schedule it runs one step and calls ``leave``, else it looks again."""

    def __init__(self, policy: SchedulePolicy, flag: WakeFlag) -> None:
        self._policy, self._flag = policy, flag
        self._place = LockStep()

    @property
    def step(self) -> int:
        return self._place.step

    @property
    def parked(self) -> bool:
        return self._place.parked

    def enter(self, *, has_work: bool) -> Schedule | None:
        """The schedule of the step to run now, or None while the group sleeps. A group of one works the same way."""
        raised = self._place.parked and self._flag.is_raised_for(self._place.step)
        move = self._place.move(has_work=has_work, flag_raised=raised)
        if move is Move.WAIT:
            return None
        if move is Move.RAISE_FLAG:
            self._flag.raise_for(self._place.step)
        self._place = self._place.running()
        return self._place.schedule

    def leave(self, announced: tuple[int, ...]) -> None:
        """The step is done; `announced` are all ranks' counts that it carried."""
        self._place = self._place.after_step(announced, self._policy)
