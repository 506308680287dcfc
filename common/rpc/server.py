"""A gRPC server as every service of ours runs it: keepalive, message size, health, reflection.

Health has two names. `liveness` says that the process makes progress; `readiness` (also the empty name, which load
balancers ask) that new requests are welcome. Draining clears readiness and leaves liveness.
"""

from collections.abc import Sequence
from enum import StrEnum

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from common.errors import ConfigError
from common.rpc.channel import KEEPALIVE_TIME_MS, KEEPALIVE_TIMEOUT_MS, MAX_MESSAGE_BYTES, Options


class Probe(StrEnum):
    LIVENESS = "liveness"
    READINESS = "readiness"


def server_options() -> Options:
    return (
        # A client may ping as often as it likes, long before the first token too: without these three it is answered
        # GOAWAY too_many_pings in the middle of a prefill.
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.so_reuseport", 0),  # a port that is taken is an error, never shared
    )


class Health:
    """The answers of grpc.health.v1 for this process. Starts live and not ready."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()
        self._answers: dict[Probe, bool] = {}

    async def start(self) -> None:
        await self.set(Probe.LIVENESS, serving=True)
        await self.set(Probe.READINESS, serving=False)

    async def set(self, probe: Probe, *, serving: bool) -> None:
        if self._answers.get(probe) == serving:
            return
        self._answers[probe] = serving
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        await self._servicer.set(probe.value, status)
        if probe is Probe.READINESS:
            await self._servicer.set("", status)

    def serving(self, probe: Probe) -> bool:
        """The present answer; may be asked from any thread."""
        return self._answers.get(probe, False)

    def register(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)


def build_server() -> grpc.aio.Server:
    return grpc.aio.server(options=server_options())


async def start_server(server: grpc.aio.Server, address: str, health_: Health, services: Sequence[str]) -> int:
    """Add health and reflection, bind `address` (port 0 takes a free one) and serve; gives the port.

    Args:
        services: full names (`tandem.v1.Inference`) that reflection lists.

    Raises:
        ConfigError: the address cannot be bound.
    """
    health_.register(server)
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {address}: {error}") from error
    if port == 0:
        raise ConfigError(f"cannot listen on {address}")
    await health_.start()
    await server.start()
    return int(port)
