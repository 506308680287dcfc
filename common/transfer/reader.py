"""Decode's end of transfers: one thread owns the landing arena and the agents, and reads what peers announce.

    announced ──take slots, post──> landing ──done──> copied and hashed ──tag right──> landed
                                       │                                  └─tag wrong─> failed(TagMismatch)
                                       └─deadline, abort, failure──> draining ──read ended──> slots free

Nothing but landing arena slots is ever written by a read, so data that comes late cannot reach the pool.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.errors import PeerDisconnected, TagMismatch, TransferError, TransferTimeout
from common.kv.landing_arena import LandingArena, SlotCounts
from common.kv.tags import tag
from common.request import Handoff, ReadyBlock, TransferHello
from common.transfer.agent import Read, Segment
from common.transfer.landing import Landing
from common.transfer.memory import MemoryRegion
from common.transfer.peers import Peers, peer_key
from common.transfer.runs import runs
from common.transfer.target import TransferOutcome, TransferTarget

_POLL_S = 0.0002
_DRAIN_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """How much of the arena one read and one peer may take."""

    blocks_per_read: int = 16
    slots_per_peer: int = 256  # landing and draining; keeps room for others when a peer stops
    connect_s: float = 5.0


@dataclass(slots=True)
class ReaderCounters:
    """Totals since the start; but for the blocks they sum to the transfers that have ended."""

    landed: int = 0
    timed_out: int = 0
    mismatched: int = 0  # a tag was wrong
    failed: int = 0  # in any other way
    aborted: int = 0
    landed_blocks: int = 0


@dataclass(slots=True)
class _Transfer:
    target: TransferTarget
    key: str
    waiting: deque[ReadyBlock] = field(default_factory=deque)
    announced: set[int] = field(default_factory=set)
    missing: int = 0  # blocks not yet landed
    handoff: Handoff | None = None
    handoff_s: float = 0.0


@dataclass(slots=True)
class _Posted:
    read: Read
    key: str
    slots: list[int]
    blocks: list[ReadyBlock]
    transfer: _Transfer | None  # None: nobody wants the data


class TransferReader:
    """Reads latent from any number of peers.

    Args:
        name: unique among all readers of one source, over restarts too.
        arena: memory of at least two blocks; the last one is no slot but takes the first read of each connection.
        block_bytes: of one block, here and at every peer.
        landing: copies and hashes.
        outcome: told how transfers end.
        limits: how much a peer may take.
        rest_s: how often the thread looks up when nothing happens, which shows that it does not hang.
    """

    def __init__(
        self,
        name: str,
        arena: MemoryRegion,
        block_bytes: int,
        landing: Landing,
        outcome: TransferOutcome,
        limits: ReaderLimits,
        *,
        rest_s: float = 1.0,
    ) -> None:
        self._arena_memory = arena
        self._block_bytes = block_bytes
        self._landing = landing
        self._outcome = outcome
        self._limits = limits
        self._rest_s = rest_s
        self._arena = LandingArena(arena.length_bytes // block_bytes - 1)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._peers = Peers(name, arena, limits.connect_s, self._inbox.put, self._connected)
        self._transfers: dict[str, _Transfer] = {}
        self._posted: list[_Posted] = []
        self._running = True
        self._progress_s = time.monotonic()
        self.counters = ReaderCounters()
        self._thread = threading.Thread(target=self._run, name=f"transfer reader {name}")
        self._thread.start()

    # Called on any thread.

    def connect(self, peer: str, hello: TransferHello) -> None:
        """Connect ahead of work, which hides about half a second from the peer's first transfer."""
        self._inbox.put(lambda: self._peers.connect(peer_key(peer, hello.incarnation), hello))

    def start(self, target: TransferTarget) -> None:
        """Begin a transfer. Announcements count from here on; it ends by its deadline at the latest."""
        self._inbox.put(lambda: self._start(target))

    def announce(self, work_id: str, blocks: Sequence[ReadyBlock]) -> None:
        """These blocks may be read. Repeated ones and those of a transfer that has ended are ignored."""
        self._inbox.put(lambda: self._announce(work_id, blocks))

    def handoff(self, work_id: str, handoff: Handoff) -> None:
        """The source has announced all; the transfer lands when the last block does."""
        arrived_s = time.monotonic()
        self._inbox.put(lambda: self._handoff(work_id, handoff, arrived_s))

    def fail(self, work_id: str, error: TransferError) -> None:
        """The announcement stream broke or told an error."""
        self._inbox.put(lambda: self._fail(work_id, error))

    def abort(self, work_id: str) -> None:
        """The transfer is not wanted any more. Always answered by `stopped`, also when it has ended meanwhile."""
        self._inbox.put(lambda: self._abort(work_id))

    def fence(self, peer: str, incarnation: int) -> None:
        """Destroy the agent of a peer that was given up: its transfers fail and its draining slots are free again."""
        key = peer_key(peer, incarnation)
        self._inbox.put(lambda: self._lose(key, PeerDisconnected(f"{peer} was fenced")))

    def part(self, peer: str, incarnation: int) -> None:
        """The peer's process was replaced: its agent goes, unless reads are under way, which end it by their error."""
        self._inbox.put(lambda: self._part(peer_key(peer, incarnation)))

    def close(self) -> None:
        """Fail what is under way, destroy all agents, end the thread."""
        self._inbox.put(self._stop)
        self._thread.join()

    @property
    def alive(self) -> bool:
        """The thread runs. False before `close` means a bug whose traceback was printed."""
        return self._thread.is_alive()

    def progress_age_s(self) -> float:
        """Seconds since the thread last went round. Large when it hangs: it looks up every `rest_s` at the latest."""
        return time.monotonic() - self._progress_s

    def slots(self) -> SlotCounts:
        """The arena's books, as of some moment ago."""
        return self._arena.counts()

    # On the reader's thread.

    def _run(self) -> None:
        while self._running:
            self._progress_s = time.monotonic()
            self._poll_reads()
            self._enforce_deadlines()
            self._post_reads()  # last before sleeping: whatever can be under way is
            self._take_commands()
        self._peers.join()
        self._take_commands(block=False)
        self._fail_all()
        self._peers.close()

    def _take_commands(self, block: bool = True) -> None:
        try:
            command = self._inbox.get(block, self._idle_s())
            while True:
                self._progress_s = time.monotonic()
                command()
                command = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _idle_s(self) -> float:
        if any(posted.transfer is not None for posted in self._posted):
            return _POLL_S
        if self._posted:
            return _DRAIN_POLL_S
        if not self._transfers:
            return self._rest_s
        first_s = min(transfer.target.deadline_s for transfer in self._transfers.values())
        return min(self._rest_s, max(0.0, first_s - time.monotonic()))

    def _start(self, target: TransferTarget) -> None:
        key = peer_key(target.peer, target.hello.incarnation)
        draining = self._arena.draining(key)
        transfer = _Transfer(target, key, missing=max(0, target.hello.blocks - target.first_block))
        self._transfers[target.work_id] = transfer
        if draining >= self._limits.slots_per_peer:
            self._fail(target.work_id, TransferError(f"{target.peer} keeps {draining} landing slots draining"))
        elif target.hello.block_bytes != self._block_bytes:
            sizes = f"{target.hello.block_bytes} bytes at {target.peer}, {self._block_bytes} here"
            self._fail(target.work_id, TransferError(f"a block has {sizes}"))
        elif target.hello.blocks > len(target.blocks):
            counts = f"{target.hello.blocks} blocks are announced, {len(target.blocks)} reserved"
            self._fail(target.work_id, TransferError(counts))
        else:
            self._peers.connect(key, target.hello)

    def _announce(self, work_id: str, blocks: Sequence[ReadyBlock]) -> None:
        transfer = self._transfers.get(work_id)
        if transfer is None:
            return
        for block in blocks:
            if block.index >= transfer.target.hello.blocks:
                total = transfer.target.hello.blocks
                self._fail(work_id, TransferError(f"block {block.index} of {total} was announced"))
                return
            if block.index >= transfer.target.first_block and block.index not in transfer.announced:
                transfer.announced.add(block.index)
                transfer.waiting.append(block)

    def _handoff(self, work_id: str, handoff: Handoff, arrived_s: float) -> None:
        transfer = self._transfers.get(work_id)
        if transfer is not None:
            transfer.handoff, transfer.handoff_s = handoff, arrived_s
            self._finish_if_complete(transfer)

    def _connected(self, key: str, error: TransferError | None) -> None:
        if error is not None:
            self._lose(key, error)

    def _post_reads(self) -> None:
        """Give every transfer that waits one read in turn, while slots last."""
        waiting = deque(transfer for transfer in self._transfers.values() if transfer.waiting)
        while waiting:
            transfer = waiting.popleft()
            if self._post_read(transfer) and transfer.waiting:
                waiting.append(transfer)

    def _post_read(self, transfer: _Transfer) -> bool:
        agent = self._peers.agent(transfer.key)
        peer_room = self._limits.slots_per_peer - self._arena.held(transfer.key)
        size = min(len(transfer.waiting), self._limits.blocks_per_read, peer_room, self._arena.counts().free)
        if agent is None or size <= 0:
            return False
        blocks = sorted((transfer.waiting.popleft() for _ in range(size)), key=lambda block: block.block)
        slots = self._arena.take(size, transfer.key)
        try:
            read = agent.read(self._segments(transfer.target.hello, blocks, slots))
        except TransferError as error:
            self._arena.finish(slots)
            if isinstance(error, PeerDisconnected):
                self._lose(transfer.key, error)
            else:
                self._fail(transfer.target.work_id, error)
            return False
        self._posted.append(_Posted(read, transfer.key, slots, blocks, transfer))
        return True

    def _segments(self, hello: TransferHello, blocks: list[ReadyBlock], slots: list[int]) -> list[Segment]:
        size = self._block_bytes
        pairs = [(block.block, slot) for block, slot in zip(blocks, slots, strict=True)]
        return [
            Segment(self._arena_memory.address + slot * size, hello.pool_address + block * size, length * size)
            for block, slot, length in runs(pairs)
        ]

    def _poll_reads(self) -> None:
        still: list[_Posted] = []
        lost: dict[str, TransferError] = {}
        for posted in self._posted:
            try:
                done = posted.read.poll()
            except TransferError as error:
                lost[posted.key] = error
                done = False
            if not done:
                still.append(posted)
            elif posted.transfer is None:
                self._arena.drained(posted.slots)
            else:
                self._land(posted, posted.transfer)
        self._posted = still
        for key, reason in lost.items():
            self._lose(key, reason)

    def _land(self, posted: _Posted, transfer: _Transfer) -> None:
        target = transfer.target
        full = [block.index < len(target.chain_hashes) for block in posted.blocks]
        pool_blocks = [target.blocks[block.index] for block in posted.blocks]
        self._progress_s = time.monotonic()
        hashes = self._landing.land(posted.slots, pool_blocks, full)
        self._arena.finish(posted.slots)
        posted.transfer = None
        posted.slots = []
        for block, content_hash, is_full in zip(posted.blocks, hashes, full, strict=True):
            chain_hash = target.chain_hashes[block.index] if is_full else b""
            if tag(content_hash, chain_hash, target.hello.incarnation) != block.tag:
                what = f"block {block.index} of {target.work_id}"
                self._fail(target.work_id, TagMismatch(f"{what} is not what was announced"))
                return
        transfer.missing -= len(posted.blocks)
        self.counters.landed_blocks += len(posted.blocks)
        self._finish_if_complete(transfer)

    def _finish_if_complete(self, transfer: _Transfer) -> None:
        if transfer.missing or transfer.handoff is None:
            return
        del self._transfers[transfer.target.work_id]
        self.counters.landed += 1
        exposed_s = time.monotonic() - transfer.handoff_s
        self._outcome.landed(transfer.target.work_id, transfer.handoff, exposed_s)

    def _enforce_deadlines(self) -> None:
        now_s = time.monotonic()
        for transfer in list(self._transfers.values()):
            if transfer.target.deadline_s <= now_s:
                state = f"{transfer.missing} blocks missing, handoff {'here' if transfer.handoff else 'missing'}"
                self._fail(transfer.target.work_id, TransferTimeout(f"deadline with {state}"))

    def _fail(self, work_id: str, error: TransferError) -> None:
        if self._forget(work_id):
            match error:
                case TransferTimeout():
                    self.counters.timed_out += 1
                case TagMismatch():
                    self.counters.mismatched += 1
                case _:
                    self.counters.failed += 1
            self._outcome.failed(work_id, error)

    def _abort(self, work_id: str) -> None:
        self.counters.aborted += self._forget(work_id)
        self._outcome.stopped(work_id)

    def _forget(self, work_id: str) -> bool:
        transfer = self._transfers.pop(work_id, None)
        if transfer is None:
            return False
        for posted in self._posted:
            if posted.transfer is transfer:
                posted.transfer = None
                self._arena.drain(posted.slots)
        return True

    def _lose(self, key: str, error: TransferError) -> None:
        """The peer is gone: its transfers fail, and after its agent's end no read can store any more."""
        for work_id in [work_id for work_id, transfer in self._transfers.items() if transfer.key == key]:
            self._fail(work_id, error)
        self._peers.drop(key)
        for posted in self._posted:
            if posted.key == key:
                self._arena.drained(posted.slots)
        self._posted = [posted for posted in self._posted if posted.key != key]
        self._arena.forget(key)

    def _part(self, key: str) -> None:
        if not self._arena.held(key) and all(transfer.key != key for transfer in self._transfers.values()):
            self._peers.drop(key)
            self._arena.forget(key)

    def _stop(self) -> None:
        self._fail_all()
        self._running = False

    def _fail_all(self) -> None:
        for work_id in list(self._transfers):
            self._fail(work_id, TransferError("the reader is closing"))
