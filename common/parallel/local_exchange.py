"""The exchange of a rank that holds every expert: a sort there and a weighted sum back, with nothing sent.

No shape depends on the routing, so a device runs it without asking the host.
"""

from dataclasses import dataclass

import torch

from common.errors import InternalError
from common.parallel.base import Dispatched
from kernels.permute_ref import permute, unpermute


@dataclass(frozen=True, slots=True)
class _Sorted:
    dispatched: Dispatched
    where: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Taken:
    where: torch.Tensor
    weights: torch.Tensor


class LocalExchange:
    """See `common.parallel.base.AllToAll`. Calls out of order are an `InternalError`."""

    rank = 0
    ranks = 1

    def __init__(self, experts: int) -> None:
        self._experts = experts
        self._state: list[_Sorted | _Taken | torch.Tensor | None] = [None, None]

    @property
    def local_experts(self) -> tuple[int, ...]:
        return tuple(range(self._experts))

    def dispatch_send(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        *,
        slot: int,
        announce: int | None = None,
    ) -> None:
        if self._state[slot] is not None:
            raise _out_of_order("dispatch_send", slot)
        rows, counts, where = permute(x, expert_ids, self._experts)
        announced = () if announce is None else (announce,)
        self._state[slot] = _Sorted(Dispatched(rows, counts.long(), announced), where, weights)

    def dispatch_recv(self, *, slot: int) -> Dispatched:
        state = self._state[slot]
        if not isinstance(state, _Sorted):
            raise _out_of_order("dispatch_recv", slot)
        self._state[slot] = _Taken(state.where, state.weights)
        return state.dispatched

    def combine_send(self, rows: torch.Tensor, *, slot: int) -> None:
        state = self._state[slot]
        if not isinstance(state, _Taken):
            raise _out_of_order("combine_send", slot)
        self._state[slot] = unpermute(rows, state.where, state.weights)

    def combine_recv(self, *, slot: int) -> torch.Tensor:
        state = self._state[slot]
        if not isinstance(state, torch.Tensor):
            raise _out_of_order("combine_recv", slot)
        self._state[slot] = None
        return state


def _out_of_order(call: str, slot: int) -> InternalError:
    return InternalError(f"{call} on slot {slot} out of order")
