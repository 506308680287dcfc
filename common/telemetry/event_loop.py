"""Whether an event loop still goes round, asked from another thread."""

import asyncio
import threading


def answers_within(loop: asyncio.AbstractEventLoop, limit_s: float) -> bool:
    """Whether `loop` runs a callback within `limit_s`; False also when it is closed."""
    answered = threading.Event()
    try:
        loop.call_soon_threadsafe(answered.set)
    except RuntimeError:  # closed
        return False
    return answered.wait(limit_s)
