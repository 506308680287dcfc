"""Every error of the project, and its one translation to gRPC and HTTP.

    TandemError
    ├── InvalidInput            the caller's fault: names field, value and limit
    │   ├── UnknownModel
    │   └── DuplicateRequest
    ├── ConfigError             a configuration or a checkpoint that cannot be served
    │   ├── CheckpointError
    │   └── Incompatible        two sides differ in a named field
    ├── Refused                 nothing is wrong with the request, but it is not taken now
    │   ├── ComeBack            carries when to retry
    │   │   ├── Overloaded      capacity is spent
    │   │   └── NoInstance      an outage: none of a role is ready
    │   └── Draining
    ├── Interrupted             work was begun and ended early
    │   ├── Cancelled
    │   ├── DeadlineExceeded
    │   └── WorkerLost          the peer died; may be resumed elsewhere
    ├── TransferError           latent did not arrive, or not intact
    │   ├── TransferTimeout
    │   ├── TagMismatch
    │   ├── LeaseLost
    │   └── PeerDisconnected
    ├── DependencyUnavailable   Redis, NATS or another service did not answer within its bound
    └── InternalError           an invariant of ours broke

Foreign exceptions (grpc, redis, nats, nixl, torch) are translated where they enter, never deeper.
"""

from enum import IntEnum
from typing import ClassVar


class GrpcCode(IntEnum):
    """The gRPC status numbers in use, spelled here so that this module needs no gRPC."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15


class TandemError(Exception):
    """Root of the tree. `reason` is a stable upper-case identifier that clients may match on."""

    reason: ClassVar[str] = "TANDEM_ERROR"
    grpc_code: ClassVar[GrpcCode] = GrpcCode.INTERNAL
    http_status: ClassVar[int] = 500

    def details(self) -> dict[str, str]:
        """Machine-readable facts that travel beside the message (gRPC ErrorInfo metadata, HTTP error body)."""
        return {}


class InvalidInput(TandemError):
    """A request that can never succeed as it is.

    Args:
        field: dotted path of the offending field, e.g. ``sampling.top_p``.
        value: what was given.
        limit: what is allowed, in words or numbers.
    """

    reason = "INVALID_INPUT"
    grpc_code = GrpcCode.INVALID_ARGUMENT
    http_status = 400

    def __init__(self, field: str, value: object, limit: str) -> None:
        self.field, self.value, self.limit = field, _short(value), limit
        super().__init__(f"{field} = {self.value}: {limit}")

    def details(self) -> dict[str, str]:
        return {"field": self.field, "value": self.value, "limit": self.limit}


class UnknownModel(InvalidInput):
    """The named model is not served here."""

    reason = "UNKNOWN_MODEL"
    grpc_code = GrpcCode.NOT_FOUND
    http_status = 404


class DuplicateRequest(InvalidInput):
    """A live request already has this id."""

    reason = "DUPLICATE_REQUEST"
    grpc_code = GrpcCode.ALREADY_EXISTS
    http_status = 409


class ConfigError(TandemError):
    """A configuration value that cannot work; the process that meets it ends with a code that is not zero."""

    reason = "CONFIG_ERROR"
    grpc_code = GrpcCode.FAILED_PRECONDITION


class CheckpointError(ConfigError):
    """A model directory that is incomplete, truncated or of the wrong shape; names file and tensor."""

    reason = "CHECKPOINT_ERROR"


class Incompatible(ConfigError):
    """Two sides of a handshake differ.

    Args:
        field: the differing field, e.g. ``block_tokens``.
        ours: this side's value.
        theirs: the other side's value.
    """

    reason = "INCOMPATIBLE"

    def __init__(self, field: str, ours: object, theirs: object) -> None:
        self.field, self.ours, self.theirs = field, _short(ours), _short(theirs)
        super().__init__(f"{field} differs: ours {self.ours}, theirs {self.theirs}")

    def details(self) -> dict[str, str]:
        return {"field": self.field, "ours": self.ours, "theirs": self.theirs}


class Refused(TandemError):
    """The request is sound but is not taken now; nothing was begun."""

    reason = "REFUSED"
    grpc_code = GrpcCode.UNAVAILABLE
    http_status = 503


class ComeBack(Refused):
    """A refusal that knows when a retry has a chance: in `retry_after_s`."""

    reason = "COME_BACK"

    def __init__(self, what: str, retry_after_s: float) -> None:
        self.what, self.retry_after_s = what, retry_after_s
        super().__init__(f"{what}; retry in {retry_after_s:.1f} s")

    def details(self) -> dict[str, str]:
        return {"what": self.what, "retry_after_s": f"{self.retry_after_s:.3f}"}


class Overloaded(ComeBack):
    """Capacity is spent."""

    reason = "OVERLOADED"
    grpc_code = GrpcCode.RESOURCE_EXHAUSTED
    http_status = 429


class NoInstance(ComeBack):
    """Nobody of a role that the request needs is ready: an outage, not load."""

    reason = "NO_INSTANCE"


class Draining(Refused):
    """This process is shutting down and takes no new work."""

    reason = "DRAINING"


class Interrupted(TandemError):
    """Work that had begun ended before its natural end."""

    reason = "INTERRUPTED"
    grpc_code = GrpcCode.ABORTED
    http_status = 503


class Cancelled(Interrupted):
    """The client left, or asked for the end."""

    reason = "CANCELLED"
    grpc_code = GrpcCode.CANCELLED
    http_status = 499


class DeadlineExceeded(Interrupted):
    """The request's own deadline passed."""

    reason = "DEADLINE_EXCEEDED"
    grpc_code = GrpcCode.DEADLINE_EXCEEDED
    http_status = 504


class WorkerLost(Interrupted):
    """A worker died or was fenced while it held the request."""

    reason = "WORKER_LOST"
    grpc_code = GrpcCode.UNAVAILABLE


class TransferError(TandemError):
    """Latent did not arrive intact. The request may be tried from another source or recomputed."""

    reason = "TRANSFER_ERROR"
    grpc_code = GrpcCode.UNAVAILABLE
    http_status = 503


class TransferTimeout(TransferError):
    """Our own deadline for a transfer passed; its landing memory stays reserved until the handle ends."""

    reason = "TRANSFER_TIMEOUT"


class TagMismatch(TransferError):
    """A block's content is not what its tag says: reused, torn or corrupted memory."""

    reason = "TAG_MISMATCH"
    grpc_code = GrpcCode.DATA_LOSS


class LeaseLost(TransferError):
    """The source no longer holds the blocks for this reader (expired, released, or another incarnation)."""

    reason = "LEASE_LOST"


class PeerDisconnected(TransferError):
    """The source's process is gone or its connection broke; every read from it has ended or is about to."""

    reason = "PEER_DISCONNECTED"


class DependencyUnavailable(TandemError):
    """Redis, NATS or another service did not answer within its bound; says which one and for how long."""

    reason = "DEPENDENCY_UNAVAILABLE"
    grpc_code = GrpcCode.UNAVAILABLE
    http_status = 503


class InternalError(TandemError):
    """An invariant broke. Never expected; always counted and logged with its evidence."""

    reason = "INTERNAL"


def _short(value: object, limit: int = 120) -> str:
    text = str(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
