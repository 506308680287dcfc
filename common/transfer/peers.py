"""The peers a reader has agents for. Connecting takes about half a second and happens on a thread of its own."""

import threading
from collections.abc import Callable

from common.errors import TransferError
from common.request import TransferHello
from common.transfer.agent import PeerAgent, Segment
from common.transfer.memory import MemoryRegion

_WARM_BYTES = 64


def peer_key(peer: str, incarnation: int) -> str:
    """One incarnation of a peer; a restarted peer is another."""
    return f"{peer}@{incarnation:x}"


class Peers:
    """Agents by peer key. All calls come from the owner's thread; so does `connected`, through `post`.

    Args:
        name: prefix of the agents' names, unique among all readers of a source.
        arena: the memory that reads land in; its last block takes first reads, whose content nobody uses.
        connect_s: how long a first read may take.
        post: runs a callable on the owner's thread.
        connected: told the outcome of each connection: its key and None or the error.
    """

    def __init__(
        self,
        name: str,
        arena: MemoryRegion,
        connect_s: float,
        post: Callable[[Callable[[], None]], None],
        connected: Callable[[str, TransferError | None], None],
    ) -> None:
        self._name = name
        self._arena = arena
        self._connect_s = connect_s
        self._post = post
        self._connected = connected
        self._agents: dict[str, PeerAgent] = {}
        self._connecting: dict[str, threading.Thread] = {}
        self._attempts = 0

    def agent(self, key: str) -> PeerAgent | None:
        """The peer's agent once it is connected."""
        return self._agents.get(key)

    def connect(self, key: str, hello: TransferHello) -> None:
        """Begin to connect unless that is done or under way."""
        if key in self._agents or key in self._connecting:
            return
        self._attempts += 1
        name = f"{self._name}>{key}#{self._attempts}"
        thread = threading.Thread(target=self._attempt, args=(key, name, hello), name=f"connect {key}")
        self._connecting[key] = thread
        thread.start()

    def drop(self, key: str) -> None:
        """Destroy the peer's agent; a later `connect` makes another."""
        agent = self._agents.pop(key, None)
        if agent is not None:
            agent.close()

    def join(self) -> None:
        """Wait until attempts under way have ended; their outcomes are posted."""
        for thread in self._connecting.values():
            thread.join()

    def close(self) -> None:
        """Destroy all agents."""
        for key in list(self._agents):
            self.drop(key)

    def _attempt(self, key: str, name: str, hello: TransferHello) -> None:
        agent: PeerAgent | None = None
        error: TransferError | None = None
        try:
            agent = PeerAgent(name, self._arena, hello.agent_metadata, hello.memory, hello.device)
            warm_address = self._arena.address + self._arena.length_bytes - _WARM_BYTES
            agent.warm(Segment(warm_address, hello.pool_address, _WARM_BYTES), self._connect_s)
        except TransferError as failed:
            if agent is not None:
                agent.close()
            agent, error = None, failed
        self._post(lambda: self._attempted(key, agent, error))

    def _attempted(self, key: str, agent: PeerAgent | None, error: TransferError | None) -> None:
        del self._connecting[key]
        if agent is not None:
            self._agents[key] = agent
        self._connected(key, error)
