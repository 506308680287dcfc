"""A front door that emits tokens at scripted moments and notes when it did: a real gRPC server in its own thread."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Self

import grpc

from common.errors import TandemError
from common.request import FinishReason, Sampling
from common.rpc.convert_inference import delta_to_wire, model_to_wire, request_from_wire
from common.rpc.errors import abort
from common.rpc.inference_data import Delta, GenerateRequest, ModelInfo, Usage
from protos import inference_pb2, inference_pb2_grpc

MODEL = ModelInfo("fake", "fingerprint", 2000, 4096, 64, 1, Sampling(), has_tokenizer=False)


@dataclass(frozen=True)
class Emission:
    """`tokens` in one message, `after_s` seconds after the request came."""

    after_s: float
    tokens: int


@dataclass(frozen=True)
class Answer:
    """What a request gets: emissions, then usage of `usage_tokens` (all by default), or an error instead of the end."""

    emissions: Sequence[Emission]
    usage_tokens: int | None = None
    error: TandemError | None = None
    usage: bool = True


Script = Callable[[GenerateRequest], Answer]


@dataclass
class FakeInference(inference_pb2_grpc.InferenceServicer):
    """Requests are told apart by their seed, which the load generator draws from the position in the schedule."""

    script: Script
    received: dict[int, tuple[float, GenerateRequest]] = field(default_factory=dict)
    emitted: dict[int, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))

    async def GetModel(self, request, context) -> inference_pb2.ModelInfo:
        return model_to_wire(MODEL)

    async def Generate(self, request, context) -> AsyncIterator[inference_pb2.GenerateDelta]:
        came_s = time.monotonic()
        plain = request_from_wire(request)
        seed = plain.sampling.seed or 0
        self.received[seed] = (came_s, plain)
        answer = self.script(plain)
        total = 0
        for emission in answer.emissions:
            await asyncio.sleep(max(0.0, came_s + emission.after_s - time.monotonic()))
            total += emission.tokens
            self.emitted[seed].append((time.monotonic(), emission.tokens))
            yield delta_to_wire(Delta(f"r{seed}", 0, token_ids=(7,) * emission.tokens))
        if answer.error is not None:
            await abort(context, answer.error)
        prompt_tokens = len(plain.token_ids or ())
        counted = total if answer.usage_tokens is None else answer.usage_tokens
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=counted) if answer.usage else None
        yield delta_to_wire(Delta(f"r{seed}", 0, finish_reason=FinishReason.LENGTH, usage=usage))


class InferenceServer:
    """`with InferenceServer(script) as server:` serves on `server.address` until the end of the block."""

    def __init__(self, script: Script) -> None:
        self.servicer = FakeInference(script)
        self.address = ""
        self._started: Future[str] = Future()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Self:
        self._thread.start()
        self.address = self._started.result(timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=30)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = grpc.aio.server()
        inference_pb2_grpc.add_InferenceServicer_to_server(self.servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._started.set_result(f"127.0.0.1:{port}")
        await self._stop.wait()
        await server.stop(grace=0)
