"""What one engine step tells the service around it. Plain data; the services turn it into messages."""

from dataclasses import dataclass

from common.errors import TandemError
from common.request import FinishReason, GeneratedToken, Handoff
from common.request import ReadyBlock as ReadyBlock


@dataclass(frozen=True, slots=True)
class Started:
    """Prefill of the work began: its blocks are allocated and the transfer may be given to a decode instance."""

    work_id: str
    cached_tokens: int
    blocks: int
    queue_s: float


@dataclass(frozen=True, slots=True)
class BlocksReady:
    work_id: str
    blocks: tuple[ReadyBlock, ...]


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Emitted as soon as it is drawn, before drafts exist."""

    work_id: str
    token: GeneratedToken
    finish_reason: FinishReason | None
    prefill_s: float


@dataclass(frozen=True, slots=True)
class HandoffReady:
    """Everything decode needs is known and all blocks have been announced."""

    work_id: str
    handoff: Handoff


@dataclass(frozen=True, slots=True)
class Reserved:
    """Decode took pool blocks for the work; its latent may now be read into them. `blocks` are in sequence order.

    The first `cached_blocks` of them already hold the prompt's prefix, are shared and must not be written.
    """

    work_id: str
    blocks: tuple[int, ...]
    queue_s: float
    cached_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens one step added to one piece of work, in order; never empty."""

    work_id: str
    tokens: tuple[GeneratedToken, ...]
    finish_reason: FinishReason | None
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Preempted:
    """Decode gave the work's blocks up for others' growth; the scheduler resumes it before new work."""

    work_id: str


@dataclass(frozen=True, slots=True)
class Failed:
    work_id: str
    error: TandemError


PrefillEvent = Started | BlocksReady | FirstToken | HandoffReady | Failed
DecodeEvent = Reserved | Tokens | Preempted | Failed


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the scheduler's placement knows of an instance. Reported over the bus, hence a hint."""

    queued_tokens: int  # prefill: uncached tokens waiting or under way; decode: latent tokens waiting to join
    queued: int
    running: int
    running_tokens: int  # cached tokens of running sequences
    free_blocks: int  # free and evictable
    total_blocks: int
    step_s: float  # moving average
    tokens_per_s: float = 0.0  # prefill: measured; 0 before that, and of decode
