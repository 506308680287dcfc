"""Which step a group runs next, under which schedule, and when it sleeps: pure decisions, the same on every rank.

All ranks run step n together, since each holds experts that others need. The first exchange of step n carries every
rank's count of sequences for step n + 1. From all counts each rank computes the schedule of step n + 1 by itself. When
all counts are zero every rank parks before step n + 1. A rank that gets work raises the flag of that number; a parked
rank leaves when that flag is up, whoever raised it, and the first step after a park runs under NONE. Because the flag
carries the number, one left from an earlier park says nothing.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

from common.errors import ConfigError, InternalError
from common.parallel.schedule import Schedule


class Move(Enum):
    RUN = auto()  # run the step
    RAISE_FLAG = auto()  # raise the flag of the step, then look again
    WAIT = auto()  # stay parked


@dataclass(frozen=True, slots=True)
class SchedulePolicy:
    """From all ranks' counts to a schedule.

    Attributes:
        dual_microbatch_from: largest count of any rank from which two microbatches pay; the busiest sets the pace.
        overlap: whether the shared expert runs while tokens travel; pointless where the exchange is local.
    """

    dual_microbatch_from: int
    overlap: bool = True

    def __post_init__(self) -> None:
        if self.dual_microbatch_from < 2:
            raise ConfigError(f"dual_microbatch_from = {self.dual_microbatch_from}: must be 2 or more")

    def choose(self, counts: tuple[int, ...]) -> Schedule:
        if max(counts) >= self.dual_microbatch_from:
            return Schedule.DUAL_MICROBATCH
        return Schedule.DISPATCH_OVERLAP if self.overlap else Schedule.NONE


@dataclass(frozen=True, slots=True)
class LockStep:
    """One rank's place. A group starts parked before step 0."""

    step: int = 0
    schedule: Schedule = Schedule.NONE
    parked: bool = True

    def move(self, *, has_work: bool, flag_raised: bool) -> Move:
        """What to do now.

        Args:
            flag_raised: whether the flag numbered `step` is up.
        """
        if not self.parked or flag_raised:
            return Move.RUN
        return Move.RAISE_FLAG if has_work else Move.WAIT

    def running(self) -> "LockStep":
        return replace(self, parked=False)

    def after_step(self, counts: tuple[int, ...], policy: SchedulePolicy) -> "LockStep":
        """The place after this step, whose exchange carried `counts` of every rank."""
        if self.parked or not counts:
            raise InternalError(f"step {self.step} ended {'while parked' if self.parked else 'without counts'}")
        if not any(counts):
            return LockStep(self.step + 1)
        return LockStep(self.step + 1, policy.choose(counts), parked=False)
