import pytest
import torch

from common.model.batch import ForwardBatch
from common.model.microbatch import shares_of, split_batch, split_point


@pytest.mark.parametrize(
    ("query_tokens", "at"),
    [
        ([], 0),
        ([1], 1),
        ([2], 1),
        ([9], 5),
        ([1] * 32, 16),
        ([2] * 5, 4),
        ([100, 3], 52),
        ([60, 40], 60),
        ([30, 10, 60], 40),
        ([1, 0, 0, 1], 1),
    ],
)
def test_where_a_batch_is_cut(query_tokens: list[int], at: int) -> None:
    """At a sequence's end when that is near the middle, so that decode never cuts a sequence."""
    assert split_point(query_tokens) == at


def batch(query_tokens: list[int], total_tokens: list[int]) -> ForwardBatch:
    tokens = sum(query_tokens)
    return ForwardBatch(
        token_ids=torch.arange(tokens),
        positions=torch.cat(
            [torch.arange(t - q, t) for q, t in zip(query_tokens, total_tokens, strict=True)] or [torch.empty(0)]
        ),
        slots=torch.arange(tokens) + 100,
        query_tokens=torch.tensor(query_tokens, dtype=torch.int32),
        total_tokens=torch.tensor(total_tokens, dtype=torch.int32),
        block_tables=torch.arange(len(query_tokens), dtype=torch.int32)[:, None],
    )


def test_a_cut_sequence_is_in_both_halves() -> None:
    first, second = split_batch(batch([2, 40, 2], [2, 100, 9]))
    assert first.query_tokens.tolist() == [2, 20]
    assert first.total_tokens.tolist() == [2, 80]
    assert first.block_tables.tolist() == [[0], [1]]
    assert second.query_tokens.tolist() == [20, 2]
    assert second.total_tokens.tolist() == [100, 9]
    assert second.block_tables.tolist() == [[1], [2]]
    for name in ("token_ids", "positions", "slots"):
        whole = getattr(batch([2, 40, 2], [2, 100, 9]), name)
        assert torch.equal(torch.cat((getattr(first, name), getattr(second, name))), whole)


@pytest.mark.parametrize("query_tokens", [[], [1], [0, 0], [0, 1]])
def test_halves_may_be_empty(query_tokens: list[int]) -> None:
    first, second = split_batch(batch(query_tokens, [q + 3 for q in query_tokens]))
    assert first.tokens + second.tokens == sum(query_tokens)
    assert (second.tokens, second.sequences) == (0, 0)
    assert first.sequences == sum(1 for q in query_tokens if q)


@pytest.mark.parametrize(("tokens", "ranks", "shares"), [(0, 2, [0, 0]), (1, 2, [1, 0]), (10, 4, [3, 3, 2, 2])])
def test_shares(tokens: int, ranks: int, shares: list[int]) -> None:
    assert shares_of(tokens, ranks) == shares
