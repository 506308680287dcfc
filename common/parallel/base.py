"""The exchange of tokens between ranks that hold different experts.

A layer's exchange is four calls in this order: dispatch_send, dispatch_recv, combine_send, combine_recv. Between a send
and its receive the caller computes something else. Ranks may hold different numbers of tokens, none included, and
nothing is padded to a common batch. Two exchanges may be in flight, told apart by `slot` (one per microbatch).
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from common.parallel.waits import Waits


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Tokens that reached this rank, grouped by local expert.

    Attributes:
        rows: ``[rows, hidden]``, sorted by local expert, then by source rank, then by the source's token order, so
            that sums have one order.
        expert_counts: ``[local_experts]`` int64.
        announced: the counts that each rank put on this exchange, by rank; empty unless one was asked for.
    """

    rows: torch.Tensor
    expert_counts: torch.Tensor
    announced: tuple[int, ...] = ()


class AllToAll(Protocol):
    """One rank's end of the exchange. Physical experts are placed by the table it was built with."""

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    @property
    def local_experts(self) -> tuple[int, ...]:
        """Global ids of this rank's experts, in the order of `Dispatched.expert_counts`."""
        ...

    def dispatch_send(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        *,
        slot: int,
        announce: int | None = None,
    ) -> None:
        """Start sending each token to the ranks that hold its experts.

        Args:
            x: ``[tokens, hidden]``.
            expert_ids: ``[tokens, top_k]`` int64, global.
            weights: ``[tokens, top_k]`` fp32; they travel along and are applied where the experts are, in fp32: first
                a token's experts of one rank in the order of its choice, then ranks in rank order, so that a sum never
                depends on timing. A token travels once to each rank that it needs, whatever it wants there.
            announce: on the first exchange of a step, this rank's count for choosing the next step's mode. All ranks
                announce on the same exchange.
        """
        ...

    def dispatch_recv(self, *, slot: int) -> Dispatched: ...

    def combine_send(self, rows: torch.Tensor, *, slot: int) -> None:
        """Start returning the experts' outputs, ``[rows, hidden]`` in the order of `Dispatched.rows`."""
        ...

    def combine_recv(self, *, slot: int) -> torch.Tensor:
        """The weighted sums, ``[tokens, hidden]``, in the order of the tokens sent."""
        ...


class TensorGroup(Protocol):
    """The tensor-parallel ranks of one instance. Each call waits once, with one rank never.

    Sums are in rank order.
    """

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    def reduce_scatter(self, x: torch.Tensor, sizes: list[int]) -> Waits[torch.Tensor]:
        """Sum ``[sum(sizes), ...]`` over ranks and keep this rank's ``sizes[rank]`` rows."""
        ...

    def all_gather(self, x: torch.Tensor, sizes: list[int]) -> Waits[torch.Tensor]:
        """Concatenate along dim 0; rank i holds ``sizes[i]`` rows."""
        ...

    def broadcast(self, x: torch.Tensor) -> Waits[torch.Tensor]:
        """Rank 0's tensor; on other ranks `x` only says shape and type."""
        ...

    def broadcast_object(self, value: object) -> Waits[object]:
        """Rank 0's picklable value."""
        ...
