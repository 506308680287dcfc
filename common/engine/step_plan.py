"""What every tensor-parallel rank of an instance executes in one step. Picklable: the leader broadcasts it."""

from dataclasses import dataclass

import torch

from common.model.batch import AttentionForm, ForwardBatch, Schedule


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One sequence's part of a step.

    Attributes:
        token_ids: a chunk of the prompt, or the last token followed by drafts.
        start: position of the first of them.
        blocks: the sequence's blocks in order; they reach beyond every slot that this step writes.
        drafts: how many of the last `token_ids` are drafts to be verified.
        following: the token after `token_ids` where the prompt goes on; None where it is to be drawn.
        propose_before: drafts are proposed for positions below this one only.
    """

    token_ids: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]
    drafts: int = 0
    following: int | None = None
    propose_before: int = 0

    @property
    def draws(self) -> int:
        """Rows whose logits are drawn from: the last token's and each draft's."""
        return 1 + self.drafts if self.following is None else 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """
    Attributes:
        draft_passes: passes of the MTP layer, the same on all ranks of a group whatever their sequences.
        announce: this instance's count for choosing the next step's mode.
        landed_blocks: blocks that reached the leader's pool from elsewhere since the step before; the other ranks of
            the instance, which hold the same latent, take them over first.
    """

    number: int
    sequences: tuple[SequenceStep, ...]
    form: AttentionForm
    schedule: Schedule
    draft_passes: int
    announce: int
    landed_blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive positions of one sequence that one pass computes."""

    token_ids: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]


def forward_batch(spans: list[Span], block_tokens: int, device: torch.device) -> ForwardBatch:
    """Lay spans out as one ragged batch; an empty list gives the batch of a rank without tokens."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    tables: list[list[int]] = []
    ends = [span.start + len(span.token_ids) for span in spans]
    widest = max((-(-end // block_tokens) for end in ends), default=0)
    for span, end in zip(spans, ends, strict=True):
        token_ids.extend(span.token_ids)
        positions.extend(range(span.start, end))
        slots.extend(
            span.blocks[position // block_tokens] * block_tokens + position % block_tokens
            for position in range(span.start, end)
        )
        table = list(span.blocks[:widest])
        tables.append(table + [0] * (widest - len(table)))
    return ForwardBatch(
        token_ids=torch.tensor(token_ids, dtype=torch.int64, device=device),
        positions=torch.tensor(positions, dtype=torch.int64, device=device),
        slots=torch.tensor(slots, dtype=torch.int64, device=device),
        query_tokens=torch.tensor([len(span.token_ids) for span in spans], dtype=torch.int32),
        total_tokens=torch.tensor(ends, dtype=torch.int32),
        block_tables=torch.tensor(tables, dtype=torch.int32, device=device).reshape(len(spans), widest),
    )
