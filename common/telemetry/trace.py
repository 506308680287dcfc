"""W3C trace context (`traceparent`, `tracestate`): by which what all processes say about one request is found.

A client's trace is gone on with, and a request without one gets its own. Nothing is sampled or exported here: the id is
in the log lines of every process that the request meets, and in its explanation. What tracing systems keep in the state
is none of our business and goes along as it came.
"""

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

PARENT, STATE = "traceparent", "tracestate"

_PARENT_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER_FORM = re.compile(r"([a-z0-9][a-z0-9_\-*/@]{0,255})=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_MEMBERS = 32
_STATE_CHARACTERS = 512  # at least so much must go along; metadata have a bound
_LONG_MEMBER = 128  # these go first


@dataclass(frozen=True, slots=True)
class Trace:
    """`span_id` is of whoever passes it on."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16
    flags: int = 0
    state: str = ""  # of tracing systems, as a header has it

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Names and values, by which a call passes it on."""
        parent = f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"
        return ((PARENT, parent), (STATE, self.state)) if self.state else ((PARENT, parent),)


_CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)


def named_trace(parent: str | None, states: Sequence[str]) -> Trace | None:
    """The trace that a caller named; None when it named none that is valid.

    Args:
        parent: the value of `traceparent`.
        states: of every `tracestate`, in their order.
    """
    form = _PARENT_FORM.fullmatch(parent) if parent is not None else None
    if form is None:
        return None
    version, trace_id, parent_id, flags, rest = form.groups()
    if version == "ff" or not int(trace_id, 16) or not int(parent_id, 16) or (rest is not None and version == "00"):
        return None
    return Trace(trace_id, parent_id, int(flags, 16), _state(states))


def _state(states: Sequence[str]) -> str:
    """All members, in order, without the spaces between them; nothing if one is none, as the standard wants it.

    What is too long loses long members, then its last ones.
    """
    members = [member for member in (one.strip(" \t") for one in ",".join(states).split(",")) if member]
    forms = [_MEMBER_FORM.fullmatch(member) for member in members]
    keys = {form.group(1) for form in forms if form is not None}
    if len(keys) < len(members) or len(members) > _MEMBERS:
        return ""
    if len(",".join(members)) > _STATE_CHARACTERS:
        members = [member for member in members if len(member) <= _LONG_MEMBER]
    while len(",".join(members)) > _STATE_CHARACTERS:
        members.pop()
    return ",".join(members)


def continued(caller: Trace | None) -> Trace:
    """The caller's trace, under a span of our own; a new one when there is none."""
    span_id = secrets.token_hex(8)
    return Trace(secrets.token_hex(16), span_id) if caller is None else replace(caller, span_id=span_id)


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
