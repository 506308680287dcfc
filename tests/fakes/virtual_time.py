"""An event loop whose time is counted and not waited for: minutes of arrivals take a second, always the same ones."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _NoWait(selectors.SelectSelector):
    """Nothing outside is waited for, so a wait is over at once and its time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now_s += max(0.0, timeout or 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._counted = _NoWait()
        super().__init__(self._counted)

    def time(self) -> float:
        return self._counted.now_s


class LoopClock:
    """The running loop's time as our clock."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()


def run_counted(work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; of the world outside it can wait for nothing."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
