"""The exchange of tokens between ranks that hold different experts.

A layer's exchange is four calls in this order: dispatch_send, dispatch_recv, combine_send, combine_recv. Between a send
and its receive the caller computes something else. Ranks may hold different numbers of tokens, none included, and
nothing is padded to a common batch. Two exchanges may be in flight, told apart by `slot` (one per microbatch).
"""

from dataclasses import dataclass
from typing import Protocol

import torch


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
            weights: ``[tokens, top_k]`` fp32; applied where the rows come back together.
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
    """The tensor-parallel ranks of one instance. With one rank every call is the identity."""

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor: ...

    def all_gather(self, x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """Concatenate along dim 0; rank i holds ``sizes[i]`` rows."""
        ...

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        """Rank 0's tensor; on other ranks `x` gives shape and dtype and is filled in place."""
        ...

    def broadcast_object(self, value: object) -> object:
        """Rank 0's picklable value."""
        ...
