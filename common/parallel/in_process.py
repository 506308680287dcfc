"""Any number of ranks in one process, which `common.parallel.waits.run_together` advances in turn."""

from collections import defaultdict, deque

from common.errors import InternalError
from common.parallel.transport import Channel, Message


class InProcessTransport:
    """One rank's end of shared mailboxes. A receive before its send is a broken protocol, never a wait."""

    def __init__(self, rank: int, ranks: int, boxes: defaultdict[tuple[int, int, Channel], deque[Message]]) -> None:
        self._rank, self._ranks, self._boxes = rank, ranks, boxes

    @classmethod
    def group(cls, ranks: int) -> list["InProcessTransport"]:
        boxes: defaultdict[tuple[int, int, Channel], deque[Message]] = defaultdict(deque)
        return [cls(rank, ranks, boxes) for rank in range(ranks)]

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def ranks(self) -> int:
        return self._ranks

    def send(self, peer: int, channel: Channel, message: Message) -> None:
        self._boxes[self._rank, peer, channel].append(message)

    def receive(self, peer: int, channel: Channel) -> Message:
        box = self._boxes[peer, self._rank, channel]
        if not box:
            raise InternalError(f"rank {self._rank} receives on {channel.name} before rank {peer} has sent")
        return box.popleft()
