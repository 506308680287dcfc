"""Thin typed clients. Each call speaks plain data and ends, if it fails, with the `TandemError` that the peer meant."""

from abc import abstractmethod
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self

from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.clock import Clock, MonotonicClock
from common.request import Work
from common.rpc.channel import Options, open_channel
from common.rpc.convert import (
    decode_request_to_wire,
    description_from_wire,
    prefill_event_from_wire,
    step_from_wire,
    work_to_wire,
)
from common.rpc.convert_inference import (
    cancel_outcome_from_wire,
    cluster_from_wire,
    delta_from_wire,
    explanation_from_wire,
    model_from_wire,
    request_to_wire,
)
from common.rpc.errors import translated
from common.rpc.inference_data import CancelOutcome, ClusterInfo, Delta, Explanation, GenerateRequest, ModelInfo
from common.rpc.server import Probe
from common.rpc.trace_metadata import outgoing
from common.rpc.worker_data import DecodeRequest, InstanceDescription, PrefillEvent, StepBatch
from protos import engine_pb2, engine_pb2_grpc, inference_pb2, inference_pb2_grpc


class Connection:
    """One channel to one peer; the base of the clients.

    Closing it cancels what is open on it.
    """

    def __init__(self, address: str, clock: Clock | None = None, options: Options | None = None) -> None:
        self.address = address
        self._clock: Clock = clock or MonotonicClock()
        self._channel = open_channel(address, options)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def serving(self, probe: Probe, timeout_s: float) -> bool:
        """Whether the peer answers SERVING. No answer within `timeout_s` raises, as a dead peer does."""
        with translated(self.address):
            answer = await self._health.Check(health_pb2.HealthCheckRequest(service=probe.value), timeout=timeout_s)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


class InferenceClient(Connection):
    """The public front door."""

    def __init__(self, address: str, clock: Clock | None = None, options: Options | None = None) -> None:
        super().__init__(address, clock, options)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)

    async def generate(self, request: GenerateRequest, timeout_s: float | None = None) -> AsyncGenerator[Delta, None]:
        """Leaving the iteration early cancels the request."""
        call = self._stub.Generate(request_to_wire(request), timeout=timeout_s, metadata=outgoing())
        try:
            with translated(self.address):
                async for wire in call:
                    yield delta_from_wire(wire)
        finally:
            call.cancel()

    async def cancel(self, request_id: str, timeout_s: float = 5.0) -> CancelOutcome:
        """End a live request, whichever replica has it. An id that nobody knows is no error: the outcome says so."""
        with translated(self.address):
            wire = await self._stub.Cancel(inference_pb2.CancelRequest(request_id=request_id), timeout=timeout_s)
        return cancel_outcome_from_wire(wire)

    async def model(self, name: str = "", timeout_s: float = 5.0) -> ModelInfo:
        with translated(self.address):
            return model_from_wire(
                await self._stub.GetModel(inference_pb2.GetModelRequest(model=name), timeout=timeout_s)
            )

    async def cluster(self, timeout_s: float = 5.0) -> ClusterInfo:
        with translated(self.address):
            return cluster_from_wire(await self._stub.GetCluster(inference_pb2.GetClusterRequest(), timeout=timeout_s))

    async def explain(self, request_id: str, timeout_s: float = 5.0) -> Explanation:
        with translated(self.address):
            wire = await self._stub.Explain(inference_pb2.ExplainRequest(request_id=request_id), timeout=timeout_s)
        return explanation_from_wire(wire)


class WorkerClient(Connection):
    """The scheduler's side of what instances of both roles answer."""

    def __init__(self, address: str, clock: Clock | None = None, options: Options | None = None) -> None:
        super().__init__(address, clock, options)
        self._stub: Any = self._new_stub()

    @abstractmethod
    def _new_stub(self) -> object:
        """The role's stub on the channel."""

    async def describe(self, timeout_s: float = 5.0) -> InstanceDescription:
        with translated(self.address):
            return description_from_wire(await self._stub.Describe(engine_pb2.DescribeRequest(), timeout=timeout_s))

    async def cancel(self, work_id: str, timeout_s: float = 2.0) -> bool:
        with translated(self.address):
            answer = await self._stub.Cancel(engine_pb2.CancelWork(work_id=work_id), timeout=timeout_s)
        return bool(answer.found)


class PrefillClient(WorkerClient):
    """The scheduler's side of one prefill instance."""

    def _new_stub(self) -> engine_pb2_grpc.PrefillStub:
        return engine_pb2_grpc.PrefillStub(self._channel)

    async def run(self, work: Work, *, keep_for_decode: bool) -> AsyncGenerator[PrefillEvent, None]:
        """Leaving the iteration early cancels the work and frees its lease. `failed` arrives as a raised error."""
        wire = engine_pb2.PrefillRequest(work=work_to_wire(work, self._clock.now_s()), keep_for_decode=keep_for_decode)
        call = self._stub.Run(wire, metadata=outgoing())
        try:
            with translated(self.address):
                async for event in call:
                    plain = prefill_event_from_wire(event)
                    if isinstance(plain, Exception):
                        raise plain
                    yield plain
        finally:
            call.cancel()


class DecodeClient(WorkerClient):
    """The scheduler's side of one decode instance."""

    def _new_stub(self) -> engine_pb2_grpc.DecodeStub:
        return engine_pb2_grpc.DecodeStub(self._channel)

    async def steps(self, scheduler: str) -> AsyncGenerator[StepBatch, None]:
        """All tokens of this scheduler's work. The first batch comes at once: from then on work may be admitted."""
        call = self._stub.Steps(engine_pb2.StepsRequest(scheduler=scheduler))
        try:
            with translated(self.address):
                async for wire in call:
                    yield step_from_wire(wire)
        finally:
            call.cancel()

    async def admit(self, request: DecodeRequest, timeout_s: float) -> int:
        """How many pieces of work are queued before it; a refusal raises."""
        with translated(self.address):
            wire = decode_request_to_wire(request, self._clock.now_s())
            answer = await self._stub.Admit(wire, timeout=timeout_s, metadata=outgoing())
        return int(answer.queued_ahead)
