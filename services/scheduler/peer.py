"""One instance that this replica is connected to."""

import asyncio
from dataclasses import dataclass, field

from common.rpc.clients import DecodeClient, PrefillClient
from common.state.worker_leases import WorkerRecord
from services.scheduler.decode_stream import DecodeStream


@dataclass(slots=True)
class Vigil:
    """What an instance's watcher remembers between two looks."""

    silent_since_s: float | None = None  # its health call fails since
    fenced: bool = False
    refused: str = ""  # why it may not join


@dataclass(slots=True, eq=False)
class PrefillPeer:
    """`lost` is replaced at each fence: who waits on the old one learns that the instance's work is gone."""

    known: WorkerRecord
    client: PrefillClient
    poke: asyncio.Event = field(default_factory=asyncio.Event)  # look after it now
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    vigil: Vigil = field(default_factory=Vigil)

    def fence(self, _why: str) -> None:
        self.lost.set()
        self.lost = asyncio.Event()


@dataclass(slots=True, eq=False)
class DecodePeer:
    known: WorkerRecord
    client: DecodeClient
    stream: DecodeStream
    poke: asyncio.Event = field(default_factory=asyncio.Event)
    vigil: Vigil = field(default_factory=Vigil)

    def fence(self, why: str) -> None:
        self.stream.fence(why)


Peer = PrefillPeer | DecodePeer
