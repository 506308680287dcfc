"""Ranks in processes of their own, over torch's gloo (TCP between CPUs).

Sends never block; what is being sent is kept until gloo is done with it, because dropping the handle drops the data.
"""

import time
from collections import defaultdict, deque
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from common.errors import DependencyUnavailable, InternalError, WorkerLost
from common.parallel.packing import HEADER_FIELDS, body_bytes, pack, unpack
from common.parallel.rendezvous import Store
from common.parallel.transport import Channel, Message

_distributed: Any = torch.distributed  # torch's stubs leave gloo's point-to-point calls out


class GlooTransport:
    """One rank's end. All ranks of the group must be constructing theirs at the same time.

    Args:
        store: where the ranks meet. name: of the group, unique within the store.
        host: this rank's own address that peers connect to.
        timeout_s: how long a peer may stay silent while it is waited for.

    Raises:
        DependencyUnavailable: not all ranks came within `timeout_s`.
    """

    def __init__(self, store: Store, rank: int, ranks: int, *, name: str, host: str, timeout_s: float) -> None:
        self._rank, self._ranks, self._timeout_s = rank, ranks, timeout_s
        options = _distributed.ProcessGroupGloo._Options()
        options._devices = [_distributed.ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=timeout_s)
        try:
            self._group: Any = _distributed.ProcessGroupGloo(
                _distributed.PrefixStore(name, store), rank, ranks, options
            )
        except RuntimeError as error:
            raise DependencyUnavailable(
                f"group {name}: not all {ranks} ranks met rank {rank} within {timeout_s:g} s: {error}"
            ) from error
        self._sending: deque[tuple[Any, torch.Tensor]] = deque()
        self._to_self: defaultdict[Channel, deque[Message]] = defaultdict(deque)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def ranks(self) -> int:
        return self._ranks

    def send(self, peer: int, channel: Channel, message: Message) -> None:
        if peer == self._rank:
            self._to_self[channel].append(message)
            return
        while self._sending and self._sending[0][0].is_completed():
            self._sending.popleft()
        header, body = pack(message)
        self._start(peer, channel, header)
        if body.numel():
            self._start(peer, channel, body)

    def receive(self, peer: int, channel: Channel) -> Message:
        if peer == self._rank:
            box = self._to_self[channel]
            if not box:
                raise InternalError(f"rank {peer} receives its own message on {channel.name} before it was sent")
            return box.popleft()
        header = torch.empty(HEADER_FIELDS, dtype=torch.int64)
        self._await(peer, channel, header)
        body = torch.empty(body_bytes(header), dtype=torch.uint8)
        if body.numel():
            self._await(peer, channel, body)
        return unpack(header, body)

    def close(self, within_s: float) -> None:
        """Let what was sent reach its peers, which fetch it when they receive, and leave the group."""
        give_up_s = time.monotonic() + within_s
        for work, _ in self._sending:
            with suppress(RuntimeError):  # a peer that is gone needs nothing any more
                work.wait(timedelta(seconds=max(0.001, give_up_s - time.monotonic())))
        self._sending.clear()
        self._group.shutdown()

    def _start(self, peer: int, channel: Channel, data: torch.Tensor) -> None:
        try:
            self._sending.append((self._group.send([data], peer, int(channel)), data))
        except RuntimeError as error:
            raise WorkerLost(f"rank {self._rank} cannot send to rank {peer} on {channel.name}: {error}") from error

    def _await(self, peer: int, channel: Channel, data: torch.Tensor) -> None:
        try:
            self._group.recv([data], peer, int(channel)).wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            raise WorkerLost(f"rank {self._rank} lost rank {peer} on {channel.name}: {error}") from error
