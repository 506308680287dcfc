"""Transfers from prefill instances: announcement streams on the event loop, bytes by the reader's thread."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from common.errors import PeerDisconnected, TandemError, TransferError, TransferTimeout
from common.request import Compatibility, Handoff, TransferHello
from common.rpc.channel import open_channel
from common.rpc.convert_transfer import TransferEvent, TransferOpen
from common.rpc.transfer_client import TransferStream
from common.rpc.worker_data import TransferSource
from common.transfer.reader import TransferReader
from common.transfer.target import TransferTarget

_HELLO_WITHIN_S = 10.0  # a source greets from its event loop, however busy its engine is


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one piece of work needs read.

    Attributes:
        first_block: blocks before it are in the cache already.
        blocks: pool blocks by index in the sequence.
        chain_hashes: of its full blocks.
    """

    work_id: str
    source: TransferSource
    first_block: int
    blocks: tuple[int, ...]
    chain_hashes: tuple[bytes, ...]


@dataclass(slots=True)
class _Line:
    """The channel to one address, shared by its transfers."""

    channel: grpc.aio.Channel
    streams: int = 0  # open on it
    hung_up: bool = False


class Reads:
    """All transfers under way. Lives on the event loop; the reader's thread reports through `Outcomes`."""

    def __init__(
        self,
        instance: str,
        compatibility: Compatibility,
        reader: TransferReader,
        timeout_s: float,
        on_unreadable: Callable[[str, TransferError], None],
        *,
        hello_within_s: float = _HELLO_WITHIN_S,
    ) -> None:
        """
        Args:
            timeout_s: from its start to its last block, prefill's computing included.
            on_unreadable: told of a transfer that failed before the reader knew of it.
            hello_within_s: a source that has not said who it is by then has stopped.
        """
        self._instance = instance
        self._compatibility = compatibility
        self._reader = reader
        self._timeout_s = timeout_s
        self._hello_within_s = min(hello_within_s, timeout_s)
        self._on_unreadable = on_unreadable
        self._lines: dict[str, _Line] = {}  # by address
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._outcomes: dict[str, asyncio.Future[TransferError | None]] = {}
        self._given: set[str] = set()  # the reader knows of them

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, wanted: Wanted) -> None:
        task = asyncio.get_running_loop().create_task(self._read(wanted))
        self._tasks[wanted.work_id] = task
        task.add_done_callback(lambda over: self._over(wanted.work_id, over))

    def abort(self, work_id: str) -> None:
        """The work has ended. The reader answers with `stopped`, or `on_unreadable` is told."""
        task = self._tasks.get(work_id)
        if task is not None:
            task.cancel()

    def ended(self, work_id: str, error: TransferError | None) -> None:
        """The reader is through with a transfer: None when everything landed."""
        outcome = self._outcomes.get(work_id)
        if outcome is not None and not outcome.done():
            outcome.set_result(error)

    async def acquaint(self, source: TransferSource) -> None:
        """Connect to a source ahead of work, which hides half a second from its first transfer.

        Raises:
            TransferError: it cannot be reached, or is another incarnation by now.
        """
        async with self._stream(source, "", 0) as stream:
            async for event in stream.events():
                if isinstance(event, TransferHello):
                    self._reader.connect(source.instance, event)
                return

    def part(self, source: TransferSource) -> None:
        """Another incarnation has taken the source's name; nothing of this one will be read again."""
        self._reader.part(source.instance, source.incarnation)

    async def hang_up(self, address: str) -> None:
        """No source is there any more: its channel goes, once the transfers that are open on it have ended."""
        line = self._lines.pop(address, None)
        if line is not None:
            line.hung_up = True
            if not line.streams:
                await line.channel.close()

    async def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for address in list(self._lines):
            await self.hang_up(address)

    async def _read(self, wanted: Wanted) -> None:
        work_id = wanted.work_id
        outcome: asyncio.Future[TransferError | None] = asyncio.get_running_loop().create_future()
        self._outcomes[work_id] = outcome
        try:
            async with self._stream(wanted.source, work_id, wanted.first_block) as stream:
                events = stream.events()
                hello = await self._hello(events, wanted.source.instance)
                self._given.add(work_id)
                self._reader.start(self._target(wanted, hello))
                announcements = asyncio.ensure_future(self._forward(work_id, events))
                ends: set[asyncio.Future[Any]] = {announcements, outcome}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if not outcome.done():
                    self._reader.fail(work_id, _as_transfer_error(announcements.exception()))
                error = await outcome
                announcements.cancel()
                await (stream.release() if error is None else stream.abort(str(error)))
        except TandemError as error:
            failure = _as_transfer_error(error)
            if work_id not in self._given:
                self._on_unreadable(work_id, failure)
            if isinstance(failure, PeerDisconnected):
                self._reader.fence(wanted.source.instance, wanted.source.incarnation)
        finally:
            del self._outcomes[work_id]

    async def _hello(self, events: AsyncIterator[TransferEvent], source: str) -> TransferHello:
        """Who the source is. Until it has said so the reader knows of no transfer, and its deadline does not run."""
        within_s = self._hello_within_s
        try:
            async with asyncio.timeout(within_s):
                hello = await anext(events)
        except TimeoutError as error:
            raise TransferTimeout(f"{source} said nothing for {within_s:g} s after the transfer was opened") from error
        if not isinstance(hello, TransferHello):
            raise TransferError(f"{source} did not begin with who it is")
        return hello

    def _over(self, work_id: str, task: "asyncio.Task[None]") -> None:
        """Answer an abort. Here and not in the task, which may be cancelled before it runs a line of its own."""
        self._tasks.pop(work_id, None)
        given = work_id in self._given
        self._given.discard(work_id)
        if task.cancelled():
            if given:
                self._reader.abort(work_id)
            else:
                self._on_unreadable(work_id, TransferError("the work ended before its transfer began"))

    async def _forward(self, work_id: str, events: AsyncIterator[TransferEvent]) -> None:
        async for event in events:
            match event:
                case tuple():
                    self._reader.announce(work_id, event)
                case Handoff():
                    self._reader.handoff(work_id, event)

    def _target(self, wanted: Wanted, hello: TransferHello) -> TransferTarget:
        return TransferTarget(
            work_id=wanted.work_id,
            peer=wanted.source.instance,
            hello=hello,
            first_block=wanted.first_block,
            blocks=wanted.blocks,
            chain_hashes=wanted.chain_hashes,
            deadline_s=time.monotonic() + self._timeout_s,
        )

    @asynccontextmanager
    async def _stream(self, source: TransferSource, work_id: str, first_block: int) -> AsyncIterator[TransferStream]:
        line = self._lines.get(source.address)
        if line is None:
            line = self._lines[source.address] = _Line(open_channel(source.address))
        opening = TransferOpen(work_id, self._instance, source.incarnation, self._compatibility, first_block)
        line.streams += 1
        try:
            async with TransferStream(line.channel, source.address, opening) as stream:
                yield stream
        finally:
            line.streams -= 1
            if line.hung_up and not line.streams:
                await line.channel.close()


def _as_transfer_error(error: BaseException | None) -> TransferError:
    if isinstance(error, TransferError):
        return error
    return TransferError(str(error) if error is not None else "the announcements ended early")
