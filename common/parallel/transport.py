"""Messages between the ranks of one group: what an exchange or a collective is built on."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch


class Channel(IntEnum):
    """Streams that never mix. Within one, a pair of ranks sees messages in the order sent."""

    DISPATCH_0 = 0
    DISPATCH_1 = 1
    COMBINE_0 = 2
    COMBINE_1 = 3
    COLLECTIVE = 4


@dataclass(frozen=True, slots=True)
class Message:
    """A few tensors and one number that rides along. Neither side may change the tensors afterwards."""

    tensors: tuple[torch.Tensor, ...]
    note: int = 0


class Transport(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    def send(self, peer: int, channel: Channel, message: Message) -> None:
        """Start sending; returns at once. `peer` may be this rank."""
        ...

    def receive(self, peer: int, channel: Channel) -> Message:
        """The next message of that peer on that channel.

        Raises:
            WorkerLost: the peer died or stayed silent past the transport's bound.
        """
        ...


class Members:
    """Some ranks of a transport as a group of their own, numbered from 0."""

    def __init__(self, transport: Transport, members: range) -> None:
        self._transport, self._members = transport, members

    @property
    def rank(self) -> int:
        return self._members.index(self._transport.rank)

    @property
    def ranks(self) -> int:
        return len(self._members)

    def send(self, peer: int, channel: Channel, message: Message) -> None:
        self._transport.send(self._members[peer], channel, message)

    def receive(self, peer: int, channel: Channel) -> Message:
        return self._transport.receive(self._members[peer], channel)
