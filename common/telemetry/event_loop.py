"""Whether an event loop still goes round, asked from another thread."""

import asyncio
import threading


def fault_of(loop: asyncio.AbstractEventLoop, limit_s: float) -> str | None:
    """None when `loop` runs a callback within `limit_s`, else what is wrong with it."""
    answered = threading.Event()
    try:
        loop.call_soon_threadsafe(answered.set)
    except RuntimeError:  # closed
        return "the event loop is closed"
    return None if answered.wait(limit_s) else f"the event loop did not answer within {limit_s:g} s"
