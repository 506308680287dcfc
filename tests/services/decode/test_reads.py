"""Transfers that end before they have begun."""

from common.errors import TransferError
from common.request import Compatibility
from common.rpc.worker_data import TransferSource
from services.decode.reads import Reads, Wanted

COMPATIBILITY = Compatibility("fp", "contract", "float32", 16, 3, 96, 1)


async def test_a_read_that_is_aborted_before_its_first_step_is_answered() -> None:
    """A stalled event loop finds the reservation and the cancel together; the blocks must not wait for ever."""
    told: list[str] = []

    def unreadable(work_id: str, _error: TransferError) -> None:
        told.append(work_id)

    reads = Reads("d0", COMPATIBILITY, None, 5.0, unreadable)  # type: ignore[arg-type]
    reads.start(Wanted("w", TransferSource("p", "127.0.0.1:1", 1), 0, (0,), ()))
    reads.abort("w")
    await reads.close()
    assert told == ["w"]
    assert not len(reads)
