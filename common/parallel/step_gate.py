"""One rank's passage from step to step: asks lock_step what to do, reads and raises the flag."""

from collections.abc import Callable

from common.parallel.heartbeat import ParkedPeers
from common.parallel.lock_step import LockStep, Move, SchedulePolicy
from common.parallel.schedule import Schedule
from common.parallel.wake_flag import WakeFlag
from common.parallel.wake_watch import WakeWatch


class LockStepGate:
    """The gate of a rank whose experts others need, or who needs theirs.

    The caller loops over `enter`: given a schedule it runs one step under it and calls `leave`, else it looks again.

    Args:
        alone: all ranks of the group are of one instance, so that nobody else ever raises the flag.
    """

    def __init__(
        self, policy: SchedulePolicy, flag: WakeFlag, peers: ParkedPeers | None = None, *, alone: bool = False
    ) -> None:
        self._policy, self._flag, self._peers = policy, flag, peers
        self.alone = alone
        self._watch = WakeWatch(flag)
        self._place = LockStep()

    @property
    def step(self) -> int:
        return self._place.step

    @property
    def parked(self) -> bool:
        return self._place.parked

    def called(self) -> bool:
        """Whether the group runs or is about to: `enter` would give a schedule."""
        return self._move(has_work=False) is Move.RUN

    def watch(self, call: Callable[[], None]) -> None:
        """While the group is parked: call `call`, on another thread, when it is called."""
        if self._place.parked:
            self._watch.watch(self._place.step, call)

    def dismiss(self) -> None:
        """The group has ended, and nobody is to wait for its next step any more."""
        self._flag.raise_for(self._place.step)

    def wake(self) -> None:
        """This rank has work: a parked group is to run its next step. Harmless while it runs."""
        if self._move(has_work=True) is Move.RAISE_FLAG:
            self._flag.raise_for(self._place.step)

    def enter(self) -> Schedule | None:
        """The schedule of the step that all ranks run now, or None while they are parked.

        Raises:
            WorkerLost: while parked, when a peer shows no life any more.
        """
        if self._move(has_work=False) is Move.WAIT:
            if self._peers is not None:
                self._peers.parked()
            return None
        if self._peers is not None:
            self._peers.running()
        self._place = self._place.running()
        return self._place.schedule

    def leave(self, announced: tuple[int, ...]) -> None:
        """The step is done; `announced` are all ranks' counts that it carried."""
        self._place = self._place.after_step(announced, self._policy)

    def _move(self, *, has_work: bool) -> Move:
        raised = self._place.parked and self._flag.is_raised_for(self._place.step)
        return self._place.move(has_work=has_work, flag_raised=raised)
