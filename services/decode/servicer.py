"""The wire of a decode instance."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from common.clock import Clock
from common.errors import TandemError
from common.rpc.convert import decode_request_from_wire, description_to_wire, step_to_wire
from common.rpc.errors import abort
from common.rpc.worker_data import InstanceDescription
from protos import engine_pb2, engine_pb2_grpc
from services.decode.instance import DecodeInstance

SERVICE = "tandem.v1.Decode"


class DecodeServicer(engine_pb2_grpc.DecodeServicer):
    def __init__(self, instance: DecodeInstance, description: InstanceDescription, clock: Clock) -> None:
        self._instance = instance
        self._description = description
        self._clock = clock

    async def Describe(  # noqa: N802
        self, request: engine_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.InstanceDescription:
        return description_to_wire(self._description)

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
        try:
            ahead = await self._instance.admit(decode_request_from_wire(request, self._clock.now_s()))
        except TandemError as error:
            await abort(context, error)
        return engine_pb2.DecodeAdmission(queued_ahead=ahead)

    async def Cancel(  # noqa: N802
        self, request: engine_pb2.CancelWork, context: grpc.aio.ServicerContext
    ) -> engine_pb2.CancelWorkReply:
        try:
            return engine_pb2.CancelWorkReply(found=await self._instance.cancel(request.work_id))
        except TandemError as error:
            await abort(context, error)


def register(servicer: DecodeServicer, server: grpc.aio.Server) -> None:
    engine_pb2_grpc.add_DecodeServicer_to_server(servicer, server)
