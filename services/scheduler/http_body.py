"""The JSON object in a request's body, or a refusal that says what is wrong with it."""

import asyncio
import json
import time
import zlib
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from common.errors import InvalidInput
from common.rpc.channel import MAX_MESSAGE_BYTES

_MORE_WITHIN_S = 30.0
_WHOLE_WITHIN_S = 300.0
_UNCODED = ("", "identity")
_CODINGS = ("gzip", "x-gzip", "deflate")
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32  # told apart by their headers


async def json_body(http: web.Request) -> Mapping[str, Any]:
    """
    Raises:
        InvalidInput
    """
    sent = await _sent(http)
    coding = http.headers.get("Content-Encoding", "").strip().lower()
    if coding not in _UNCODED:
        sent = await asyncio.to_thread(_inflated, coding, sent)
    try:
        body = json.loads(sent.decode(http.charset or "utf-8"))
    except (ValueError, RecursionError) as error:  # also numbers of too many digits and objects nested too deep
        raise _no_json(http, error) from error
    except LookupError as error:
        raise InvalidInput("Content-Type", http.headers.get("Content-Type", ""), "a known charset") from error
    if not isinstance(body, dict):
        raise InvalidInput("body", type(body).__name__, "must be an object")
    return body


async def _sent(http: web.Request) -> bytes:
    """All of it, as it came. The parser leaves a body open that it finds broken on the way, so waiting has a bound.

    So has the whole: a byte now and then would hold a connection for ever.
    """
    if (http.content_length or 0) > MAX_MESSAGE_BYTES:
        raise _too_large()
    sent = bytearray()
    ends_s = time.monotonic() + _WHOLE_WITHIN_S
    left_s = _WHOLE_WITHIN_S
    try:
        while True:
            left_s = ends_s - time.monotonic()
            async with asyncio.timeout(min(_MORE_WITHIN_S, left_s)):
                more = await http.content.readany()
            if not more:
                return bytes(sent)
            sent += more
            if len(sent) > MAX_MESSAGE_BYTES:
                raise _too_large()
    except TimeoutError as error:
        paused = left_s > _MORE_WITHIN_S
        came = f"{len(sent)} bytes and then nothing" if paused else f"{len(sent)} bytes and no end"
        bounds = f"must not pause for {_MORE_WITHIN_S:g} s nor take {_WHOLE_WITHIN_S:g} s in all"
        raise InvalidInput("body", came, bounds) from error
    except web.RequestPayloadError as error:
        raise InvalidInput("body", str(error), "must be what Content-Length or Transfer-Encoding say") from error


def _no_json(http: web.Request, error: Exception) -> InvalidInput:
    """Whoever declares another kind of body, such as a form, has most likely sent that."""
    declared = http.headers.get("Content-Type", "")
    if declared and not http.content_type.endswith("json"):
        return InvalidInput("Content-Type", declared, f"must be application/json, and the body JSON: {error}")
    return InvalidInput("body", str(error), "must be JSON")


def _inflated(coding: str, sent: bytes) -> bytes:
    """The body as it was before the client compressed it, never more than a message may be."""
    if coding not in _CODINGS:
        raise InvalidInput("Content-Encoding", coding, "gzip, deflate or none")
    inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        body = inflater.decompress(sent, MAX_MESSAGE_BYTES + 1)
    except zlib.error as error:
        raise InvalidInput("body", str(error), f"must be {coding}, as Content-Encoding says") from error
    if len(body) > MAX_MESSAGE_BYTES:
        raise _too_large()
    if not inflater.eof:
        raise InvalidInput("body", "cut short", f"must be whole {coding}, as Content-Encoding says")
    return body


def _too_large() -> InvalidInput:
    return InvalidInput("body", "too large", f"at most {MAX_MESSAGE_BYTES} bytes")
