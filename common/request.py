"""What is asked of the engines, as plain data. Wire messages become these in common/rpc and nowhere else.

Positions count from the first prompt token. A resumed piece of work holds prompt and tokens already sent in
`token_ids`; `prompt_tokens` keeps the length of the client's own prompt, so limits, penalties and noise do not shift.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class FinishReason(StrEnum):
    STOP = "stop"  # end of sequence, a stop id or a stop string
    LENGTH = "length"  # max_tokens or the context limit


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; every field decided. `temperature` 0 is greedy and `top_k` 0 is off.

    The draw at a position is the argmax of filtered logits / temperature + Gumbel noise keyed by (seed, position).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """When a worker ends a sequence by itself. Stop strings are the scheduler's, which has the tokenizer.

    `max_tokens` and `min_tokens` count generated tokens from `Work.prompt_tokens` on. While fewer than `min_tokens`
    are out, the stop ids are never drawn. End-of-sequence ids are among `stop_token_ids` unless ignored.
    """

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Work:
    """One choice of one attempt of one request. `work_id` is never reused."""

    work_id: str
    scheduler: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    sampling: Sampling
    limits: Limits
    logprobs: int | None = None
    tenant: str = ""
    priority: int = 0
    deadline_s: float | None = None  # on this process's monotonic clock

    @property
    def generated_tokens(self) -> int:
        """Tokens an earlier attempt already sent."""
        return len(self.token_ids) - self.prompt_tokens


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities at one position, of the model's distribution before temperature and penalties."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    position: int
    token_id: int
    logprobs: PositionLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Handoff:
    """What decode needs besides latent. Draft i is proposed for position `first_token.position + 1 + i`."""

    first_token: GeneratedToken
    draft_token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What two instances must agree on before latent may move between them.

    Comparing names the first differing field (`common.errors.Incompatible`), see common/kv/compatibility.py.
    """

    model_fingerprint: str
    hash_contract: str
    kv_dtype: str
    block_tokens: int
    latent_layers: int  # MTP layer included
    latent_width: int  # kv_lora_rank + qk_rope_head_dim
    draft_tokens: int


@dataclass(frozen=True, slots=True)
class ReadyBlock:
    """A block whose latent is complete. `chain_hash` is empty for the last, partial one.

    What arrives over the wire has the first 8 bytes of the chain hash, which is what tags bind.
    """

    index: int  # in the sequence
    block: int  # in the source's pool
    tag: int
    chain_hash: bytes
    tokens: int


@dataclass(frozen=True, slots=True)
class TransferHello:
    """How to read from a source: its NIXL agent and where its pool lies."""

    agent_metadata: bytes
    incarnation: int
    pool_address: int
    block_bytes: int
    device: int
    memory: str  # DRAM, VRAM
    blocks: int  # how many will be announced, those before the reader's first_block counted in
