"""Collectives of the tensor-parallel ranks of one instance, over any transport. Sums are in rank order."""

import pickle

import torch

from common.errors import InternalError
from common.parallel.transport import Channel, Message, Transport
from common.parallel.waits import Waits, ready


class SingleRank:
    """A group of one: every call is the identity and waits for nothing."""

    rank = 0
    ranks = 1

    def reduce_scatter(self, x: torch.Tensor, sizes: list[int]) -> Waits[torch.Tensor]:
        _check_rows(x, sum(sizes))
        return ready(x)

    def all_gather(self, x: torch.Tensor, sizes: list[int]) -> Waits[torch.Tensor]:
        _check_rows(x, sizes[0])
        return ready(x)

    def broadcast(self, x: torch.Tensor) -> Waits[torch.Tensor]:
        return ready(x)

    def broadcast_object(self, value: object) -> Waits[object]:
        return ready(value)


class TransportGroup:
    """See `common.parallel.base.TensorGroup`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def rank(self) -> int:
        return self._transport.rank

    @property
    def ranks(self) -> int:
        return self._transport.ranks

    def reduce_scatter(self, x: torch.Tensor, sizes: list[int]) -> Waits[torch.Tensor]:
        _check_rows(x, sum(sizes))
        parts = yield from self._swap(list(torch.split(x, sizes)))
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total

    def all_gather(self, x: torch.Tensor, sizes: list[int]) -> Waits[torch.Tensor]:
        _check_rows(x, sizes[self.rank])
        return torch.cat((yield from self._swap([x] * self.ranks)))

    def broadcast(self, x: torch.Tensor) -> Waits[torch.Tensor]:
        if self.rank == 0:
            for peer in range(1, self.ranks):
                self._transport.send(peer, Channel.COLLECTIVE, Message((x,)))
        yield
        if self.rank == 0:
            return x
        (received,) = self._transport.receive(0, Channel.COLLECTIVE).tensors
        if received.shape != x.shape or received.dtype != x.dtype:
            raise InternalError(f"rank 0 broadcasts {received.dtype} {received.shape}, awaited {x.dtype} {x.shape}")
        return received

    def broadcast_object(self, value: object) -> Waits[object]:
        if self.rank == 0:
            # A copy of the bytes: torch refuses to view memory that may not be written.
            packed = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
            for peer in range(1, self.ranks):
                self._transport.send(peer, Channel.COLLECTIVE, Message((packed,)))
        yield
        if self.rank == 0:
            return value
        (received,) = self._transport.receive(0, Channel.COLLECTIVE).tensors
        return pickle.loads(received.numpy().tobytes())

    def _swap(self, parts: list[torch.Tensor]) -> Waits[list[torch.Tensor]]:
        """Send ``parts[i]`` to rank i; what the ranks sent here, in rank order."""
        for peer, part in enumerate(parts):
            self._transport.send(peer, Channel.COLLECTIVE, Message((part,)))
        yield
        return [self._transport.receive(peer, Channel.COLLECTIVE).tensors[0] for peer in range(self.ranks)]


def _check_rows(x: torch.Tensor, rows: int) -> None:
    if x.shape[0] != rows:
        raise InternalError(f"collective over {x.shape[0]} rows where the ranks' sizes say {rows}")
