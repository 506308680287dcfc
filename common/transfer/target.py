"""What a reader is asked for, and whom it tells how that ended."""

from dataclasses import dataclass
from typing import Protocol

from common.errors import TransferError
from common.request import Handoff, TransferHello


class TransferOutcome(Protocol):
    """Told on the reader's thread how transfers end. Each transfer ends by `landed` or `failed`, or was aborted.

    After any of the three calls the reader touches the transfer's pool blocks no more.
    """

    def landed(self, work_id: str, handoff: Handoff, exposed_transfer_s: float) -> None: ...
    def failed(self, work_id: str, error: TransferError) -> None: ...
    def stopped(self, work_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class TransferTarget:
    """Where a transfer goes.

    Args:
        work_id: whose latent it is.
        peer: the source's instance name.
        hello: what the source said of itself.
        first_block: blocks of the sequence before this one are not read.
        blocks: pool blocks by index in the sequence, at least `hello.blocks` of them.
        chain_hashes: of the sequence's full blocks, computed from its tokens and not taken from the peer.
        deadline_s: on the monotonic clock.
    """

    work_id: str
    peer: str
    hello: TransferHello
    first_block: int
    blocks: tuple[int, ...]
    chain_hashes: tuple[bytes, ...]
    deadline_s: float
