"""A cancellation that others lose is kept, and one that comes while tasks end leaves none behind."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def kept_cancellation() -> Iterator[None]:
    """Raise what cancelled this task meanwhile, should the body end in another way.

    Until Python 3.12, `asyncio.wait_for`, on which the clients of Redis and NATS are built, gives its result when
    result and cancellation come together. Whoever cancelled would wait for ever for a task that goes on.

    Raises:
        CancelledError: the task was cancelled in the body.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


async def all_ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait for tasks that were told to end, also when this task is itself cancelled meanwhile.

    Raises:
        CancelledError: it was, and all have ended.
    """
    cancelled = False
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
