"""`Inference.Generate` for measuring: requests serialised ahead, messages stamped on arrival and read later.

Nothing is parsed or converted while a stream is open, so the clock is read before any work of ours.
"""

import asyncio
import time
from collections.abc import AsyncIterator

from common.rpc.channel import Options, open_channel
from common.rpc.convert_inference import delta_from_wire, request_to_wire
from common.rpc.errors import translated
from common.rpc.inference_data import Delta, GenerateRequest
from protos import inference_pb2

METHOD = "/tandem.v1.Inference/Generate"

Stamped = tuple[float, bytes]


def serialize_request(request: GenerateRequest) -> bytes:
    return bytes(request_to_wire(request).SerializeToString())


def parse_delta(message: bytes) -> Delta:
    return delta_from_wire(inference_pb2.GenerateDelta.FromString(message))


def _pass(message: bytes) -> bytes:
    return message


def _stamp(message: bytes) -> Stamped:
    return time.monotonic(), message


class TimedInference:
    """One connection to the front door."""

    def __init__(self, address: str, options: Options | None = None) -> None:
        self.address = address
        self._channel = open_channel(address, options)
        self._generate = self._channel.unary_stream(METHOD, request_serializer=_pass, response_deserializer=_stamp)

    async def ready(self, timeout_s: float) -> None:
        """Wait for the connection, so that the first request does not pay for it. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._channel.channel_ready()

    async def generate(self, request: bytes, timeout_s: float | None) -> AsyncIterator[Stamped]:
        """Yields (monotonic seconds, serialised delta). Leaving the iteration early cancels the request."""
        call = self._generate(request, timeout=timeout_s)
        try:
            with translated(self.address):
                async for stamped in call:
                    yield stamped
        finally:
            call.cancel()

    async def close(self) -> None:
        await self._channel.close()
