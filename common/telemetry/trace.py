"""W3C trace context (`traceparent`): by which what all processes say about one request is found.

A client's trace is gone on with, and a request without one gets its own. Nothing is sampled or exported here: the id is
in the log lines of every process that the request meets, and in its explanation.
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

HEADER = "traceparent"

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class Trace:
    """`span_id` is of whoever passes it on."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16
    flags: int = 0

    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


_CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)


def continued(header: str | None) -> Trace:
    """The trace that a caller named, under a span of our own; a new one when it named none that is valid."""
    span_id = secrets.token_hex(8)
    form = _FORM.fullmatch(header) if header is not None else None
    if form is None:
        return Trace(secrets.token_hex(16), span_id)
    version, trace_id, parent_id, flags, rest = form.groups()
    valid = version != "ff" and int(trace_id, 16) and int(parent_id, 16) and (rest is None or version != "00")
    return Trace(trace_id, span_id, int(flags, 16)) if valid else Trace(secrets.token_hex(16), span_id)


def current_trace() -> Trace | None:
    """Of the request that the running task works for."""
    return _CURRENT.get()


def enter_trace(trace: Trace | None) -> None:
    """From now on this task, and every task that it starts, works for this request."""
    _CURRENT.set(trace)


@contextmanager
def tracing(trace: Trace | None) -> Iterator[None]:
    """What runs inside, and the tasks that it starts, work for this request."""
    token = _CURRENT.set(trace)
    try:
        yield
    finally:
        _CURRENT.reset(token)
