"""The public gRPC service over the core: wire types in and out, errors to statuses."""

from collections.abc import AsyncIterator

import grpc

from common.errors import TandemError
from common.rpc.convert_inference import (
    cancel_outcome_to_wire,
    cluster_to_wire,
    delta_to_wire,
    explanation_to_wire,
    model_to_wire,
    request_from_wire,
)
from common.rpc.errors import abort
from common.rpc.trace_metadata import callers_trace
from protos import inference_pb2, inference_pb2_grpc
from services.scheduler.core import Core

SERVICE = "tandem.v1.Inference"


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    def __init__(self, core: Core) -> None:
        self._core = core

    async def Generate(  # noqa: N802
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[inference_pb2.GenerateDelta]:
        deltas = self._core.generate(request_from_wire(request), context.time_remaining(), callers_trace(context))
        try:
            async for delta in deltas:
                yield delta_to_wire(delta)
        except TandemError as error:
            await abort(context, error)
        finally:
            await deltas.aclose()

    async def Cancel(  # noqa: N802
        self, request: inference_pb2.CancelRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.CancelResponse:
        try:
            return cancel_outcome_to_wire(await self._core.cancel(request.request_id))
        except TandemError as error:
            await abort(context, error)

    async def GetModel(  # noqa: N802
        self, request: inference_pb2.GetModelRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.ModelInfo:
        try:
            return model_to_wire(self._core.model(request.model))
        except TandemError as error:
            await abort(context, error)

    async def GetCluster(  # noqa: N802
        self, _request: inference_pb2.GetClusterRequest, _context: grpc.aio.ServicerContext
    ) -> inference_pb2.ClusterInfo:
        return cluster_to_wire(self._core.cluster())

    async def Explain(  # noqa: N802
        self, request: inference_pb2.ExplainRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.Explanation:
        try:
            return explanation_to_wire(await self._core.explain(request.request_id))
        except TandemError as error:
            await abort(context, error)


def register(core: Core, server: grpc.aio.Server) -> None:
    inference_pb2_grpc.add_InferenceServicer_to_server(InferenceServicer(core), server)
