"""Which decode work outranks which, and what room running work keeps. Plain data in, plain data out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkState:
    """One piece of decode work.

    Attributes:
        tokens: its tokens now.
        end_tokens: the most it can ever have.
        blocks: what it holds.
        resumed: an earlier attempt already sent tokens of it.
        order: number of admission.
    """

    work_id: str
    tokens: int
    end_tokens: int
    blocks: int
    priority: int
    resumed: bool
    order: int


def rank(work: Iterable[WorkState]) -> list[str]:
    """Work ids, the most important first: resumed before new, then by priority, then the oldest.

    The queue is served from the front and preemption takes from the back.
    """
    ordered = sorted(work, key=lambda state: (not state.resumed, -state.priority, state.order))
    return [state.work_id for state in ordered]


def growth_blocks(state: WorkState, growth_tokens: int, block_tokens: int) -> int:
    """Blocks that `state` would need beyond those it holds for `growth_tokens` more tokens."""
    tokens = min(state.tokens + growth_tokens, state.end_tokens)
    return max(0, -(-tokens // block_tokens) - state.blocks)


def room_to_keep(active: Sequence[WorkState], growth_tokens: int, block_tokens: int) -> int:
    """Blocks that new work may not take, because work already here is about to grow into them."""
    return sum(growth_blocks(state, growth_tokens, block_tokens) for state in active)
