"""The trace of a request on its way through gRPC metadata."""

import grpc

from common.telemetry.trace import HEADER, continued, current_trace, enter_trace


def outgoing() -> tuple[tuple[str, str], ...]:
    """For a call on behalf of the request that the running task works for."""
    trace = current_trace()
    return () if trace is None else ((HEADER, trace.header()),)


def named_trace(context: grpc.aio.ServicerContext) -> str | None:
    """The `traceparent` that the caller sent, as it is."""
    for key, value in context.invocation_metadata() or ():
        if key == HEADER and isinstance(value, str):
            return value
    return None


def enter_named_trace(context: grpc.aio.ServicerContext) -> None:
    """This call, which has a task of its own, works for the caller's request."""
    header = named_trace(context)
    enter_trace(None if header is None else continued(header))
