"""The four-call exchange of `base.AllToAll`, over any transport.

A token travels once to each rank that holds one of its experts, with the local indices and weights of those experts.
That rank sums its experts' weighted outputs in fp32 and returns one row, so both ways carry the same number of rows.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch

from common.errors import InternalError
from common.parallel.base import Dispatched
from common.parallel.expert_placement import ExpertPlacement
from common.parallel.transport import Channel, Message, Transport
from kernels.permute_ref import permute, unpermute

_DISPATCH = (Channel.DISPATCH_0, Channel.DISPATCH_1)
_COMBINE = (Channel.COMBINE_0, Channel.COMBINE_1)
_NOT_ANNOUNCED = -1


@dataclass(frozen=True, slots=True)
class _Sent:
    """What left this rank: token indices sorted by destination, to add the answers where they belong."""

    tokens: torch.Tensor
    bounds: list[slice]
    like: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Arrived:
    """What reached this rank: where each choice's row lies, its weight, and how many tokens each source sent."""

    sent: _Sent
    rows: torch.Tensor
    weights: torch.Tensor
    source_tokens: list[int]


@dataclass(frozen=True, slots=True)
class _Returned:
    sent: _Sent


class Exchange:
    """One rank's end, see `common.parallel.base.AllToAll`. Calls out of order are an `InternalError`."""

    def __init__(self, transport: Transport, placement: ExpertPlacement) -> None:
        if placement.ranks != transport.ranks:
            raise InternalError(f"placement for {placement.ranks} ranks in a group of {transport.ranks}")
        self._transport = transport
        self._local_experts = placement.by_rank[transport.rank]
        copies = placement.copies()
        most = max(len(c) for c in copies)
        # Copies repeated up to the common width, so that one modulo picks evenly among any number of them.
        table = torch.tensor([[c[i % len(c)] for i in range(most)] for c in copies])
        self._copies = torch.tensor([len(c) for c in copies])
        self._home, self._index = table[..., 0], table[..., 1]
        self._state: list[_Sent | _Arrived | _Returned | None] = [None, None]

    @property
    def rank(self) -> int:
        return self._transport.rank

    @property
    def ranks(self) -> int:
        return self._transport.ranks

    @property
    def local_experts(self) -> tuple[int, ...]:
        return self._local_experts

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
            raise self._out_of_order("dispatch_send", slot)
        home, index = self._locate(expert_ids)
        wanted = home.new_zeros((self.ranks, x.shape[0]), dtype=torch.bool)
        wanted[home.T, torch.arange(x.shape[0], device=x.device)] = True
        rank, token = wanted.nonzero().unbind(1)
        here = home[token] == rank[:, None]
        parcel = (x[token], torch.where(here, index[token], -1).int(), weights[token])
        nothing = Message(tuple(part[:0] for part in parcel), note := _NOT_ANNOUNCED if announce is None else announce)
        bounds = _bounds(wanted.sum(1).tolist())
        for peer, part in enumerate(bounds):
            message = Message(tuple(tensor[part] for tensor in parcel), note) if part.start < part.stop else nothing
            self._transport.send(peer, _DISPATCH[slot], message)
        self._state[slot] = _Sent(token, bounds, x)

    def dispatch_recv(self, *, slot: int) -> Dispatched:
        sent = self._state[slot]
        if not isinstance(sent, _Sent):
            raise self._out_of_order("dispatch_recv", slot)
        messages = [self._transport.receive(peer, _DISPATCH[slot]) for peer in range(self.ranks)]
        x, index, weights = (torch.cat(part) for part in zip(*(m.tensors for m in messages), strict=True))
        rows, counts, where = permute(x, index, len(self._local_experts))
        self._state[slot] = _Arrived(sent, where, weights, [m.tensors[0].shape[0] for m in messages])
        return Dispatched(rows[: int(counts.sum())], counts.long(), _announced([m.note for m in messages]))

    def combine_send(self, rows: torch.Tensor, *, slot: int) -> None:
        arrived = self._state[slot]
        if not isinstance(arrived, _Arrived):
            raise self._out_of_order("combine_send", slot)
        sums = unpermute(rows, arrived.rows, arrived.weights)
        nothing = Message((sums[:0],))
        for peer, part in enumerate(_bounds(arrived.source_tokens)):
            self._transport.send(peer, _COMBINE[slot], Message((sums[part],)) if part.start < part.stop else nothing)
        self._state[slot] = _Returned(arrived.sent)

    def combine_recv(self, *, slot: int) -> torch.Tensor:
        returned = self._state[slot]
        if not isinstance(returned, _Returned):
            raise self._out_of_order("combine_recv", slot)
        sent = returned.sent
        total = torch.zeros_like(sent.like, dtype=torch.promote_types(sent.like.dtype, torch.float32))
        for peer, part in enumerate(sent.bounds):
            (rows,) = self._transport.receive(peer, _COMBINE[slot]).tensors
            if part.start < part.stop:
                total[sent.tokens[part]] += rows
        self._state[slot] = None
        return total.to(sent.like.dtype)

    def _locate(self, expert_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rank and index there of each choice ``[tokens, top_k]``; copies of an expert take turns by token."""
        turn = torch.arange(expert_ids.shape[0], device=expert_ids.device)[:, None] % self._copies[expert_ids]
        return self._home[expert_ids, turn], self._index[expert_ids, turn]

    def _out_of_order(self, call: str, slot: int) -> InternalError:
        return InternalError(f"rank {self.rank}: {call} on slot {slot} out of order")


def _bounds(sizes: list[int]) -> list[slice]:
    """Where consecutive parts of these sizes lie."""
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _announced(notes: list[int]) -> tuple[int, ...]:
    silent = notes.count(_NOT_ANNOUNCED)
    if silent not in (0, len(notes)):
        raise InternalError(f"ranks disagree on whether this exchange announces: {notes}")
    return () if silent else tuple(notes)
