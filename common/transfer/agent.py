"""NIXL agents, one-sided reads, and the translation of NIXL's errors.

The source's agent has a progress thread, since a host target completes nothing without one. It sleeps on UCX's events
and looks up every 10 ms by itself; NIXL's default of 0 keeps a core busy per agent. A reader's agent has none: its
owner polls while reads are under way, and an idle peer costs nothing.

Over TCP the source's UCX serves reads in software. Its keepalive may notice a dead reader in the middle of a reply, and
UCX (1.20) then aborts the process; sources run without keepalive, since leases already bound what a dead reader holds.
The same abort remains when a reader destroys its agent under a stopped source that resumes later (a fenced peer).
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from nixl_cu13 import _bindings as nixl

from common.errors import PeerDisconnected, TransferError
from common.transfer.memory import MemoryRegion

_PROGRESS_PERIOD_US = 10_000
_KINDS = {"DRAM": nixl.DRAM_SEG, "VRAM": nixl.VRAM_SEG}
_NIXL_ERRORS: tuple[type[Exception], ...] = (
    nixl.nixlBackendError,
    nixl.nixlCancelledError,
    nixl.nixlInvalidParamError,
    nixl.nixlMismatchError,
    nixl.nixlNotAllowedError,
    nixl.nixlNotFoundError,
    nixl.nixlNotPostedError,
    nixl.nixlNotSupportedError,
    nixl.nixlRepostActiveError,
    nixl.nixlUnknownError,
)


@dataclass(frozen=True, slots=True)
class Segment:
    """One contiguous piece of a read."""

    local_address: int
    remote_address: int
    length_bytes: int


class SourceAgent:
    """The end that is read. Its metadata lets anybody who has it read `pool`, and nothing else."""

    def __init__(self, name: str, pool: MemoryRegion) -> None:
        self.pool = pool
        with _translated(f"start of agent {name}"), _default_setting("UCX_KEEPALIVE_INTERVAL", "inf"):
            self._agent = _create(name, progress_thread=True)
            _register(self._agent, pool)
            self.metadata = bytes(self._agent.getLocalMD())

    def close(self) -> None:
        """End the agent; reads by others fail from here on."""
        self._agent = None


class Read:
    """A posted read. It is under way until `poll` returned True or raised; only then may its memory be reused."""

    def __init__(self, agent: "PeerAgent", handle: int, done: bool) -> None:
        self._agent = agent
        self._handle = handle
        self._done = done

    def poll(self) -> bool:
        """True once all data is in place.

        Raises:
            TransferError: the read ended without success; PeerDisconnected when the peer is gone.
        """
        return self._agent.poll(self._handle, self._done)


class PeerAgent:
    """The reading end of one peer. `close` ends every read under way; nothing lands afterwards."""

    def __init__(self, name: str, memory: MemoryRegion, remote_metadata: bytes, remote_kind: str, device: int) -> None:
        self._kind = memory.kind
        self._device = memory.device
        self._remote_kind = remote_kind
        self._remote_device = device
        with _translated(f"start of agent {name}"):
            self._agent = _create(name, progress_thread=False)
            _register(self._agent, memory)
            self.remote: str = self._agent.loadRemoteMD(remote_metadata).decode()
            self._agent.makeConnection(self.remote, [])

    def read(self, segments: Sequence[Segment]) -> Read:
        """Post one read. Few large segments are fast: each costs 4-5 us."""
        local = [(segment.local_address, segment.length_bytes, self._device) for segment in segments]
        remote = [(segment.remote_address, segment.length_bytes, self._remote_device) for segment in segments]
        with _translated(f"read from {self.remote}"):
            handle = self._agent.createXferReq(
                nixl.NIXL_READ,
                nixl.nixlXferDList(_KINDS[self._kind], local),
                nixl.nixlXferDList(_KINDS[self._remote_kind], remote),
                self.remote,
                b"",
                [],
            )
            status = self._agent.postXferReq(handle, b"")
        return Read(self, handle, status == nixl.NIXL_SUCCESS)

    def poll(self, handle: int, done: bool) -> bool:
        """See Read.poll."""
        with _translated(f"read from {self.remote}"):
            if not done:
                status = self._agent.getXferStatus(handle)
                if status == nixl.NIXL_IN_PROG:
                    return False
                if status != nixl.NIXL_SUCCESS:
                    raise TransferError(f"read from {self.remote} ended with {status}")
            self._agent.releaseXferReq(handle)
        return True

    def warm(self, segment: Segment, within_s: float) -> None:
        """Finish connecting by one small read; the first read of a connection takes tens of milliseconds longer.

        Raises:
            TransferError: the peer did not answer in time. Close the agent: the read is still under way.
        """
        read = self.read([segment])
        give_up_s = time.monotonic() + within_s
        while not read.poll():
            if time.monotonic() > give_up_s:
                raise TransferError(f"{self.remote} did not answer a first read within {within_s:g} s")
            time.sleep(0.001)

    def close(self) -> None:
        """Destroy the agent, which ends its reads. Late data has nowhere to land any more."""
        self._agent = None


def _create(name: str, progress_thread: bool) -> "nixl.nixlAgent":
    config = nixl.nixlAgentConfig()
    config.useProgThread = progress_thread
    config.useListenThread = False
    config.syncMode = nixl.NIXL_THREAD_SYNC_NONE
    config.pthrDelay = _PROGRESS_PERIOD_US
    agent = nixl.nixlAgent(name, config)
    agent.createBackend("UCX", {})
    return agent


def _register(agent: "nixl.nixlAgent", memory: MemoryRegion) -> None:
    region = (memory.address, memory.length_bytes, memory.device, "")
    agent.registerMem(nixl.nixlRegDList(_KINDS[memory.kind], [region]), [])


@contextmanager
def _default_setting(name: str, value: str) -> Iterator[None]:
    """UCX reads its settings from the environment, once per agent. What the operator has set stays."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except nixl.nixlRemoteDisconnectError as error:
        raise PeerDisconnected(f"{what}: the peer is gone") from error
    except _NIXL_ERRORS as error:
        raise TransferError(f"{what}: {error}") from error
