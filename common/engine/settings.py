"""What an engine is told once. Values that cannot work are refused here, with the field's name."""

from dataclasses import dataclass

from common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What both engines share.

    Attributes:
        total_blocks: blocks of the latent pool.
        block_tokens: tokens of a block.
        context_tokens: most tokens of one sequence, prompt and generated.
        max_running: most sequences of one step.
        max_queued: most that wait; more are refused.
        max_step_tokens: most tokens of one step; receive buffers of the exchange hold this many from every rank.
        draft_tokens: drafts proposed per step and sequence; 0 leaves the MTP layer out.
    """

    total_blocks: int
    context_tokens: int
    block_tokens: int = 64
    max_running: int = 64
    max_queued: int = 1024
    max_step_tokens: int = 8192
    draft_tokens: int = 0

    def __post_init__(self) -> None:
        for field in ("total_blocks", "context_tokens", "block_tokens", "max_running", "max_queued", "max_step_tokens"):
            _at_least(field, getattr(self, field), 1)
        _at_least("draft_tokens", self.draft_tokens, 0)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True)
class PrefillSettings:
    """
    Attributes:
        chunk_tokens: most tokens of one sequence in one step.
        aging_tokens_per_s: a second of waiting weighs as much as this many remaining tokens, so that the shortest
            go first and none waits for ever.
        lease_s: how long finished latent is kept for its reader; counted from the last chunk and each renewal.
    """

    shape: EngineShape
    chunk_tokens: int = 2048
    aging_tokens_per_s: float = 4096.0
    lease_s: float = 30.0

    def __post_init__(self) -> None:
        _at_least("chunk_tokens", self.chunk_tokens, 1)
        if self.aging_tokens_per_s <= 0 or self.lease_s <= 0:
            raise ConfigError(
                f"aging_tokens_per_s = {self.aging_tokens_per_s}, lease_s = {self.lease_s}: both must be positive"
            )


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """
    Attributes:
        growth_tokens: room kept for every running sequence before a new one is let in.
    """

    shape: EngineShape
    growth_tokens: int = 64

    def __post_init__(self) -> None:
        _at_least("growth_tokens", self.growth_tokens, 0)
        step_tokens = self.shape.max_running * (1 + self.shape.draft_tokens)
        if step_tokens > self.shape.max_step_tokens:
            raise ConfigError(
                f"max_running = {self.shape.max_running}: with {self.shape.draft_tokens} drafts a step has up to "
                f"{step_tokens} tokens, over max_step_tokens = {self.shape.max_step_tokens}"
            )


def _at_least(field: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{field} = {value}: must be at least {least}")
