"""How transfers end: told on the reader's thread, passed to the engine at once and to the event loop soon."""

import asyncio
from collections.abc import Callable

from common.engine.decode_engine import DecodeEngine
from common.errors import TandemError, TransferError
from common.request import Handoff
from services.decode.instance import DecodeInstance, DecodeLoop
from services.decode.reads import Reads


class Outcomes:
    """See common.transfer.target.TransferOutcome."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: DecodeLoop) -> None:
        self._loop = loop
        self._engine = engine
        self._reads: Reads | None = None
        self._instance: DecodeInstance | None = None

    def bind(self, reads: Reads, instance: DecodeInstance) -> None:
        """Called once, before anything is read."""
        self._reads, self._instance = reads, instance

    def landed(self, work_id: str, handoff: Handoff, exposed_transfer_s: float) -> None:
        # First the event loop: the work's tokens take the same way and must come after `joined`.
        if (instance := self._instance) is not None:
            over = handoff.finish_reason is not None
            self._tell(lambda: instance.joined(work_id, exposed_transfer_s, over=over))
        self._post(lambda engine: engine.landed(work_id, handoff))
        self._end(work_id, None)

    def failed(self, work_id: str, error: TransferError) -> None:
        self._post(lambda engine: engine.transfer_failed(work_id, error))
        self._end(work_id, error)

    def stopped(self, work_id: str) -> None:
        self._post(lambda engine: engine.reader_stopped(work_id))

    def _end(self, work_id: str, error: TransferError | None) -> None:
        if (reads := self._reads) is not None:
            self._tell(lambda: reads.ended(work_id, error))

    def _post(self, command: Callable[[DecodeEngine], object]) -> None:
        try:
            self._engine.post(command)
        except TandemError:  # the engine has ended and all its work with it
            return

    def _tell(self, callback: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)
