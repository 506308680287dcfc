"""When an instance may take its next step, and in which mode."""

from collections.abc import Callable
from typing import Protocol

from common.model.batch import Schedule


class StepGate(Protocol):
    """An engine's view of its group's lock-step (common/parallel/lock_step.py), or of having no group."""

    @property
    def alone(self) -> bool:
        """No other instance depends on this one's steps."""
        ...

    @property
    def parked(self) -> bool:
        """No step is due. While one is, the others wait for this instance, whether it has work or not."""
        ...

    def called(self) -> bool:
        """A step is due, or another instance has something to run."""
        ...

    def watch(self, call: Callable[[], None]) -> None:
        """While parked: call `call`, on another thread, when another instance has something to run."""
        ...

    def wake(self) -> None:
        """This instance has something to run; parked instances are to take part."""
        ...

    def enter(self) -> Schedule | None:
        """The mode of the step that all run now; None while the group is parked."""
        ...

    def leave(self, announced: tuple[int, ...]) -> None:
        """The step has run and all ranks announced these counts for the next one."""
        ...


class AloneGate:
    """An instance that shares its experts with no other runs whenever it has something to run."""

    def __init__(self, schedule: Schedule = Schedule.NONE) -> None:
        self._schedule = schedule
        self._awake = False

    @property
    def alone(self) -> bool:
        return True

    @property
    def parked(self) -> bool:
        return not self._awake

    def called(self) -> bool:
        return self._awake

    def watch(self, call: Callable[[], None]) -> None:
        """There is no other."""

    def wake(self) -> None:
        self._awake = True

    def enter(self) -> Schedule | None:
        return self._schedule if self._awake else None

    def leave(self, announced: tuple[int, ...]) -> None:
        self._awake = False
