"""The key-value store at which the ranks of a group meet; wake flags and heartbeats live there too."""

from datetime import timedelta
from typing import Any, Protocol

import torch.distributed

from common.errors import ConfigError, DependencyUnavailable

_distributed: Any = torch.distributed  # torch's stubs leave the stores and gloo out


class Store(Protocol):
    """What is used of torch's stores. Each call raises RuntimeError when the store is gone."""

    def set(self, key: str, value: str) -> None: ...

    def check(self, keys: list[str]) -> bool: ...

    def add(self, key: str, amount: int) -> int: ...

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """In one request. Waits for keys that were never set."""
        ...

    def wait(self, keys: list[str], timeout: timedelta) -> None: ...


class HostedStore(Store, Protocol):
    @property
    def port(self) -> int: ...


def host_store(host: str, port: int, *, timeout_s: float) -> HostedStore:
    """Serve the key-value store at which a group's ranks meet; port 0 takes a free one (`store.port`).

    Raises:
        DependencyUnavailable: the address cannot be bound.
    """
    return _store(host, port, True, timeout_s)


def connect_store(host: str, port: int, *, timeout_s: float) -> Store:
    """Connect to the store that `host_store` serves, waiting for it up to `timeout_s`.

    Raises:
        DependencyUnavailable: it did not answer in time.
    """
    return _store(host, port, False, timeout_s)


def _store(host: str, port: int, serve: bool, timeout_s: float) -> HostedStore:
    if not 0 <= port <= 65535:
        raise ConfigError(f"rendezvous port = {port}: must be from 0 to 65535")
    try:
        store: HostedStore = _distributed.TCPStore(
            host, port, is_master=serve, timeout=timedelta(seconds=timeout_s), wait_for_workers=False
        )
    except RuntimeError as error:
        what = "bound" if serve else "reached"
        raise DependencyUnavailable(f"rendezvous {host}:{port} not {what} within {timeout_s:g} s: {error}") from error
    return store
