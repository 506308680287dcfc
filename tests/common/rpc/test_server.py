"""Keepalive, health, reflection and message size of a real server on a free port."""

import asyncio

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from common.errors import ConfigError, DependencyUnavailable, InvalidInput, Overloaded
from common.rpc.channel import client_options, open_channel
from common.rpc.clients import InferenceClient
from common.rpc.errors import abort
from common.rpc.inference_data import GenerateRequest
from common.rpc.server import Health, Probe, build_server, start_server
from protos import inference_pb2, inference_pb2_grpc


class Idle(inference_pb2_grpc.InferenceServicer):
    """Answers after `idle_s`, as a long prefill does."""

    def __init__(self, idle_s: float = 0.0) -> None:
        self.idle_s = idle_s

    async def Generate(self, request, context):
        await asyncio.sleep(self.idle_s)
        if request.request_id == "shed":
            await abort(context, Overloaded("the queue", 1.5))
        yield inference_pb2.GenerateDelta(request_id=request.request_id, text=str(len(request.text)))


async def serve(servicer):
    server, health = build_server(), Health()
    inference_pb2_grpc.add_InferenceServicer_to_server(servicer, server)
    port = await start_server(server, "127.0.0.1:0", health, ["tandem.v1.Inference"])
    return server, health, f"127.0.0.1:{port}"


async def test_a_client_that_pings_through_a_long_silence_is_not_sent_away():
    server, _, address = await serve(Idle(idle_s=5.5))
    # A default server answers GOAWAY too_many_pings to this after four seconds.
    pinging = client_options(keepalive_time_ms=300)
    async with InferenceClient(address, options=pinging) as client:
        deltas = [delta async for delta in client.generate(GenerateRequest(text="x"))]
        assert [delta.text for delta in deltas] == ["1"]
    await server.stop(None)


async def test_liveness_and_readiness_are_apart():
    server, health, address = await serve(Idle())
    async with InferenceClient(address) as client:
        assert await client.serving(Probe.LIVENESS, 1.0)
        assert not await client.serving(Probe.READINESS, 1.0)
        await health.set(Probe.READINESS, serving=True)
        assert await client.serving(Probe.READINESS, 1.0)
    await server.stop(None)
    async with InferenceClient(address) as client:
        with pytest.raises(DependencyUnavailable, match=address):
            await client.serving(Probe.LIVENESS, 1.0)


async def test_watch_tells_changes():
    server, health, address = await serve(Idle())
    async with open_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await health.set(Probe.READINESS, serving=True)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
    await server.stop(None)


async def test_reflection_describes_the_service():
    server, _, address = await serve(Idle())

    def describe():
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            found = database.FindFileContainingSymbol("tandem.v1.Inference")
            assert isinstance(found, descriptor_pb2.FileDescriptorProto)
            return set(database.get_services())

    services = await asyncio.to_thread(describe)
    assert {"tandem.v1.Inference", "grpc.health.v1.Health"} <= services
    await server.stop(None)


async def test_a_prompt_of_a_whole_context_passes_and_an_absurd_one_is_refused_by_name():
    server, _, address = await serve(Idle())
    async with InferenceClient(address) as client:
        deltas = [d async for d in client.generate(GenerateRequest(text="x" * 10_000_000))]
        assert deltas[0].text == "10000000"
        with pytest.raises(InvalidInput, match="larger"):
            _ = [d async for d in client.generate(GenerateRequest(text="x" * (65 * 1024 * 1024)))]
    await server.stop(None)


async def test_a_typed_refusal_crosses_with_its_details():
    server, _, address = await serve(Idle())
    async with InferenceClient(address) as client:
        with pytest.raises(Overloaded) as caught:
            _ = [d async for d in client.generate(GenerateRequest(text="x", request_id="shed"))]
        assert caught.value.retry_after_s == 1.5
    await server.stop(None)


async def test_a_taken_port_is_a_configuration_error():
    server, _, address = await serve(Idle())
    with pytest.raises(ConfigError, match=address):
        await start_server(build_server(), address, Health(), [])
    await server.stop(None)
