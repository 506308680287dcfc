"""The group protocol under every interleaving of three ranks, and that the search finds the mistakes one could make."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from common.errors import ConfigError, InternalError
from common.parallel.lock_step import LockStep, Move, SchedulePolicy
from common.parallel.schedule import Schedule

POLICY = SchedulePolicy(dual_microbatch_from=2)
RANKS = 3


@dataclass(frozen=True)
class Rank:
    """One rank between two atomic actions.

    Attributes:
        waiting: sequences it has not begun. running: steps its running sequences still need, one entry each.
        sent: the count it announced in the step it is in; None between steps.
    """

    place: LockStep
    waiting: int = 0
    running: tuple[int, ...] = ()
    sent: int | None = None


@dataclass(frozen=True)
class World:
    """Everything that matters: ranks, raised flags, counts sent (step, rank), arrivals still to come, work done."""

    ranks: tuple[Rank, ...]
    flags: frozenset[int] = frozenset()
    counts: frozenset[tuple[int, int, int]] = frozenset()
    schedules: frozenset[tuple[int, Schedule]] = frozenset()
    arrivals: int = 0
    done: int = 0


class Violation(AssertionError):
    pass


def explore(arrivals: int, steps_each: int, start: Callable[[int], LockStep] = lambda rank: LockStep()) -> int:
    """Visit every state reachable from a parked group; the number of states.

    Raises:
        Violation: a deadlock, ranks that disagree on a step's schedule or stand apart, or work that is lost.
    """
    first = World(tuple(Rank(start(rank)) for rank in range(RANKS)), arrivals=arrivals)
    seen = {first}
    frontier = [first]
    while frontier:
        world = frontier.pop()
        following = [w for rank in range(RANKS) for w in actions(world, rank, steps_each)]
        if not following:
            check_end(world, arrivals)
        for w in following:
            check(w, most_steps=arrivals * (steps_each + 1))
            if w not in seen:
                seen.add(w)
                frontier.append(w)
    return len(seen)


def actions(world: World, index: int, steps_each: int) -> list[World]:
    """What rank `index` could do next, each an atomic action."""
    rank = world.ranks[index]
    out = []
    if world.arrivals:
        out.append(replace(put(world, index, replace(rank, waiting=rank.waiting + 1)), arrivals=world.arrivals - 1))
    if rank.sent is None:
        has_work = bool(rank.waiting or rank.running)
        move = rank.place.move(has_work=has_work, flag_raised=rank.place.step in world.flags)
        if move is Move.RAISE_FLAG:
            out.append(replace(world, flags=world.flags | {rank.place.step}))
        elif move is Move.RUN:
            out.append(begin(world, index, steps_each))
    elif received(world, index):
        out.append(end(world, index))
    return out


def begin(world: World, index: int, steps_each: int) -> World:
    """Take waiting sequences into the step and send this rank's count for the next."""
    rank = world.ranks[index]
    running = rank.running + (steps_each,) * rank.waiting
    place = rank.place.running()
    count = sum(1 for left in running if left > 1)
    world = put(world, index, Rank(place, 0, running, count))
    return replace(
        world,
        counts=world.counts | {(place.step, index, count)},
        schedules=world.schedules | {(place.step, place.schedule)},
    )


def received(world: World, index: int) -> bool:
    """Whether the step's exchange is complete for this rank: it needs every rank to have sent."""
    return sum(1 for step, _, _ in world.counts if step == world.ranks[index].place.step) == RANKS


def end(world: World, index: int) -> World:
    rank = world.ranks[index]
    counts = tuple(count for step, _, count in sorted(world.counts) if step == rank.place.step)
    left = tuple(steps - 1 for steps in rank.running if steps > 1)
    done = len(rank.running) - len(left)
    moved = Rank(rank.place.after_step(counts, POLICY), rank.waiting, left, None)
    return replace(put(world, index, moved), done=world.done + done)


def put(world: World, index: int, rank: Rank) -> World:
    return replace(world, ranks=(*world.ranks[:index], rank, *world.ranks[index + 1 :]))


def check(world: World, most_steps: int) -> None:
    steps = [rank.place.step for rank in world.ranks]
    if max(steps) > most_steps:
        raise Violation(f"steps go on without work: {steps}")
    if max(steps) - min(steps) > 1:
        raise Violation(f"ranks stand apart: {steps}")
    chosen = [step for step, _ in world.schedules]
    if len(set(chosen)) != len(chosen):
        raise Violation(f"two schedules for one step: {sorted(chosen)}")


def check_end(world: World, arrivals: int) -> None:
    if any(rank.sent is not None or not rank.place.parked for rank in world.ranks):
        raise Violation(f"deadlock: {world.ranks}")
    if len({rank.place.step for rank in world.ranks}) != 1:
        raise Violation(f"parked before different steps: {world.ranks}")
    if world.done != arrivals:
        raise Violation(f"{arrivals - world.done} pieces of work lost: {world.ranks}")


@pytest.mark.parametrize(("arrivals", "steps_each"), [(0, 1), (1, 3), (2, 2), (3, 1), (3, 2)])
def test_no_interleaving_of_three_ranks_goes_wrong(arrivals: int, steps_each: int) -> None:
    states = explore(arrivals, steps_each)
    assert states == 1 if arrivals == 0 else states > 50


@dataclass(frozen=True)
class OwnCountOnly(LockStep):
    """Parks when this rank's own announced count is zero, as if others did not need its experts."""

    rank: int = 0

    def after_step(self, counts: tuple[int, ...], policy: SchedulePolicy) -> LockStep:
        return replace(self, step=self.step + 1, parked=counts[self.rank] == 0)


@dataclass(frozen=True)
class AnyFlag(LockStep):
    """Takes a flag of an earlier park for its own: leaves once any flag was ever raised."""

    def move(self, *, has_work: bool, flag_raised: bool) -> Move:
        return super().move(has_work=has_work, flag_raised=flag_raised or (self.step > 0 and not has_work))

    def after_step(self, counts: tuple[int, ...], policy: SchedulePolicy) -> LockStep:
        after = super().after_step(counts, policy)
        return replace(self, step=after.step, schedule=after.schedule, parked=after.parked)


@dataclass(frozen=True)
class NeverWakes(LockStep):
    """Runs alone when it has work, without waking the others."""

    def move(self, *, has_work: bool, flag_raised: bool) -> Move:
        return Move.RUN if has_work else super().move(has_work=False, flag_raised=flag_raised)


@dataclass(frozen=True)
class OwnSchedule(LockStep):
    """Chooses the next schedule from its own count instead of all ranks'."""

    rank: int = 0

    def after_step(self, counts: tuple[int, ...], policy: SchedulePolicy) -> LockStep:
        after = super().after_step(counts, policy)
        schedule = after.schedule if after.parked else policy.choose((counts[self.rank],))
        return replace(self, step=after.step, schedule=schedule, parked=after.parked)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (lambda rank: OwnCountOnly(rank=rank), "deadlock"),
        (lambda rank: AnyFlag(), "steps go on without work"),
        (lambda rank: NeverWakes(), "deadlock"),
        (lambda rank: OwnSchedule(rank=rank), "two schedules for one step"),
    ],
    ids=["parks by its own count", "takes any flag", "wakes nobody", "chooses by its own count"],
)
def test_the_search_finds_mistakes(wrong: Callable[[int], LockStep], found: str) -> None:
    with pytest.raises(Violation, match=found):
        explore(2, 3, wrong)


def test_the_first_step_after_a_park_runs_in_mode_none() -> None:
    place = LockStep().running()
    assert place.schedule is Schedule.NONE
    place = place.after_step((2, 0, 0), POLICY)
    assert (place.step, place.schedule, place.parked) == (1, Schedule.DUAL_MICROBATCH, False)
    place = place.after_step((0, 0, 0), POLICY)
    assert (place.step, place.schedule, place.parked) == (2, Schedule.NONE, True)


def test_a_flag_of_another_park_says_nothing() -> None:
    parked = LockStep(step=5)
    assert parked.move(has_work=False, flag_raised=False) is Move.WAIT
    assert parked.move(has_work=True, flag_raised=False) is Move.RAISE_FLAG
    assert parked.move(has_work=True, flag_raised=True) is Move.RUN


@pytest.mark.parametrize(
    ("counts", "schedule"),
    [
        ((1, 0, 0), Schedule.DISPATCH_OVERLAP),
        ((1, 1, 1), Schedule.DISPATCH_OVERLAP),
        ((0, 0, 2), Schedule.DUAL_MICROBATCH),
    ],
)
def test_the_busiest_rank_decides(counts: tuple[int, ...], schedule: Schedule) -> None:
    assert POLICY.choose(counts) is schedule
    assert SchedulePolicy(9, overlap=False).choose(counts) is Schedule.NONE


def test_broken_use_is_found() -> None:
    with pytest.raises(InternalError, match="while parked"):
        LockStep().after_step((0,), POLICY)
    with pytest.raises(InternalError, match="without counts"):
        LockStep().running().after_step((), POLICY)
    with pytest.raises(ConfigError, match="dual_microbatch_from = 1"):
        SchedulePolicy(1)
