"""Structured logs on stderr: one line an event, an event's name and its facts.

    12:00:01.250 info  decode-0-0 joined work_id=a1 blocks=3

or one JSON object a line, which also carries the trace id of the request that it is about. `log = get_log(__name__)`,
then ``log.info("joined", work_id=work_id, blocks=3)``.
"""

import json
import logging
import sys
import time
from typing import Literal

from common.telemetry.trace import current_trace

LogFormat = Literal["text", "json"]
_FACTS = "tandem_facts"


class Log:
    """Writes events with facts through the standard library's logger of the same name."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **facts: object) -> None:
        self._logger.debug(event, extra={_FACTS: facts})

    def info(self, event: str, **facts: object) -> None:
        self._logger.info(event, extra={_FACTS: facts})

    def warning(self, event: str, **facts: object) -> None:
        self._logger.warning(event, extra={_FACTS: facts})

    def error(self, event: str, *, error: BaseException | None = None, **facts: object) -> None:
        """`error`'s traceback goes along."""
        self._logger.error(event, extra={_FACTS: facts}, exc_info=error)


def get_log(name: str) -> Log:
    return Log(logging.getLogger(name))


def configure_logs(process: str, *, form: LogFormat = "text", level: str = "INFO") -> None:
    """Send every log of this process to stderr under the name `process`. Called once, by each main."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(process) if form == "json" else _Text(process))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)


class _Text(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        facts = " ".join(f"{name}={_plain(value)}" for name, value in _facts(record).items())
        line = f"{clock}.{int(record.msecs):03d} {record.levelname.lower():7} {self._process} {record.getMessage()}"
        return "\n".join(part for part in (f"{line} {facts}".rstrip(), self._trace(record)) if part)

    def _trace(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info and record.exc_info[1] else ""


class _Json(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        trace = current_trace()  # of the task that logs: records are written where they are made
        line: dict[str, object] = {
            "time_s": round(record.created, 6),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "event": record.getMessage(),
            **({} if trace is None else {"trace_id": trace.trace_id}),
            **_facts(record),
        }
        if record.exc_info and record.exc_info[1]:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def _facts(record: logging.LogRecord) -> dict[str, object]:
    facts = getattr(record, _FACTS, None)
    return facts if isinstance(facts, dict) else {}


def _plain(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(c.isspace() or c == '"' for c in text) else text
