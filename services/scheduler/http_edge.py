"""OpenAI's HTTP calls, thin over the core: ``/v1/chat/completions``, ``/v1/completions``, ``/v1/models``.

A client that disconnects cancels its request. Errors before the first token have an HTTP status; later ones come as
an error object in the stream, which then ends without ``[DONE]``.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from aiohttp import web
from prometheus_client import Counter

from common.config.address import host_port
from common.errors import ConfigError, InvalidInput, TandemError
from common.rpc.channel import MAX_MESSAGE_BYTES
from common.rpc.inference_data import Delta, Usage
from common.telemetry.listener import listen
from common.telemetry.trace import PARENT, STATE, named_trace
from services.scheduler.connection_limit import ConnectionLimit
from services.scheduler.core import Core
from services.scheduler.http_body import json_body
from services.scheduler.http_connection import Connection
from services.scheduler.http_errors import REQUEST_ID, errors_as_json, expected, id_comes_back, refusal
from services.scheduler.openai_request import OpenAiRequest, chat_request, completion_request, in_body
from services.scheduler.openai_response import (
    Heading,
    Spelling,
    Whole,
    chunk_object,
    error_object,
    model_object,
    sse,
    usage_chunk,
    whole_object,
)

_BACKLOG = 128
_ACCEPTED_AT_ONCE = 16


class HttpEdge:
    """The HTTP server of one replica.

    Args:
        spell: a token's bytes, for log-probabilities.
        ready: whether requests are welcome, for ``/health``.
        refused: counts the connections beyond those that may be open at once.
    """

    def __init__(self, core: Core, spell: Callable[[int], bytes], ready: Callable[[], bool], refused: Counter) -> None:
        self._core = core
        self._spell = spell
        self._ready = ready
        self._limit = ConnectionLimit(refused)
        self._started_s = int(time.time())
        application = web.Application(client_max_size=MAX_MESSAGE_BYTES, middlewares=[id_comes_back, errors_as_json])
        application.router.add_post("/v1/chat/completions", self._chat, expect_handler=expected)
        application.router.add_post("/v1/completions", self._completions, expect_handler=expected)
        application.router.add_get("/v1/models", self._models)
        application.router.add_get("/v1/models/{model:.+}", self._model)  # names may have slashes
        application.router.add_get("/health", self._health)
        self._runner = web.AppRunner(application, handler_cancellation=True)
        self._listening: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; port 0 takes a free one. Gives the port.

        Raises:
            ConfigError: the address cannot be bound.
        """
        await self._runner.setup()
        loop, server = asyncio.get_running_loop(), cast(web.Server, self._runner.server)  # there once it is set up

        def connected() -> Connection:
            return Connection(server, self._limit, loop)

        try:
            sock = listen(host, port)
            # For asyncio a backlog is also how many it accepts before it looks at the first of them, and each is a
            # descriptor on its own way to the limit: a few turns' worth come on top of those that may be open.
            self._listening = await loop.create_server(connected, sock=sock, backlog=_ACCEPTED_AT_ONCE)
            sock.listen(_BACKLOG)
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(f"cannot listen on http://{host_port(host, port)}: {error.strerror}") from error
        return int(self._listening.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, chat_request, chat=True)

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, completion_request, chat=False)

    async def _models(self, _http: web.Request) -> web.Response:
        entry = model_object(self._core.model(""), self._started_s)
        return web.json_response({"object": "list", "data": [entry]})

    async def _model(self, http: web.Request) -> web.Response:
        try:
            return web.json_response(model_object(self._core.model(http.match_info["model"]), self._started_s))
        except TandemError as error:
            return refusal(error)

    async def _health(self, _http: web.Request) -> web.Response:
        return web.Response(status=200 if self._ready() else 503)

    async def _answer(
        self, http: web.Request, read: Callable[[Mapping[str, Any]], OpenAiRequest], *, chat: bool
    ) -> web.StreamResponse:
        understood: Mapping[str, Any] = {}  # the body, once the rest is up to the front door
        try:
            body = await json_body(http)
            asked, understood = read(body), body
            request = replace(asked.request, request_id=http.headers.get(REQUEST_ID, ""))
            heading = Heading(chat, self._core.model("").model, int(time.time()), Spelling(self._spell))
            caller = named_trace(http.headers.get(PARENT), http.headers.getall(STATE, []))
            async with aclosing(self._core.generate(request, caller=caller)) as deltas:
                first = await anext(deltas)
                if asked.stream:
                    return await self._stream(http, asked, heading, first, deltas)
                whole = Whole()
                whole.add(first)
                async for delta in deltas:
                    whole.add(delta)
            document = whole_object(heading, whole, with_logprobs=request.logprobs is not None)
            return web.json_response(document, headers={REQUEST_ID: first.request_id})
        except InvalidInput as error:
            return refusal(in_body(error, understood))
        except TandemError as error:
            return refusal(error)

    async def _stream(
        self,
        http: web.Request,
        asked: OpenAiRequest,
        heading: Heading,
        first: Delta,
        deltas: AsyncGenerator[Delta, None],
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", REQUEST_ID: first.request_id}
        response = web.StreamResponse(headers=headers)
        await response.prepare(http)
        seen: set[int] = set()
        usage = Usage()

        async def send(delta: Delta) -> None:
            nonlocal usage
            usage = delta.usage or usage
            with_logprobs = asked.request.logprobs is not None
            chunk = chunk_object(
                heading,
                delta,
                first=delta.choice not in seen,
                with_logprobs=with_logprobs,
                usage_follows=asked.include_usage,
            )
            seen.add(delta.choice)
            await response.write(sse(chunk))

        try:
            await send(first)
            async for delta in deltas:
                await send(delta)
            if asked.include_usage:
                await response.write(sse(usage_chunk(heading, first.request_id, usage)))
            await response.write(b"data: [DONE]\n\n")
        except TandemError as error:
            await response.write(sse(error_object(error)))
        await response.write_eof()
        return response
