"""A piece of work inside an engine, and the rules that both engines share about it."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from common.engine.draw_rule import DrawRule
from common.engine.settings import EngineShape
from common.errors import InvalidInput, Overloaded
from common.request import FinishReason, Work

_RETRY_AFTER_S = 1.0


@dataclass(slots=True)
class PrefillSequence:
    """
    Attributes:
        order: number of submission.
        hashes: chain hashes of the prompt's full blocks.
        cached_estimate_tokens: how much of the prompt was cached at submission.
        computed_tokens: prompt tokens whose latent is in the pool, found in the cache or computed.
        announced_blocks: how many leading blocks the reader knows of.
    """

    work: Work
    keep_for_decode: bool
    order: int
    submitted_s: float
    hashes: list[bytes]
    cached_estimate_tokens: int
    started_s: float = 0.0
    blocks: list[int] = field(default_factory=list)
    computed_tokens: int = 0
    announced_blocks: int = 0
    rule: DrawRule | None = None

    @property
    def remaining_tokens(self) -> int:
        done = self.computed_tokens if self.blocks else self.cached_estimate_tokens
        return len(self.work.token_ids) - done


class DecodePhase(Enum):
    """queued -> landing -> running; leaving: over, but its blocks wait for the reader's word that it writes no more."""

    QUEUED = auto()
    LANDING = auto()
    RUNNING = auto()
    LEAVING = auto()


@dataclass(slots=True)
class DecodeSequence:
    """
    Attributes:
        token_ids: prompt and everything generated; the last one's latent is not computed yet.
        order: number of admission, for "newest".
        hashes: chain hashes of leading full blocks; grows as blocks fill up.
        published_blocks: how many leading blocks were offered to the prefix cache.
        drafts: proposed for the positions after the last token.
    """

    work: Work
    order: int
    admitted_s: float
    token_ids: list[int]
    hashes: list[bytes]
    phase: DecodePhase = DecodePhase.QUEUED
    blocks: list[int] = field(default_factory=list)
    published_blocks: int = 0
    drafts: tuple[int, ...] = ()
    rule: DrawRule | None = None

    @property
    def last_position(self) -> int:
        return len(self.token_ids) - 1


def check_work(work: Work, shape: EngineShape, vocab_size: int) -> None:
    """Refuse what this instance can never serve.

    Raises:
        InvalidInput: names field, value and limit.
    """
    tokens = len(work.token_ids)
    if not 1 <= work.prompt_tokens <= tokens:
        raise InvalidInput("prompt_tokens", work.prompt_tokens, f"must be 1 to {tokens}, the tokens given")
    if tokens >= shape.context_tokens:
        raise InvalidInput("token_ids", f"{tokens} tokens", f"at most {shape.context_tokens - 1} leave room to answer")
    if work.limits.max_tokens <= work.generated_tokens:
        raise InvalidInput(
            "limits.max_tokens", work.limits.max_tokens, f"must exceed the {work.generated_tokens} tokens already out"
        )
    if not -(1 << 63) <= work.sampling.seed < 1 << 63:
        raise InvalidInput("sampling.seed", work.sampling.seed, "must fit into 64 bits with its sign")
    for field_name, token_ids in (
        ("token_ids", work.token_ids),
        ("limits.stop_token_ids", work.limits.stop_token_ids),
        ("sampling.logit_bias", work.sampling.logit_bias),
    ):
        offender = next((token for token in token_ids if not 0 <= token < vocab_size), None)
        if offender is not None:
            raise InvalidInput(field_name, offender, f"token ids are 0 to {vocab_size - 1}")


def check_queue(queued: int, shape: EngineShape) -> None:
    """Refuse work for which there is no place to wait.

    Raises:
        Overloaded: the queue is full.
    """
    if queued >= shape.max_queued:
        raise Overloaded(f"{queued} pieces of work wait, the most this instance keeps", _RETRY_AFTER_S)


def end_position(work: Work, context_tokens: int) -> int:
    """The first position that `work` can never fill: its own limit or the context's."""
    return min(work.prompt_tokens + work.limits.max_tokens, context_tokens)


def finish_reason(work: Work, token_id: int, position: int, context_tokens: int) -> FinishReason | None:
    """Whether the token at `position` is the last one."""
    if token_id in work.limits.stop_token_ids:
        return FinishReason.STOP
    if position + 1 >= end_position(work, context_tokens):
        return FinishReason.LENGTH
    return None


class StepTime:
    """Mean duration of the latest steps, in seconds."""

    def __init__(self, steps: int = 32) -> None:
        self._steps: deque[float] = deque(maxlen=steps)

    def add(self, seconds: float) -> None:
        self._steps.append(seconds)

    @property
    def mean_s(self) -> float:
        return sum(self._steps) / len(self._steps) if self._steps else 0.0
