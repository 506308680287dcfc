"""Transfers that end before they have begun."""

import asyncio
from collections.abc import AsyncIterator

import grpc

from common.errors import TransferError, TransferTimeout
from common.request import Compatibility
from common.rpc.worker_data import TransferSource
from protos import engine_pb2, engine_pb2_grpc
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


class Silent(engine_pb2_grpc.PrefillServicer):
    """Takes a transfer's opening and stands still, as a process that was stopped."""

    async def Transfer(
        self, request_iterator: AsyncIterator[engine_pb2.TransferRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.TransferEvent]:
        await asyncio.Event().wait()
        yield engine_pb2.TransferEvent()


async def test_a_source_that_never_says_who_it_is_is_given_up() -> None:
    server = grpc.aio.server()
    engine_pb2_grpc.add_PrefillServicer_to_server(Silent(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    told: asyncio.Queue[tuple[str, TransferError]] = asyncio.Queue()
    reads = Reads("d0", COMPATIBILITY, None, 30.0, lambda *what: told.put_nowait(what), hello_within_s=0.2)  # type: ignore[arg-type]
    reads.start(Wanted("w", TransferSource("p", f"127.0.0.1:{port}", 1), 0, (0,), ()))
    work_id, error = await asyncio.wait_for(told.get(), 20)
    assert work_id == "w"
    assert isinstance(error, TransferTimeout)
    assert "p said nothing for 0.2 s" in str(error)
    await reads.close()
    await server.stop(None)
