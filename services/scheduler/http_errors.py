"""Every error that the HTTP edge answers is OpenAI's object in JSON, whoever raised it."""

import math
import secrets

from aiohttp import web
from aiohttp.typedefs import Handler

from common.errors import ComeBack, InternalError, TandemError
from common.telemetry.logs import get_log
from services.scheduler.openai_response import error_object, http_error_object

REQUEST_ID = "X-Request-Id"

log = get_log(__name__)


def refusal(error: TandemError) -> web.Response:
    headers = {}
    if isinstance(error, ComeBack):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return web.json_response(error_object(error), status=error.http_status, headers=headers)


@web.middleware
async def id_comes_back(request: web.Request, handler: Handler) -> web.StreamResponse:
    """With every answer to a request that was named; what streams has its name already."""
    answer = await handler(request)
    if not answer.prepared:
        _add_id(request, answer)
    return answer


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What aiohttp refuses and what breaks in us; a broken request's id is in the answer and in the log."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _of_aiohttp(request, error)
    except ConnectionError:  # the client left
        raise
    except Exception as error:  # the edge of the process: said to the client and logged with its place
        if request.writer.output_size:  # an answer has begun, and breaks off
            raise
        request_id = _named(request)
        log.error("request broke", request=request_id, error=error)
        broken = web.json_response(error_object(InternalError(f"request {request_id} broke")), status=500)
        broken.headers[REQUEST_ID] = request_id
        return broken


async def expected(request: web.Request) -> web.StreamResponse | None:
    """Answer `Expect`, of which HTTP knows one value."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        failed = _of_aiohttp(request, web.HTTPExpectationFailed())
        _add_id(request, failed)  # no middleware sees it
        return failed
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer has not begun
    return None


def _of_aiohttp(request: web.Request, error: web.HTTPException) -> web.Response:
    allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    document = http_error_object(f"{request.method} {request.path}", error.status)
    return web.json_response(document, status=error.status, headers=allowed)


def _add_id(request: web.Request, answer: web.StreamResponse) -> None:
    given = request.headers.get(REQUEST_ID, "")
    if given and given.isprintable():
        answer.headers.setdefault(REQUEST_ID, given)


def _named(request: web.Request) -> str:
    given = request.headers.get(REQUEST_ID, "")
    return given if given and given.isprintable() else f"req-{secrets.token_hex(12)}"
