"""One client's connection, on which what is no HTTP request is refused in JSON like everything else."""

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from common.errors import InternalError
from common.telemetry.logs import get_log
from services.scheduler.openai_response import error_object, http_error_object

log = get_log(__name__)

_TOO_LARGE = 431  # of a request line or a header


class Connection(web.RequestHandler):
    """aiohttp's, but for what it answers where no request has come to a handler of ours."""

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


def _in_one_line(message: str) -> str:
    """Without the mark that the parser puts under the character that it stumbled over."""
    return " ".join(line.strip() for line in message.splitlines() if line.strip(" ^")).rstrip(".")
