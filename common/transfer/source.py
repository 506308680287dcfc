"""Prefill's end of transfers: what is ready is announced on one stream per piece of work.

The engine side opens, announces, hands over and ends; the reading side subscribes, possibly late, and releases, renews
or aborts. Streams are thread-safe: the engine's events and the readers' calls come on different threads.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from common.errors import LeaseLost, TandemError
from common.kv.compatibility import check_compatible
from common.request import Compatibility, Handoff, ReadyBlock, TransferHello
from common.transfer.agent import SourceAgent

Announcement = tuple[ReadyBlock, ...] | Handoff | TandemError


class LeaseHolder(Protocol):
    """The engine, as far as readers reach it. Both calls are thread-safe and idempotent."""

    def release_lease(self, work_id: str) -> None: ...
    def renew_lease(self, work_id: str) -> None: ...


@dataclass(slots=True)
class _Transfer:
    blocks: int
    history: list[Announcement] = field(default_factory=list)
    stream: "AnnouncementStream | None" = None


class TransferSource:
    """All transfers that one prefill instance may be read for.

    Args:
        agent: the instance's NIXL agent over its pool.
        incarnation: of this start of the instance.
        block_bytes: of one pool block.
        compatibility: what a reader must agree on.
        leases: where readers' releases and renewals go.
    """

    def __init__(
        self, agent: SourceAgent, incarnation: int, block_bytes: int, compatibility: Compatibility, leases: LeaseHolder
    ) -> None:
        self._hello = TransferHello(
            agent_metadata=agent.metadata,
            incarnation=incarnation,
            pool_address=agent.pool.address,
            block_bytes=block_bytes,
            device=agent.pool.device,
            memory=agent.pool.kind,
            blocks=0,
        )
        self._compatibility = compatibility
        self._leases = leases
        self._lock = threading.Lock()
        self._transfers: dict[str, _Transfer] = {}

    @property
    def hello(self) -> TransferHello:
        """For a reader that connects before it has work; names no blocks."""
        return self._hello

    def check_reader(self, incarnation: int, compatibility: Compatibility) -> None:
        """
        Raises:
            LeaseLost: another incarnation was meant.
            Incompatible: latent of this instance is of no use to the reader.
        """
        if incarnation != self._hello.incarnation:
            raise LeaseLost(f"incarnation {incarnation:#x} is not here any more")
        check_compatible(self._compatibility, compatibility)

    def open(self, work_id: str, blocks: int) -> None:
        """The work's lease is granted; `blocks` will be announced in all."""
        with self._lock:
            self._transfers[work_id] = _Transfer(blocks)

    def announce(self, work_id: str, blocks: Sequence[ReadyBlock]) -> None:
        """These blocks may be read. Without effect when the transfer has ended."""
        self._append(work_id, tuple(blocks))

    def handoff(self, work_id: str, handoff: Handoff) -> None:
        """All blocks were announced, and this is what decode needs besides. The lease lives on until released."""
        self._append(work_id, handoff)

    def end(self, work_id: str, error: TandemError) -> None:
        """The lease is over from the engine's side: expired, cancelled or failed. A reader is told `error`."""
        self._append(work_id, error)
        with self._lock:
            self._transfers.pop(work_id, None)

    def subscribe(
        self, work_id: str, incarnation: int, compatibility: Compatibility, first_block: int
    ) -> "AnnouncementStream":
        """Everything announced for the work, from its beginning, without blocks before `first_block`.

        A later subscription takes the transfer over: the earlier stream ends with LeaseLost and loses its say.

        Raises:
            LeaseLost: another incarnation was meant, or the lease has ended or never was.
            Incompatible: latent of this instance is of no use to the reader.
        """
        self.check_reader(incarnation, compatibility)
        with self._lock:
            transfer = self._transfers.get(work_id)
            if transfer is None:
                raise LeaseLost(f"no lease for {work_id}")
            previous = transfer.stream
            hello = replace(self._hello, blocks=transfer.blocks)
            stream = transfer.stream = AnnouncementStream(self, work_id, hello, first_block)
            for announcement in transfer.history:
                stream.put(announcement)
        if previous is not None:
            previous.put(LeaseLost(f"another reader took over {work_id}"))
            previous.wake()
        return stream

    def release(self, stream: "AnnouncementStream") -> bool:
        """End the transfer from the reader's side. False: the stream had no say any more."""
        with self._lock:
            transfer = self._transfers.get(stream.work_id)
            if transfer is None or transfer.stream is not stream:
                return False
            del self._transfers[stream.work_id]
        self._leases.release_lease(stream.work_id)
        return True

    def renew(self, stream: "AnnouncementStream") -> bool:
        """The reader is alive and still reads. False: the stream had no say any more."""
        with self._lock:
            transfer = self._transfers.get(stream.work_id)
            if transfer is None or transfer.stream is not stream:
                return False
        self._leases.renew_lease(stream.work_id)
        return True

    def close(self, error: TandemError) -> None:
        """End every transfer with `error`."""
        with self._lock:
            work_ids = list(self._transfers)
        for work_id in work_ids:
            self.end(work_id, error)

    def __len__(self) -> int:
        return len(self._transfers)

    def _append(self, work_id: str, announcement: Announcement) -> None:
        with self._lock:
            transfer = self._transfers.get(work_id)
            if transfer is None:
                return
            transfer.history.append(announcement)
            stream = transfer.stream
            if stream is not None:
                stream.put(announcement)
        if stream is not None:
            stream.wake()


class AnnouncementStream:
    """One reader's view of a transfer: a queue in order, each announcement once."""

    def __init__(self, source: TransferSource, work_id: str, hello: TransferHello, first_block: int) -> None:
        self.work_id = work_id
        self.hello = hello
        self._source = source
        self._first_block = first_block
        self._queue: deque[Announcement] = deque()
        self._ready = threading.Event()
        self._on_ready: Callable[[], object] | None = None

    def take(self) -> list[Announcement]:
        """What came since the last call; does not block. A TandemError is the last of all."""
        self._ready.clear()
        taken = []
        while self._queue:
            taken.append(self._queue.popleft())
        return taken

    def wait(self, within_s: float) -> bool:
        """Block until something can be taken; False when the time passed first."""
        return self._ready.wait(within_s)

    def call_when_ready(self, on_ready: Callable[[], object]) -> None:
        """Call `on_ready` after every announcement, on the announcer's thread, and now if something waits."""
        self._on_ready = on_ready
        if self._ready.is_set():
            on_ready()

    def release(self) -> bool:
        """The reader has all it needs, or gives up: the lease ends."""
        return self._source.release(self)

    def renew(self) -> bool:
        """The reader still reads."""
        return self._source.renew(self)

    def put(self, announcement: Announcement) -> None:
        """Queue an announcement; the source's side."""
        if isinstance(announcement, tuple):
            announcement = tuple(block for block in announcement if block.index >= self._first_block)
            if not announcement:
                return
        self._queue.append(announcement)
        self._ready.set()

    def wake(self) -> None:
        """Tell whoever asked to be called; the source's side, without its lock."""
        if self._on_ready is not None and self._ready.is_set():
            self._on_ready()
