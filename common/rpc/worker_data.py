"""What the scheduler and the workers tell each other, as plain data."""

from dataclasses import dataclass

from common.errors import TandemError
from common.request import Compatibility, FinishReason, GeneratedToken, Work


@dataclass(frozen=True, slots=True)
class InstanceDescription:
    instance: str
    role: str  # prefill, decode
    group: str  # EP group
    incarnation: int
    compatibility: Compatibility
    total_blocks: int
    context_tokens: int
    max_running: int
    tokens_per_s: float = 0.0  # prefill: as measured when it started; 0 before that, and of decode


@dataclass(frozen=True, slots=True)
class TransferSource:
    """Where decode reads a work's blocks."""

    instance: str
    address: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class PrefillStarted:
    cached_tokens: int
    queue_s: float
    blocks: int


@dataclass(frozen=True, slots=True)
class PrefillFirstToken:
    token: GeneratedToken
    finish_reason: FinishReason | None
    prefill_s: float


PrefillEvent = PrefillStarted | PrefillFirstToken | TandemError


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    work: Work
    source: TransferSource


@dataclass(frozen=True, slots=True)
class WorkTokens:
    work_id: str
    tokens: tuple[GeneratedToken, ...]
    finish_reason: FinishReason | None = None
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class WorkJoined:
    work_id: str
    queue_s: float
    exposed_transfer_s: float


@dataclass(frozen=True, slots=True)
class WorkPreempted:
    work_id: str


@dataclass(frozen=True, slots=True)
class WorkFailed:
    work_id: str
    error: TandemError


WorkEvent = WorkTokens | WorkJoined | WorkPreempted | WorkFailed


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Everything one decode step has for one scheduler. The first of a stream is empty and tells the incarnation."""

    incarnation: int
    step: int
    events: tuple[WorkEvent, ...] = ()
