"""OpenAI's HTTP calls, thin over the core: ``/v1/chat/completions``, ``/v1/completions``, ``/v1/models``.

A client that disconnects cancels its request. Errors before the first token have an HTTP status; later ones come as
an error object in the stream, which then ends without ``[DONE]``.
"""

import json
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from common.config.address import host_port
from common.errors import ConfigError, InvalidInput, Overloaded, TandemError
from common.rpc.channel import MAX_MESSAGE_BYTES
from common.rpc.inference_data import Delta, Usage
from common.telemetry.listener import listen
from common.telemetry.trace import HEADER
from services.scheduler.core import Core
from services.scheduler.openai_request import OpenAiRequest, chat_request, completion_request, in_body
from services.scheduler.openai_response import (
    Heading,
    Whole,
    chunk_object,
    error_object,
    no_route_object,
    sse,
    usage_chunk,
    whole_object,
)

_REQUEST_ID = "X-Request-Id"


class HttpEdge:
    """The HTTP server of one replica.

    Args:
        spell: a token's bytes, for log-probabilities.
        ready: whether requests are welcome, for ``/health``.
    """

    def __init__(self, core: Core, spell: Callable[[int], bytes], ready: Callable[[], bool]) -> None:
        self._core = core
        self._spell = spell
        self._ready = ready
        self._started_s = int(time.time())
        application = web.Application(client_max_size=MAX_MESSAGE_BYTES, middlewares=[_no_route_as_json])
        application.router.add_post("/v1/chat/completions", self._chat)
        application.router.add_post("/v1/completions", self._completions)
        application.router.add_get("/v1/models", self._models)
        application.router.add_get("/health", self._health)
        self._runner = web.AppRunner(application, handler_cancellation=True, access_log=None)

    async def start(self, host: str, port: int) -> int:
        """Listen; port 0 takes a free one. Gives the port.

        Raises:
            ConfigError: the address cannot be bound.
        """
        await self._runner.setup()
        try:
            await web.SockSite(self._runner, listen(host, port)).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(f"cannot listen on http://{host_port(host, port)}: {error.strerror}") from error
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, chat_request, chat=True)

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, completion_request, chat=False)

    async def _models(self, _http: web.Request) -> web.Response:
        info = self._core.model("")
        entry = {"id": info.model, "object": "model", "created": self._started_s, "owned_by": "tandem"}
        return web.json_response({"object": "list", "data": [entry | {"max_model_len": info.context_tokens}]})

    async def _health(self, _http: web.Request) -> web.Response:
        return web.Response(status=200 if self._ready() else 503)

    async def _answer(
        self, http: web.Request, read: Callable[[Mapping[str, Any]], OpenAiRequest], *, chat: bool
    ) -> web.StreamResponse:
        understood: Mapping[str, Any] = {}  # the body, once the rest is up to the front door
        try:
            body = await _body(http)
            asked, understood = read(body), body
            request = replace(asked.request, request_id=http.headers.get(_REQUEST_ID, ""))
            heading = Heading(chat, self._core.model("").model, int(time.time()), self._spell)
            async with aclosing(self._core.generate(request, traceparent=http.headers.get(HEADER))) as deltas:
                first = await anext(deltas)
                if asked.stream:
                    return await self._stream(http, asked, heading, first, deltas)
                whole = Whole()
                whole.add(first)
                async for delta in deltas:
                    whole.add(delta)
            document = whole_object(heading, whole, with_logprobs=request.logprobs is not None)
            return web.json_response(document, headers={_REQUEST_ID: first.request_id})
        except InvalidInput as error:
            return _refusal(in_body(error, understood))
        except TandemError as error:
            return _refusal(error)

    async def _stream(
        self,
        http: web.Request,
        asked: OpenAiRequest,
        heading: Heading,
        first: Delta,
        deltas: AsyncGenerator[Delta, None],
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", _REQUEST_ID: first.request_id}
        response = web.StreamResponse(headers=headers)
        await response.prepare(http)
        seen: set[int] = set()
        usage = Usage()

        async def send(delta: Delta) -> None:
            nonlocal usage
            usage = delta.usage or usage
            with_logprobs = asked.request.logprobs is not None
            chunk = chunk_object(heading, delta, first=delta.choice not in seen, with_logprobs=with_logprobs)
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


@web.middleware
async def _no_route_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A path or method that nobody answers gets an error like every other."""
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        document = no_route_object(request.method, request.path, error.status)
        return web.json_response(document, status=error.status, headers=allowed)


async def _body(http: web.Request) -> Mapping[str, Any]:
    try:
        body = json.loads(await http.text())
    except web.HTTPRequestEntityTooLarge as error:
        raise InvalidInput("body", "too large", f"at most {MAX_MESSAGE_BYTES} bytes") from error
    except (ValueError, RecursionError) as error:  # also numbers of too many digits and objects nested too deep
        raise InvalidInput("body", str(error), "must be JSON") from error
    except LookupError as error:
        raise InvalidInput("Content-Type", http.headers.get("Content-Type", ""), "a known charset") from error
    if not isinstance(body, dict):
        raise InvalidInput("body", type(body).__name__, "must be an object")
    return body


def _refusal(error: TandemError) -> web.Response:
    headers = {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return web.json_response(error_object(error), status=error.http_status, headers=headers)
