"""Flags that wake a parked group. A flag has a number and is only ever raised, so raising it twice is harmless."""

from typing import Protocol

from common.errors import DependencyUnavailable
from common.parallel.rendezvous import Store


class WakeFlag(Protocol):
    def raise_for(self, step: int) -> None: ...

    def is_raised_for(self, step: int) -> bool: ...


class StoreWakeFlag:
    """In the key-value store at which the group's ranks met; ranks poll it while parked.

    Raises:
        DependencyUnavailable: by every call, when the store is gone.
    """

    def __init__(self, store: Store, group: str) -> None:
        self._store, self._group = store, group

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

    def _key(self, step: int) -> str:
        return f"{self._group}/wake/{step}"

    def _gone(self, error: RuntimeError) -> DependencyUnavailable:
        return DependencyUnavailable(f"group {self._group}: the store of its wake flag is gone: {error}")
