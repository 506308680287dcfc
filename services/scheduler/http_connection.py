"""One client's connection, on which what is no HTTP request is refused in JSON like everything else.

It is held for nobody who asks nothing: a request's head has to be whole in time, and idling has an end.
"""

import asyncio
import json
from http import HTTPStatus
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from common.errors import InternalError, Refused
from common.telemetry.logs import get_log
from services.scheduler.connection_limit import ConnectionLimit
from services.scheduler.openai_response import error_object, http_error_object

log = get_log(__name__)

_TOO_LARGE = 431  # of a request line or a header
_TIMEOUT = 408
_HEAD_WITHIN_S = 30.0  # of the connection, or, after an answer, of the head's first byte
_IDLE_WITHIN_S = 75.0  # of an answer; more than the minute for which common proxies keep theirs


class Connection(web.RequestHandler):
    """aiohttp's, but for what it answers where no request has come to a handler of ours, and for how long it waits."""

    def __init__(self, server: web.Server, limit: ConnectionLimit, loop: asyncio.AbstractEventLoop) -> None:
        # Bodies are inflated by us, so that what is wrong with one is said as every other refusal is.
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=_IDLE_WITHIN_S,
            access_log=None,  # type: ignore[arg-type]
            auto_decompress=False,
        )
        self._limit = limit
        self._counted = False
        self._head_late: asyncio.TimerHandle | None = None
        self._head_began = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._counted = self._limit.take()
        if self._counted:
            super().connection_made(transport)
            self._head_late = self._loop.call_later(_HEAD_WITHIN_S, self._end)
            return
        error = Refused(f"this replica holds no more than {self._limit.most} HTTP connections")
        cast(asyncio.Transport, transport).write(_whole_answer(error.http_status, error_object(error)))
        cast(asyncio.Transport, transport).close()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._counted:
            self._counted = False
            self._limit.give_back()
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        requests = self._request_count
        super().data_received(data)
        if self._request_count > requests:
            self._stop_waiting()
        elif self._waiter is not None and not self._waiter.done():  # else a body comes, or what follows it
            self._head_began = True
            if self._head_late is None:  # an idle connection's first byte
                self.keep_alive(True)  # ends the wait for it
                self._head_late = self._loop.call_later(_HEAD_WITHIN_S, self._end)

    def _stop_waiting(self) -> None:
        self._head_began = False
        if self._head_late is not None:
            self._head_late.cancel()
            self._head_late = None

    def _end(self) -> None:
        if self._head_began and self.transport is not None:
            document = http_error_object(f"the request's head was not whole within {_HEAD_WITHIN_S:g} s", _TIMEOUT)
            self.transport.write(_whole_answer(_TIMEOUT, document))
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The parser's word about what came, with what was wrong in it. The connection ends with the answer.

        Raises:
            ConnectionError: the client left, or an answer has begun and breaks off.
        """
        if isinstance(exc, ConnectionError):
            raise exc
        if isinstance(exc, HttpProcessingError):
            status = _TOO_LARGE if isinstance(exc, LineTooLong) else status
            log.info("what came is no HTTP request", peer=request.remote, why=type(exc).__name__)  # it may hold a key
            document = http_error_object(_in_one_line(message or exc.message), status)
        else:
            log.error("request broke", peer=request.remote, error=exc)
            document = error_object(InternalError("the request broke"))
        if request.writer.output_size:
            raise ConnectionError("an answer has begun")
        answer = web.json_response(document, status=status)
        answer.force_close()
        return answer


def _whole_answer(status: int, document: dict[str, Any]) -> bytes:
    """The last of a connection on which no request is, so that aiohttp has nothing to answer."""
    body = json.dumps(document).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _in_one_line(message: str) -> str:
    """Without the mark that the parser puts under the character that it stumbled over."""
    return " ".join(line.strip() for line in message.splitlines() if line.strip(" ^")).rstrip(".")
