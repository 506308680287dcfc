"""The exchange against a dense sum over experts, for any spread of tokens; and its protocol."""

from collections.abc import Sequence

import pytest
import torch

from common.errors import InternalError
from common.parallel.base import AllToAll
from common.parallel.exchange import Exchange
from common.parallel.expert_placement import ExpertPlacement
from common.parallel.groups import exchange
from common.parallel.in_process import InProcessTransport
from common.parallel.local_exchange import LocalExchange

HIDDEN = 8


def group(placement: ExpertPlacement) -> list[Exchange]:
    return [Exchange(transport, placement) for transport in InProcessTransport.group(placement.ranks)]


def factor(expert: int) -> float:
    """What a test expert multiplies its rows by."""
    return 1.0 + expert


def step(
    ranks: Sequence[AllToAll],
    x: Sequence[torch.Tensor],
    ids: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    slot: int = 0,
    announce: Sequence[int] | None = None,
) -> list[torch.Tensor]:
    for i, rank in enumerate(ranks):
        rank.dispatch_send(x[i], ids[i], weights[i], slot=slot, announce=None if announce is None else announce[i])
    for rank in ranks:
        arrived = rank.dispatch_recv(slot=slot)
        assert arrived.announced == (() if announce is None else tuple(announce))
        assert int(arrived.expert_counts.sum()) == arrived.rows.shape[0]
        factors = torch.tensor([factor(e) for e in rank.local_experts]).repeat_interleave(arrived.expert_counts)
        rank.combine_send(arrived.rows * factors[:, None], slot=slot)
    return [rank.combine_recv(slot=slot) for rank in ranks]


def routing(tokens: int, experts: int, top_k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand((tokens, experts), generator=generator).argsort(dim=1)[:, :top_k]
    return torch.randn((tokens, HIDDEN), generator=generator), ids, torch.rand((tokens, top_k), generator=generator)


def dense(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return x * ((ids + 1.0) * weights).sum(1, keepdim=True)


@pytest.mark.parametrize("ranks", [1, 2, 3, 16])
@pytest.mark.parametrize("tokens", [(0,), (5,), (0, 7, 1), (40, 0)], ids=str)
def test_sums_match_a_dense_layer(ranks: int, tokens: tuple[int, ...]) -> None:
    counts = [tokens[i % len(tokens)] for i in range(ranks)]
    inputs = [routing(n, experts=16, top_k=4, seed=i) for i, n in enumerate(counts)]
    ends = group(ExpertPlacement.contiguous(16, ranks))
    for slot in (0, 1):
        sums = step(ends, *zip(*inputs, strict=True), slot=slot)
        for ours, (x, ids, weights) in zip(sums, inputs, strict=True):
            torch.testing.assert_close(ours, dense(x, ids, weights))


@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_one_rank_sends_nothing_and_gives_the_same(tokens: int) -> None:
    placement = ExpertPlacement.contiguous(16, 1)
    (transport,) = InProcessTransport.group(1)
    local = exchange(transport, placement)
    assert isinstance(local, LocalExchange)
    (x, ids, weights) = routing(tokens, experts=16, top_k=4, seed=0)
    for slot in (0, 1):
        (ours,) = step([local], [x], [ids], [weights], slot=slot, announce=[3])
        (reference,) = step(group(placement), [x], [ids], [weights])
        assert torch.equal(ours, reference)


def test_every_token_to_one_expert() -> None:
    """No buffer to overflow: the one busy rank takes all rows."""
    ends = group(ExpertPlacement.contiguous(8, 4))
    inputs = [(torch.randn(200, HIDDEN), torch.full((200, 1), 5), torch.ones(200, 1)) for _ in range(4)]
    for i, end in enumerate(ends):
        end.dispatch_send(*inputs[i], slot=0)
    arrived = [end.dispatch_recv(slot=0) for end in ends]
    assert [a.expert_counts.tolist() for a in arrived] == [[0, 0], [0, 0], [0, 800], [0, 0]]
    for end, a in zip(ends, arrived, strict=True):
        end.combine_send(a.rows * factor(5), slot=0)
    for end, (x, _, _) in zip(ends, inputs, strict=True):
        torch.testing.assert_close(end.combine_recv(slot=0), x * 6)


def test_rows_are_sorted_by_expert_then_source_then_token() -> None:
    ends = group(ExpertPlacement.contiguous(4, 2))
    ids = [torch.tensor([[1, 0], [0, 3]]), torch.tensor([[0, 2], [1, 0], [2, 3]])]
    for i, end in enumerate(ends):
        x = torch.arange(len(ids[i]), dtype=torch.float32)[:, None] + 10 * i
        end.dispatch_send(x.expand(-1, HIDDEN), ids[i], torch.ones(len(ids[i]), 2), slot=0)
    arrived = [end.dispatch_recv(slot=0) for end in ends]
    assert arrived[0].rows[:, 0].tolist() == [0, 1, 10, 11, 0, 11]
    assert arrived[0].expert_counts.tolist() == [4, 2]
    assert arrived[1].rows[:, 0].tolist() == [10, 12, 1, 12]
    assert arrived[1].expert_counts.tolist() == [2, 2]


def test_a_token_travels_once_to_a_rank() -> None:
    transports = InProcessTransport.group(2)
    end = Exchange(transports[0], ExpertPlacement.contiguous(4, 2))
    end.dispatch_send(torch.randn(3, HIDDEN), torch.tensor([[0, 1], [2, 3], [1, 2]]), torch.ones(3, 2), slot=0)
    rows, index, _ = transports[1].receive(0, 0).tensors  # type: ignore[arg-type]
    assert rows.shape == (2, HIDDEN)
    assert index.tolist() == [[0, 1], [-1, 0]]


def test_copies_of_an_expert_take_turns() -> None:
    placement = ExpertPlacement(2, ((0, 1), (0,), (0,)))
    ends = group(placement)
    x, ids, weights = torch.randn(6, HIDDEN), torch.zeros(6, 1, dtype=torch.int64), torch.ones(6, 1)
    none = (torch.empty(0, HIDDEN), torch.empty((0, 1), dtype=torch.int64), torch.empty(0, 1))
    for end, given in zip(ends, ((x, ids, weights), none, none), strict=True):
        end.dispatch_send(*given, slot=0)
    assert [end.dispatch_recv(slot=0).rows.shape[0] for end in ends] == [2, 2, 2]


def test_announced_counts_reach_every_rank() -> None:
    inputs = [routing(n, experts=4, top_k=2, seed=n) for n in (3, 0)]
    step(group(ExpertPlacement.contiguous(4, 2)), *zip(*inputs, strict=True), announce=[7, 0])


def test_ranks_that_disagree_on_announcing_are_found() -> None:
    ends = group(ExpertPlacement.contiguous(4, 2))
    for end, announce in zip(ends, (1, None), strict=True):
        end.dispatch_send(*routing(1, experts=4, top_k=2, seed=0), slot=0, announce=announce)
    with pytest.raises(InternalError, match="disagree"):
        ends[0].dispatch_recv(slot=0)


@pytest.mark.parametrize("end", [LocalExchange(4), group(ExpertPlacement.contiguous(4, 1))[0]], ids=["local", "sent"])
def test_calls_out_of_order_are_found(end: AllToAll) -> None:
    for call in (end.dispatch_recv, end.combine_recv):
        with pytest.raises(InternalError, match="out of order"):
            call(slot=0)
    end.dispatch_send(*routing(1, experts=4, top_k=2, seed=0), slot=0)
    with pytest.raises(InternalError, match="dispatch_send on slot 0 out of order"):
        end.dispatch_send(*routing(1, experts=4, top_k=2, seed=0), slot=0)
    with pytest.raises(InternalError, match="combine_send on slot 0 out of order"):
        end.combine_send(torch.empty(0, HIDDEN), slot=0)


def test_a_receive_before_its_send_is_found() -> None:
    ends = group(ExpertPlacement.contiguous(4, 2))
    ends[0].dispatch_send(*routing(1, experts=4, top_k=2, seed=0), slot=0)
    with pytest.raises(InternalError, match="rank 0 receives on DISPATCH_0 before rank 1 has sent"):
        ends[0].dispatch_recv(slot=0)
