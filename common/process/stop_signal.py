"""The wish that this process ends, by SIGTERM or SIGINT, which also ends what a start still waits for."""

import asyncio
import signal
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from common.cancellation import all_ended
from common.errors import Cancelled

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StopSignal:
    """`asked`: end, after what is here has ended. `at_once`: asked again, by the same signal; do not wait for that.

    By the same: Ctrl-C at a terminal reaches a pod and its ranks, and the pod passes it on to them as SIGTERM.
    """

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: asyncio.Event = field(default_factory=asyncio.Event)
    seen: set[signal.Signals] = field(default_factory=set)

    def receive(self, number: signal.Signals) -> None:
        if number in self.seen:
            self.at_once.set()
        self.seen.add(number)
        self.asked.set()


def stop_signal() -> StopSignal:
    """Set by each SIGTERM or SIGINT from now on. To be called from the running loop of the main thread."""
    stop, loop = StopSignal(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.receive, number)
    return stop


async def unless_stopped(stop: asyncio.Event, waited_for: str, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. It is cancelled as soon as `stop` is set.

    Raises:
        Cancelled: the process was asked to end first; says what it waited for.
    """
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Cancelled(f"asked to end while waiting for {waited_for}")
    finally:
        for one in (working, stopping):
            one.cancel()
        await all_ended({working, stopping})
