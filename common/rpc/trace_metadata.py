"""The trace of a request on its way through gRPC metadata."""

import grpc

from common.telemetry.trace import PARENT, STATE, Trace, continued, current_trace, enter_trace, named_trace


def outgoing() -> tuple[tuple[str, str], ...]:
    """For a call on behalf of the request that the running task works for."""
    trace = current_trace()
    return () if trace is None else trace.headers()


def callers_trace(context: grpc.aio.ServicerContext) -> Trace | None:
    """The trace that the caller named, if it is one."""
    named: dict[str, list[str]] = {PARENT: [], STATE: []}
    for key, value in context.invocation_metadata() or ():
        if key in named and isinstance(value, str):
            named[key].append(value)
    return named_trace(named[PARENT][0], named[STATE]) if named[PARENT] else None


def enter_callers_trace(context: grpc.aio.ServicerContext) -> None:
    """This call, which has a task of its own, works for the caller's request."""
    caller = callers_trace(context)
    enter_trace(None if caller is None else continued(caller))
