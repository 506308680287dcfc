import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.errors import InternalError, Overloaded
from common.kv.landing_arena import LandingArena, SlotCounts

SLOTS = 6


def test_slots_are_taken_ascending():
    arena = LandingArena(4)
    first = arena.take(2, "p")
    arena.take(1, "p")
    arena.finish(reversed(first))
    assert arena.take(3, "p") == [0, 1, 3]


def test_draining_slots_are_not_reused_before_their_handle_ends():
    arena = LandingArena(2)
    slots = arena.take(2, "p")
    arena.drain(slots)
    assert arena.draining("p") == 2
    with pytest.raises(Overloaded, match="0 of 2 free"):
        arena.take(1, "q")
    with pytest.raises(InternalError, match="slot 0 is draining, not landing"):
        arena.finish(slots)
    arena.drained(slots)
    with pytest.raises(InternalError, match="slot 0 is free, not draining"):
        arena.drained(slots)
    assert arena.counts() == SlotCounts(free=2, landing=0, draining=0, total=2)


def test_only_a_peer_that_holds_nothing_is_forgotten():
    arena = LandingArena(2)
    slots = arena.take(1, "p")
    with pytest.raises(InternalError, match="p still holds 1"):
        arena.forget("p")
    arena.finish(slots)
    arena.forget("p")
    arena.check()


class ArenaMachine(RuleBasedStateMachine):
    """Compared with three sets."""

    def __init__(self):
        super().__init__()
        self.arena = LandingArena(SLOTS)
        self.landing: dict[int, str] = {}
        self.draining: dict[int, str] = {}

    @rule(count=st.integers(0, SLOTS), peer=st.sampled_from("pq"))
    def take(self, count, peer):
        free = sorted(set(range(SLOTS)) - set(self.landing) - set(self.draining))
        if count > len(free):
            with pytest.raises(Overloaded):
                self.arena.take(count, peer)
        else:
            taken = self.arena.take(count, peer)
            assert taken == free[:count]
            self.landing |= dict.fromkeys(taken, peer)

    @precondition(lambda self: self.landing)
    @rule(data=st.data(), drain=st.booleans())
    def end_landing(self, data, drain):
        slots = data.draw(st.lists(st.sampled_from(sorted(self.landing)), unique=True))
        (self.arena.drain if drain else self.arena.finish)(slots)
        for slot in slots:
            peer = self.landing.pop(slot)
            if drain:
                self.draining[slot] = peer

    @precondition(lambda self: self.draining)
    @rule(data=st.data())
    def end_draining(self, data):
        slots = data.draw(st.lists(st.sampled_from(sorted(self.draining)), unique=True))
        self.arena.drained(slots)
        for slot in slots:
            del self.draining[slot]

    @rule(slot=st.integers(0, SLOTS - 1), move=st.sampled_from(["finish", "drain", "drained"]))
    def illegal_moves_are_refused(self, slot, move):
        legal = self.draining if move == "drained" else self.landing
        if slot not in legal:
            with pytest.raises(InternalError):
                getattr(self.arena, move)([slot])

    @invariant()
    def books_agree(self):
        self.arena.check()
        free = SLOTS - len(self.landing) - len(self.draining)
        assert self.arena.counts() == SlotCounts(free, len(self.landing), len(self.draining), SLOTS)
        for peer in "pq":
            draining = sum(owner == peer for owner in self.draining.values())
            assert self.arena.draining(peer) == draining
            assert self.arena.held(peer) == draining + sum(owner == peer for owner in self.landing.values())


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
