"""The one translation between `TandemError` and what travels: a gRPC status with google.rpc details, or a `Failure`.

Both carry the same three facts (reason, message, details), so an error is rebuilt on the other side as the class it
was. `REBUILD` is total over the tree: a test walks the subclasses.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from common.errors import (
    Cancelled,
    CheckpointError,
    ComeBack,
    ConfigError,
    DeadlineExceeded,
    DependencyUnavailable,
    Draining,
    DuplicateRequest,
    Incompatible,
    InternalError,
    Interrupted,
    InvalidInput,
    LeaseLost,
    NoInstance,
    Overloaded,
    PeerDisconnected,
    Refused,
    TagMismatch,
    TandemError,
    TransferError,
    TransferTimeout,
    UnknownModel,
    WorkerLost,
)
from protos import types_pb2

DOMAIN = "tandem"
DETAILS_KEY = "grpc-status-details-bin"

Rebuild = Callable[[str, Mapping[str, str]], TandemError]


def _from_message(kind: type[TandemError]) -> Rebuild:
    return lambda message, _details: kind(message)


def _from_field(kind: type[InvalidInput]) -> Rebuild:
    return lambda message, d: kind(d.get("field", ""), d.get("value", ""), d.get("limit", message))


def _incompatible(message: str, d: Mapping[str, str]) -> TandemError:
    return Incompatible(d.get("field", message), d.get("ours", ""), d.get("theirs", ""))


def _come_back(kind: type[ComeBack]) -> Rebuild:
    return lambda message, d: kind(d.get("what", message), float(d.get("retry_after_s", "1")))


REBUILD: dict[type[TandemError], Rebuild] = {
    TandemError: _from_message(TandemError),
    InvalidInput: _from_field(InvalidInput),
    UnknownModel: _from_field(UnknownModel),
    DuplicateRequest: _from_field(DuplicateRequest),
    ConfigError: _from_message(ConfigError),
    CheckpointError: _from_message(CheckpointError),
    Incompatible: _incompatible,
    Refused: _from_message(Refused),
    ComeBack: _come_back(ComeBack),
    Overloaded: _come_back(Overloaded),
    NoInstance: _come_back(NoInstance),
    Draining: _from_message(Draining),
    Interrupted: _from_message(Interrupted),
    Cancelled: _from_message(Cancelled),
    DeadlineExceeded: _from_message(DeadlineExceeded),
    WorkerLost: _from_message(WorkerLost),
    TransferError: _from_message(TransferError),
    TransferTimeout: _from_message(TransferTimeout),
    TagMismatch: _from_message(TagMismatch),
    LeaseLost: _from_message(LeaseLost),
    PeerDisconnected: _from_message(PeerDisconnected),
    DependencyUnavailable: _from_message(DependencyUnavailable),
    InternalError: _from_message(InternalError),
}
_BY_REASON: dict[str, Rebuild] = {kind.reason: rebuild for kind, rebuild in REBUILD.items()}

# A status that no process of ours wrote: the transport's own, or a proxy's.
_BARE: dict[grpc.StatusCode, type[TandemError]] = {
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAVAILABLE: DependencyUnavailable,
    grpc.StatusCode.UNIMPLEMENTED: ConfigError,
    grpc.StatusCode.ABORTED: Interrupted,
    grpc.StatusCode.FAILED_PRECONDITION: ConfigError,
    grpc.StatusCode.UNAUTHENTICATED: ConfigError,
    grpc.StatusCode.PERMISSION_DENIED: ConfigError,
}
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def to_status(error: TandemError) -> status_pb2.Status:
    """google.rpc.Status with ErrorInfo always, BadRequest for a named field, RetryInfo where a retry has a time."""
    status = status_pb2.Status(code=int(error.grpc_code), message=str(error))
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.details())
    _pack(status.details.add(), info)
    if isinstance(error, InvalidInput):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=f"{error.value}: {error.limit}", reason=error.reason
        )
        _pack(status.details.add(), error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, ComeBack):
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        _pack(status.details.add(), error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def from_status(status: status_pb2.Status) -> TandemError | None:
    """The error that `to_status` took, or None when the status has no ErrorInfo of ours."""
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
            if info.domain == DOMAIN:
                return _rebuild(info.reason, status.message, dict(info.metadata))
    return None


def from_rpc_error(error: grpc.RpcError, peer: str) -> TandemError:
    """The typed error that a call to `peer` ended with; a transport failure names the peer."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            status = status_pb2.Status()
            status.ParseFromString(value)
            ours = from_status(status)
            if ours is not None:
                return ours
    code, message = error.code(), f"{peer}: {error.details()}"
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OUT_OF_RANGE):
        return InvalidInput("message", peer, str(error.details()))  # e.g. larger than a message may be
    return _BARE.get(code, InternalError)(message)


@contextmanager
def translated(peer: str) -> Iterator[None]:
    """What a call to `peer` inside ends with is raised as the error that the peer meant."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, peer) from error


async def abort(context: grpc.aio.ServicerContext, error: TandemError) -> NoReturn:
    """End a call with the error's status. Never returns: gRPC raises inside."""
    status = to_status(error)
    trailing = ((DETAILS_KEY, status.SerializeToString()),)
    await context.abort(_CODES[status.code], status.message, trailing)
    raise InternalError("abort returned")


def to_failure(error: TandemError) -> types_pb2.Failure:
    return types_pb2.Failure(
        reason=error.reason, grpc_code=int(error.grpc_code), message=str(error), details=error.details()
    )


def from_failure(failure: types_pb2.Failure) -> TandemError:
    return _rebuild(failure.reason, failure.message, dict(failure.details))


def _rebuild(reason: str, message: str, details: Mapping[str, str]) -> TandemError:
    rebuild = _BY_REASON.get(reason)
    if rebuild is None:  # a newer peer's reason: keep what it said
        return TandemError(f"{reason}: {message}")
    return rebuild(message, details)


def _pack(slot: any_pb2.Any, message: Message) -> None:
    slot.Pack(message)
