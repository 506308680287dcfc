"""From the engine thread to the event loop: one call across for all events of a step."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Event = TypeVar("Event")


class EventChannel(Generic[Event]):
    """`put` may be called from any thread; the listener runs on the event loop, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listener: Callable[[list[Event]], None] | None = None

    def listen(self, listener: Callable[[list[Event]], None]) -> None:
        """Set once, before the engine starts."""
        self._listener = listener

    def put(self, events: list[Event]) -> None:
        if events and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hand_on, events)

    def _hand_on(self, events: list[Event]) -> None:
        if self._listener is not None:
            self._listener(events)
