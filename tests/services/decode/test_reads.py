"""Transfers that end before they have begun."""

import asyncio
from collections.abc import AsyncIterator

import grpc

from common.errors import LeaseLost, TransferError, TransferTimeout
from common.request import Compatibility
from common.rpc.errors import to_failure
from common.rpc.trace_metadata import callers_trace
from common.rpc.worker_data import TransferSource
from common.telemetry.trace import Trace, continued, tracing
from common.transfer.target import TransferTarget
from protos import engine_pb2, engine_pb2_grpc
from services.decode.reads import Reads, Wanted
from tests.fakes.cluster import until

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


class Greeting(engine_pb2_grpc.PrefillServicer):
    """Says who it is and keeps the transfer open until `finish`; counts the connections that transfers came on."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.connections: list[str] = []
        self.traces: list[Trace | None] = []

    async def Transfer(
        self, request_iterator: AsyncIterator[engine_pb2.TransferRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.TransferEvent]:
        self.connections.append(context.peer())
        self.traces.append(callers_trace(context))
        yield engine_pb2.TransferEvent(hello=engine_pb2.TransferHello(incarnation=1))
        await self.finish.wait()
        yield engine_pb2.TransferEvent(failed=to_failure(LeaseLost("over")))


class Reader:
    """Reads nothing, and ends a transfer with what the source told."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.reads: Reads

    def connect(self, _peer: str, _hello: object) -> None:
        pass

    def start(self, target: TransferTarget) -> None:
        self.started.append(target.work_id)

    def fail(self, work_id: str, error: TransferError) -> None:
        self.reads.ended(work_id, error)


async def test_a_channel_that_was_hung_up_lives_as_long_as_its_transfers() -> None:
    servicer, server = Greeting(), grpc.aio.server()
    engine_pb2_grpc.add_PrefillServicer_to_server(servicer, server)
    source = TransferSource("p", f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", 1)
    await server.start()
    reader = Reader()
    reads = reader.reads = Reads("d0", COMPATIBILITY, reader, 30.0, lambda *_: None)  # type: ignore[arg-type]
    with tracing(trace := continued(Trace("1" * 32, "2" * 16, 1, "vendor=x"))):
        reads.start(Wanted("w", source, 0, (0,), ()))
    await until(lambda: reader.started == ["w"], 20.0)
    assert servicer.traces == [trace]
    await reads.hang_up(source.address)
    await reads.acquaint(source)  # on a new channel, while the old one serves its transfer
    assert len(set(servicer.connections)) == 2
    assert len(reads) == 1
    servicer.finish.set()
    await until(lambda: not len(reads), 20.0)
    await reads.acquaint(source)
    assert len(servicer.connections) == 3
    assert len(set(servicer.connections)) == 2
    await reads.hang_up(source.address)
    await reads.acquaint(source)
    assert len(set(servicer.connections)) == 3
    await reads.close()
    await server.stop(None)


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
