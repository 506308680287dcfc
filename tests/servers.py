"""Real Redis and NATS servers for tests, on free ports.

Session-wide servers are shared: a test keeps to a `cluster` name of its own and neither flushes nor stops them.
A test that breaks a server takes `own_valkey` or `own_nats`.
"""

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from common.errors import DependencyUnavailable
from services.launcher.embedded import EmbeddedNats, EmbeddedServer, EmbeddedValkey
from services.launcher.ports import free_ports

Server = TypeVar("Server", bound=EmbeddedServer)


def start(kind: type[Server], directory: Path, options: Sequence[str] = ()) -> Server:
    """A started server; another port is tried when somebody took the first one meanwhile."""
    for attempt in itertools.count(1):
        server = kind()
        try:
            server.start(free_ports(1), directory, options)
        except DependencyUnavailable:
            if attempt == 3:
                raise
            continue
        return server
    raise AssertionError("unreachable")


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = start(EmbeddedValkey, tmp_path_factory.mktemp("valkey"))
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = start(EmbeddedNats, tmp_path_factory.mktemp("nats"))
    yield server.url
    server.stop()


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[Callable[..., EmbeddedValkey]]:
    """Starts servers for one test: `own_valkey(*options)`; all are stopped at its end."""
    started: list[EmbeddedValkey] = []

    def start_one(*options: str) -> EmbeddedValkey:
        started.append(start(EmbeddedValkey, tmp_path, options))
        return started[-1]

    yield start_one
    for server in started:
        server.stop()


@pytest.fixture
def own_nats(tmp_path: Path) -> Iterator[Callable[..., EmbeddedNats]]:
    """As `own_valkey`."""
    started: list[EmbeddedNats] = []

    def start_one(*options: str) -> EmbeddedNats:
        started.append(start(EmbeddedNats, tmp_path, options))
        return started[-1]

    yield start_one
    for server in started:
        server.stop()


async def aborted(writer: asyncio.StreamWriter) -> None:
    """What a client left open when it gave up its close, gone before the loop is."""
    writer.transport.abort()
    await asyncio.sleep(0)  # the loop closes the socket in its next round


@pytest.fixture
def cluster() -> str:
    """A cluster name nobody else uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
