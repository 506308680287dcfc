"""Hears at once that a parked group is called, instead of asking the store of its flags again and again."""

import threading
from collections.abc import Callable
from contextlib import suppress

from common.errors import DependencyUnavailable
from common.parallel.wake_flag import WakeFlag


class WakeWatch:
    """A thread for each park that lasts, which waits for the flag of the parked step: no other step can be the next.

    What it tells is a hint. Whoever is told looks for himself, and does so now and then untold.
    """

    def __init__(self, flag: WakeFlag) -> None:
        self._flag = flag
        self._step = -1

    def watch(self, step: int, call: Callable[[], None]) -> None:
        """Call `call` once, on another thread, when the flag of `step` is up or can no longer be heard of."""
        if step != self._step:
            self._step = step
            threading.Thread(target=self._wait, args=(step, call), name=f"wake {step}", daemon=True).start()

    def _wait(self, step: int, call: Callable[[], None]) -> None:
        with suppress(DependencyUnavailable):  # whoever is told finds out himself
            self._flag.await_raised(step)
        call()
