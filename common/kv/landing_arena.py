"""Slots that remote reads land in. Late data can reach these and nothing else.

A slot whose read nobody wants any more drains: it is not reused before its handle has ended.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from common.errors import InternalError, Overloaded
from common.kv.block_states import SlotState, check_slot_move


@dataclass(frozen=True, slots=True)
class SlotCounts:
    free: int
    landing: int
    draining: int
    total: int


class LandingArena:
    """Bookkeeping of `total_slots` slots of one block each; memory is the reader's."""

    def __init__(self, total_slots: int) -> None:
        self._states = [SlotState.FREE] * total_slots
        self._peers: list[str | None] = [None] * total_slots
        self._free = list(range(total_slots))
        self._landing: Counter[str] = Counter()
        self._draining: Counter[str] = Counter()

    def take(self, slots: int, peer: str) -> list[int]:
        """Take the lowest free slots, ascending, so that neighbours in memory fill together.

        Raises:
            Overloaded: fewer are free; nothing was taken.
        """
        if slots > len(self._free):
            raise Overloaded(f"{slots} landing slots wanted, {len(self._free)} of {len(self._states)} free", 0.01)
        taken = [heapq.heappop(self._free) for _ in range(slots)]
        for slot in taken:
            self._move(slot, SlotState.LANDING)
            self._peers[slot] = peer
        self._landing[peer] += slots
        return taken

    def finish(self, slots: Iterable[int]) -> None:
        """The read ended and its data was copied out, or was not wanted after all."""
        for slot in slots:
            self._require(slot, SlotState.LANDING)
            self._landing[self._peer(slot)] -= 1
            self._free_slot(slot)

    def drain(self, slots: Iterable[int]) -> None:
        """The data is not wanted any more while the read goes on."""
        for slot in slots:
            self._move(slot, SlotState.DRAINING)
            self._landing[self._peer(slot)] -= 1
            self._draining[self._peer(slot)] += 1

    def drained(self, slots: Iterable[int]) -> None:
        """The handle of an unwanted read ended."""
        for slot in slots:
            self._require(slot, SlotState.DRAINING)
            self._draining[self._peer(slot)] -= 1
            self._free_slot(slot)

    def draining(self, peer: str) -> int:
        """Slots that wait for reads from `peer` to end."""
        return self._draining[peer]

    def held(self, peer: str) -> int:
        """Slots that reads from `peer` keep from others, landing or draining."""
        return self._landing[peer] + self._draining[peer]

    def forget(self, peer: str) -> None:
        """Drop the books of a peer that holds nothing."""
        if self.held(peer):
            raise InternalError(f"{peer} still holds {self.held(peer)} landing slots")
        self._landing.pop(peer, None)
        self._draining.pop(peer, None)

    def state(self, slot: int) -> SlotState:
        return self._states[slot]

    def counts(self) -> SlotCounts:
        return SlotCounts(len(self._free), self._landing.total(), self._draining.total(), len(self._states))

    def check(self) -> None:
        """Raise InternalError unless the states, counted afresh, agree with the books and sum to the total."""
        fresh = Counter(self._states)
        found = SlotCounts(
            fresh[SlotState.FREE], fresh[SlotState.LANDING], fresh[SlotState.DRAINING], sum(fresh.values())
        )
        held = zip(self._states, self._peers, strict=True)
        per_peer = Counter((state, peer) for state, peer in held if state is not SlotState.FREE)
        books = Counter({(SlotState.LANDING, peer): slots for peer, slots in self._landing.items()})
        books.update({(SlotState.DRAINING, peer): slots for peer, slots in self._draining.items()})
        free_are_free = {slot for slot, state in enumerate(self._states) if state is SlotState.FREE} == set(self._free)
        if found != self.counts() or per_peer != books or not free_are_free:
            raise InternalError(f"landing arena books {self.counts()} disagree with its slots {found}")

    def _peer(self, slot: int) -> str:
        peer = self._peers[slot]
        if peer is None:
            raise InternalError(f"slot {slot} has no peer")
        return peer

    def _free_slot(self, slot: int) -> None:
        self._move(slot, SlotState.FREE)
        self._peers[slot] = None
        heapq.heappush(self._free, slot)

    def _require(self, slot: int, expected: SlotState) -> None:
        if self._states[slot] is not expected:
            raise InternalError(f"slot {slot} is {self._states[slot].value}, not {expected.value}")

    def _move(self, slot: int, after: SlotState) -> None:
        check_slot_move(slot, self._states[slot], after)
        self._states[slot] = after
