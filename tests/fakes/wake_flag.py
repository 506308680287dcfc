"""The wake flag of ranks that share a process."""

import threading


class InProcessWakeFlag:
    def __init__(self) -> None:
        self._raised: set[int] = set()
        self._changed = threading.Condition()
        self.looks = 0

    def raise_for(self, step: int) -> None:
        with self._changed:
            self._raised.add(step)
            self._changed.notify_all()

    def is_raised_for(self, step: int) -> bool:
        self.looks += 1
        return step in self._raised

    def await_raised(self, step: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: step in self._raised)
