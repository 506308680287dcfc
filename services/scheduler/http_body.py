"""The JSON object in a request's body, or a refusal that says what is wrong with it."""

import asyncio
import json
import zlib
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from common.errors import InvalidInput
from common.rpc.channel import MAX_MESSAGE_BYTES

_UNCODED = ("", "identity")
_CODINGS = ("gzip", "x-gzip", "deflate")
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32  # told apart by their headers


async def json_body(http: web.Request) -> Mapping[str, Any]:
    """
    Raises:
        InvalidInput
    """
    try:
        sent = await http.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise _too_large() from error
    coding = http.headers.get("Content-Encoding", "").strip().lower()
    if coding not in _UNCODED:
        sent = await asyncio.to_thread(_inflated, coding, sent)
    try:
        body = json.loads(sent.decode(http.charset or "utf-8"))
    except (ValueError, RecursionError) as error:  # also numbers of too many digits and objects nested too deep
        raise InvalidInput("body", str(error), "must be JSON") from error
    except LookupError as error:
        raise InvalidInput("Content-Type", http.headers.get("Content-Type", ""), "a known charset") from error
    if not isinstance(body, dict):
        raise InvalidInput("body", type(body).__name__, "must be an object")
    return body


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
