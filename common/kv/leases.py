"""Read leases: a prefill instance's promise to keep named blocks in place for one transfer.

A lease holds one pool reference on each of its blocks: the granter retains them in the pool, and gives back what
`release` and `expire` return. Only the granter's monotonic clock decides expiry; a reader that was too slow finds out
by the tag.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common.clock import Clock
from common.errors import InternalError


@dataclass(frozen=True, slots=True)
class Lease:
    """`expires_s` is on the granter's clock."""

    work_id: str
    blocks: tuple[int, ...]
    expires_s: float


class LeaseTable:
    """All leases of one instance. Times are absolute seconds of `clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._leases: dict[str, Lease] = {}

    def grant(self, work_id: str, blocks: Sequence[int], expires_s: float) -> Lease:
        """Record a lease. A work id is granted once in its life, so a second live grant is an InternalError."""
        if work_id in self._leases:
            raise InternalError(f"{work_id} already holds a lease")
        lease = Lease(work_id, tuple(blocks), expires_s)
        self._leases[work_id] = lease
        return lease

    def renew(self, work_id: str, expires_s: float) -> bool:
        """Move the expiry later, never earlier. False: the lease has ended, or has expired and awaits its sweep."""
        lease = self._leases.get(work_id)
        if lease is None or lease.expires_s <= self._clock.now_s():
            return False
        self._leases[work_id] = Lease(work_id, lease.blocks, max(lease.expires_s, expires_s))
        return True

    def release(self, work_id: str) -> list[int]:
        """End the lease and return the blocks whose references go back to the pool; empty when it had ended."""
        lease = self._leases.pop(work_id, None)
        return [] if lease is None else list(lease.blocks)

    def expire(self) -> list[Lease]:
        """End and return every lease whose time has passed; their blocks' references go back to the pool."""
        now_s = self._clock.now_s()
        expired = [lease for lease in self._leases.values() if lease.expires_s <= now_s]
        for lease in expired:
            del self._leases[lease.work_id]
        return expired

    def __contains__(self, work_id: object) -> bool:
        return work_id in self._leases

    def __len__(self) -> int:
        return len(self._leases)
