"""Time as a dependency, so that decisions can be replayed and tests never wait.

Durations and deadlines are monotonic seconds of one process; they never cross a process boundary. What crosses
is a remaining budget.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock in seconds."""

    def now_s(self) -> float: ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told, for simulation and tests."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds` >= 0."""
        if seconds < 0:
            raise ValueError(f"seconds = {seconds}: a monotonic clock never goes back")
        self._now_s += seconds
