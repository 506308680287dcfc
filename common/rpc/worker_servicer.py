"""The calls that instances of both roles answer alike; a role's servicer adds its own."""

from collections.abc import Awaitable, Callable

import grpc

from common.errors import TandemError
from common.rpc.convert import description_to_wire
from common.rpc.errors import abort
from common.rpc.worker_data import InstanceDescription
from protos import engine_pb2


class WorkerServicer:
    """
    Args:
        cancel: ends work in whatever phase it is, and says whether it was here.
    """

    def __init__(self, description: InstanceDescription, cancel: Callable[[str], Awaitable[bool]]) -> None:
        self.description = description
        self._cancel = cancel

    async def Describe(  # noqa: N802
        self, request: engine_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.InstanceDescription:
        return description_to_wire(self.description)

    async def Cancel(  # noqa: N802
        self, request: engine_pb2.CancelWork, context: grpc.aio.ServicerContext
    ) -> engine_pb2.CancelWorkReply:
        try:
            return engine_pb2.CancelWorkReply(found=await self._cancel(request.work_id))
        except TandemError as error:
            await abort(context, error)
