"""The wake flag of ranks that share a process."""


class InProcessWakeFlag:
    def __init__(self) -> None:
        self._raised: set[int] = set()

    def raise_for(self, step: int) -> None:
        self._raised.add(step)

    def is_raised_for(self, step: int) -> bool:
        return step in self._raised
