"""The wire of a decode instance."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from common.clock import Clock
from common.errors import TandemError
from common.rpc.convert import decode_request_from_wire, step_to_wire
from common.rpc.errors import abort
from common.rpc.trace_metadata import enter_callers_trace
from common.rpc.worker_data import InstanceDescription
from common.rpc.worker_servicer import WorkerServicer
from protos import engine_pb2, engine_pb2_grpc
from services.decode.instance import DecodeInstance

SERVICE = "tandem.v1.Decode"


class DecodeServicer(WorkerServicer, engine_pb2_grpc.DecodeServicer):
    def __init__(self, instance: DecodeInstance, description: InstanceDescription, clock: Clock) -> None:
        super().__init__(description, instance.cancel)
        self._instance = instance
        self._clock = clock

    async def Steps(  # noqa: N802
        self, request: engine_pb2.StepsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.StepEvent]:
        try:
            async with aclosing(self._instance.steps(request.scheduler)) as batches:
                async for batch in batches:
                    yield step_to_wire(batch)
        except TandemError as error:
            await abort(context, error)

    async def Admit(  # noqa: N802
        self, request: engine_pb2.DecodeRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.DecodeAdmission:
        enter_callers_trace(context)
        try:
            ahead = await self._instance.admit(decode_request_from_wire(request, self._clock.now_s()))
        except TandemError as error:
            await abort(context, error)
        return engine_pb2.DecodeAdmission(queued_ahead=ahead)


def register(servicer: DecodeServicer, server: grpc.aio.Server) -> None:
    engine_pb2_grpc.add_DecodeServicer_to_server(servicer, server)
