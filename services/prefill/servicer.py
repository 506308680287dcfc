"""The wire of a prefill instance."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from common.clock import Clock
from common.errors import InvalidInput, TandemError
from common.rpc.convert import prefill_event_to_wire, work_from_wire
from common.rpc.convert_transfer import TransferOpen, transfer_event_to_wire, transfer_message_from_wire
from common.rpc.errors import abort
from common.rpc.trace_metadata import enter_callers_trace
from common.rpc.worker_data import InstanceDescription
from common.rpc.worker_servicer import WorkerServicer
from protos import engine_pb2, engine_pb2_grpc
from services.prefill.instance import PrefillInstance

SERVICE = "tandem.v1.Prefill"


class PrefillServicer(WorkerServicer, engine_pb2_grpc.PrefillServicer):
    def __init__(self, instance: PrefillInstance, description: InstanceDescription, clock: Clock) -> None:
        super().__init__(description, instance.cancel)
        self._instance = instance
        self._clock = clock

    async def Run(  # noqa: N802
        self, request: engine_pb2.PrefillRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.PrefillEvent]:
        enter_callers_trace(context)
        try:
            work = work_from_wire(request.work, self._clock.now_s())
            async with aclosing(self._instance.run(work, keep_for_decode=request.keep_for_decode)) as events:
                async for event in events:
                    yield prefill_event_to_wire(event)
        except TandemError as error:
            await abort(context, error)

    async def Transfer(  # noqa: N802
        self, request_iterator: AsyncIterator[engine_pb2.TransferRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.TransferEvent]:
        enter_callers_trace(context)
        ended_by_reader = asyncio.Event()
        try:
            opening = await _opening(request_iterator)
            rest = asyncio.ensure_future(_until_end(request_iterator, ended_by_reader))
            try:
                async with aclosing(self._instance.transfer(opening, ended_by_reader)) as events:
                    async for event in events:
                        yield transfer_event_to_wire(event)
            finally:
                rest.cancel()
        except TandemError as error:
            await abort(context, error)


async def _opening(requests: AsyncIterator[engine_pb2.TransferRequest]) -> TransferOpen:
    async for wire in requests:
        message = transfer_message_from_wire(wire)
        if isinstance(message, TransferOpen):
            return message
        break
    raise InvalidInput("message", "release or abort", "open comes first")


async def _until_end(requests: AsyncIterator[engine_pb2.TransferRequest], ended: asyncio.Event) -> None:
    """The reader's only other messages end the transfer, and so does the end of its messages."""
    async for _ in requests:
        break
    ended.set()


def register(servicer: PrefillServicer, server: grpc.aio.Server) -> None:
    engine_pb2_grpc.add_PrefillServicer_to_server(servicer, server)
