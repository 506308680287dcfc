"""The wish that this process ends, by SIGTERM or SIGINT, which also ends what a start still waits for."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from common.errors import Cancelled

T = TypeVar("T")


def stop_event() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT from now on. To be called from the running loop of the main thread."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
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
        await asyncio.wait({working, stopping})
