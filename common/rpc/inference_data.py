"""The public call as plain data: what `Inference` takes and gives, without wire types."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.request import FinishReason, PositionLogprobs, Sampling


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str  # system, user, assistant
    content: str


Prompt = str | tuple[ChatMessage, ...] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """What the client set; None takes the server's default. Ranges are the front door's to check."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Stopping:
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Exactly one of `text`, `chat`, `token_ids` is the prompt; an empty one is given, None is not."""

    text: str | None = None
    chat: tuple[ChatMessage, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    request_id: str = ""
    model: str = ""
    sampling: SamplingOptions = SamplingOptions()
    stopping: Stopping = Stopping()
    logprobs: int | None = None
    n: int | None = None
    tenant: str = ""
    priority: int = 0
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ledger:
    """Seconds by part; they sum to `total_s`."""

    entries: tuple[tuple[str, float], ...] = ()
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of one choice. `finish_reason` is set on the choice's last; `usage`, `ledger` on the stream's last."""

    request_id: str
    choice: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[tuple[int, PositionLogprobs], ...] = ()  # (token id, its log-probabilities)
    finish_reason: FinishReason | None = None
    stop: str = ""
    usage: Usage | None = None
    ledger: Ledger | None = None


@dataclass(frozen=True, slots=True)
class CancelOutcome:
    """`replicas` answered in time, the one asked included; without `found`, one that did not may have the request."""

    found: bool
    replicas: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    model: str
    fingerprint: str
    vocab_tokens: int
    context_tokens: int
    block_tokens: int
    draft_tokens: int
    default_sampling: Sampling
    has_tokenizer: bool


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    instance: str
    role: str
    group: str
    address: str
    incarnation: int
    state: str
    queued_tokens: int = 0
    running: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    step_ms: float = 0.0
    queued: int = 0
    max_running: int = 0
    tokens_per_s: float = 0.0
    busy: float = 0.0
    report_age_ms: int = -1  # none was heard


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    model: str
    instances: tuple[InstanceInfo, ...]
    scheduler: str
    live_requests: int
    waiting_requests: int = 0
    waiting_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one instance would have cost: predicted seconds (prefill) or resulting load (decode), and its parts."""

    instance: str
    cost: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    role: str
    chosen: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    request_id: str
    placements: tuple[Placement, ...] = ()
    ledger: Ledger = Ledger()
    resumes: int = 0
    outcome: str = ""
    predicted_cached_blocks: int = 0
    actual_cached_blocks: int = 0
    trace_id: str = ""
