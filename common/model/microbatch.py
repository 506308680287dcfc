"""Cutting a batch in two for the dual-microbatch schedule."""

import torch

from common.model.batch import ForwardBatch

# A sequence is cut in two only when whole sequences would leave the halves more uneven than this.
_MOST_UNEVEN = 0.25


def split_point(query_tokens: list[int]) -> int:
    """Tokens of the first half: at the end of the sequence nearest to the middle, or in the middle of a long one."""
    total = sum(query_tokens)
    middle = (total + 1) // 2
    ends, end = [0], 0
    for tokens in query_tokens:
        end += tokens
        ends.append(end)
    nearest = min(ends, key=lambda at: abs(at - middle))
    return nearest if abs(nearest - middle) <= _MOST_UNEVEN * total else middle


def split_batch(batch: ForwardBatch) -> tuple[ForwardBatch, ForwardBatch]:
    """Two halves, either of which may be empty.

    The second half of a cut sequence needs the first half's latent of the same layer. The schedule keeps that order:
    the first microbatch appends to the cache three stages ahead.
    """
    counts = batch.query_tokens.tolist()
    at = split_point(counts)
    first_counts, before = [], 0
    for tokens in counts:
        first_counts.append(min(max(at - before, 0), tokens))
        before += tokens
    first_query = torch.tensor(first_counts, dtype=batch.query_tokens.dtype)
    second_query = batch.query_tokens - first_query
    in_first, in_second = first_query > 0, second_query > 0
    first_total = batch.total_tokens - second_query
    return (
        ForwardBatch(
            token_ids=batch.token_ids[:at],
            positions=batch.positions[:at],
            slots=batch.slots[:at],
            query_tokens=first_query[in_first],
            total_tokens=first_total[in_first],
            block_tables=batch.block_tables[in_first.to(batch.block_tables.device)],
        ),
        ForwardBatch(
            token_ids=batch.token_ids[at:],
            positions=batch.positions[at:],
            slots=batch.slots[at:],
            query_tokens=second_query[in_second],
            total_tokens=batch.total_tokens[in_second],
            block_tables=batch.block_tables[in_second.to(batch.block_tables.device)],
        ),
    )


def shares_of(tokens: int, ranks: int) -> list[int]:
    """Tokens of each tensor-parallel rank, as even as can be, the first ranks one more."""
    return [(tokens + ranks - 1 - rank) // ranks for rank in range(ranks)]
