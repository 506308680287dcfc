"""Flags that wake a parked group. A flag has a number and is only ever raised, so raising it twice is harmless."""

from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import torch.distributed

from common.errors import DependencyUnavailable
from common.parallel.rendezvous import Store

_WAIT = timedelta(hours=1)  # torch logs a warning about each that ends in vain


class WakeFlag(Protocol):
    def raise_for(self, step: int) -> None: ...

    def is_raised_for(self, step: int) -> bool: ...

    def await_raised(self, step: int) -> None:
        """Block this thread until the flag is up, whatever others do with it meanwhile."""
        ...


class StoreWakeFlag:
    """In the key-value store at which the group's ranks met.

    Args:
        connect: another connection to that store. A wait keeps its connection busy, and looks go on beside it.

    Raises:
        DependencyUnavailable: by every call, when the store is gone.
    """

    def __init__(self, store: Store, group: str, connect: Callable[[], Store]) -> None:
        self._store, self._group, self._connect = store, group, connect
        self._waiting: Store | None = None

    def raise_for(self, step: int) -> None:
        try:
            self._store.set(self._key(step), "1")
        except RuntimeError as error:
            raise self._gone(error) from error

    def is_raised_for(self, step: int) -> bool:
        try:
            return self._store.check([self._key(step)])
        except RuntimeError as error:
            raise self._gone(error) from error

    def await_raised(self, step: int) -> None:
        self._waiting = self._waiting or self._connect()
        while not self._raised_within_a_wait(self._waiting, step):
            pass

    def _raised_within_a_wait(self, store: Store, step: int) -> bool:
        try:
            store.wait([self._key(step)], _WAIT)
        except torch.distributed.DistStoreError:  # its time was over
            return False
        except RuntimeError as error:
            raise self._gone(error) from error
        return True

    def _key(self, step: int) -> str:
        return f"{self._group}/wake/{step}"

    def _gone(self, error: RuntimeError) -> DependencyUnavailable:
        return DependencyUnavailable(f"group {self._group}: the store of its wake flag is gone: {error}")
