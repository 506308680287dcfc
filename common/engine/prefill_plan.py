"""Which prompts are computed next, and how much of each. Plain data in, plain data out."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptState:
    """One prompt, waiting or under way.

    Attributes:
        resumed: an earlier attempt already sent tokens of it.
        order: number of submission, the last tie-break.
    """

    work_id: str
    remaining_tokens: int
    waited_s: float
    priority: int
    resumed: bool
    order: int


@dataclass(frozen=True, slots=True)
class Chunk:
    work_id: str
    tokens: int


def prompt_order(prompts: Sequence[PromptState], aging_tokens_per_s: float) -> list[str]:
    """Work ids, first to be served first.

    Resumed work precedes new work (its client is watching a pause), then priority decides, then the shortest remaining
    prompt, where every second of waiting counts as `aging_tokens_per_s` tokens less: a short prompt never waits for a
    long one to end, and a long one is first after ``remaining / aging_tokens_per_s`` seconds at the latest.
    """

    def key(prompt: PromptState) -> tuple[bool, int, float, int]:
        score = prompt.remaining_tokens - aging_tokens_per_s * prompt.waited_s
        return (not prompt.resumed, -prompt.priority, score, prompt.order)

    return [prompt.work_id for prompt in sorted(prompts, key=key)]


def plan_chunks(
    prompts: Sequence[PromptState], *, chunk_tokens: int, max_step_tokens: int, aging_tokens_per_s: float
) -> list[Chunk]:
    """Share one step's tokens: in order, each prompt gets up to `chunk_tokens` until the step is full."""
    remaining = {prompt.work_id: prompt.remaining_tokens for prompt in prompts}
    chunks: list[Chunk] = []
    room = max_step_tokens
    for work_id in prompt_order(prompts, aging_tokens_per_s):
        tokens = min(remaining[work_id], chunk_tokens, room)
        if tokens:
            chunks.append(Chunk(work_id, tokens))
            room -= tokens
    return chunks
