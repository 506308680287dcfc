"""Open-loop overload on counted time: who is taken gets a first token in time, who is not hears so at once."""

import asyncio
import random
from dataclasses import dataclass, field
from math import inf

import pytest

from common.engine.events import EngineLoad
from common.errors import Overloaded
from common.rpc.worker_data import InstanceDescription
from services.scheduler.fleet import Fleet, InstanceState
from services.scheduler.placement import PlacementPolicy, place_prefill
from services.scheduler.settings import AdmissionPolicy, SchedulerSettings
from services.scheduler.turns import Turns
from tests.fakes.virtual_time import LoopClock, run_counted
from tests.fakes.workers import COMPATIBILITY

RATE = 1000.0  # tokens a second that a prefill instance computes
PROMPT = (200, 1800)  # tokens, evenly spread
DECODE_S = 3.0
BOUND_S = 10.0  # `max_wait_s`
OVERLOAD_S = 60.0


@dataclass
class Prefill:
    """Computes in order of arrival."""

    name: str
    true_rate: float
    free_at_s: float = 0.0
    queued: dict[int, int] = field(default_factory=dict)

    async def compute(self, number, tokens):
        loop = asyncio.get_running_loop()
        self.queued[number] = tokens
        self.free_at_s = max(self.free_at_s, loop.time()) + tokens / self.true_rate
        await asyncio.sleep(self.free_at_s - loop.time())
        del self.queued[number]


@dataclass
class Outcome:
    arrived_s: float
    tokens: int
    first_token_s: float = 0.0  # after arrival; 0: shed
    shed_s: float = 0.0  # after arrival
    hint_s: float = 0.0


class Replica:
    def __init__(self, prefills, seats, said_rate):
        settings = SchedulerSettings("s", admission=AdmissionPolicy(max_wait_s=BOUND_S))
        self.clock, self.prefills, self.said_rate = LoopClock(), prefills, said_rate
        self.fleet = Fleet(self.clock, settings)
        self.turns = Turns(self.clock, self.fleet, settings.admission)
        for name, role in [*((one.name, "prefill") for one in prefills), ("d", "decode")]:
            known = self.fleet.add(name, role, "")
            known.description = InstanceDescription(name, role, name, 1, COMPATIBILITY, 10**6, 10**6, seats)
            self.fleet.set_state(name, InstanceState.READY)

    async def report(self, decoding):
        while True:
            for one in self.prefills:
                queued = sum(one.queued.values())
                load = EngineLoad(queued, len(one.queued), 0, 0, 10**6, 10**6, 0.1, self.said_rate)
                self.fleet.report(one.name, 1, load)
            self.fleet.report("d", 1, EngineLoad(0, 0, len(decoding), 0, 10**6, 10**6, 0.1))
            await asyncio.sleep(0.25)

    async def serve(self, number, outcome, decoding):
        begun_s, work = self.clock.now_s(), str(number)
        try:
            turn = await self.turns.take("", 0, outcome.tokens, 1, None)
        except Overloaded as error:
            outcome.shed_s, outcome.hint_s = self.clock.now_s() - begun_s, error.retry_after_s
            return
        try:
            chosen = place_prefill(outcome.tokens, self.fleet.prefill_states(), {}, 0.0, PlacementPolicy()).chosen
            self.fleet.book(chosen, work, outcome.tokens)
            self.fleet.expect(work)
            self.turns.placed(turn)
            await next(one for one in self.prefills if one.name == chosen).compute(number, outcome.tokens)
            self.fleet.close(chosen, work)
            outcome.first_token_s = self.clock.now_s() - begun_s
            self.fleet.arrived(work)
            self.fleet.book("d", work, outcome.tokens)
            decoding.add(number)
            await asyncio.sleep(DECODE_S)
            decoding.discard(number)
            self.fleet.close("d", work)
        finally:
            self.turns.leave(turn)


async def overload(load, *, replicas=1, instances=2, seats=10_000, said=1.0):
    """Requests at `load` times what the pool computes, for a minute; then at half of it until all is over."""
    draw, decoding = random.Random(7), set()
    prefills = [Prefill(f"p{i}", RATE) for i in range(instances)]
    fronts = [Replica(prefills, seats, RATE * said) for _ in range(replicas)]
    reports = [asyncio.create_task(one.report(decoding)) for one in fronts]
    loop, outcomes, serving = asyncio.get_running_loop(), [], []
    capacity = min(instances * RATE / (sum(PROMPT) / 2), seats / DECODE_S)
    while (now_s := loop.time()) < 1.5 * OVERLOAD_S:
        outcomes.append(Outcome(now_s, draw.randint(*PROMPT)))
        front = fronts[draw.randrange(replicas)]
        serving.append(asyncio.create_task(front.serve(len(outcomes), outcomes[-1], decoding)))
        await asyncio.sleep(draw.expovariate(capacity * (load if now_s < OVERLOAD_S else 0.5)))
    await asyncio.gather(*serving)
    for task in reports:
        task.cancel()
    return outcomes


@dataclass(frozen=True)
class Scene:
    """What is wrong, and how much later than the bound the worst first token may come for it."""

    change: dict[str, object]
    late_s: float = 0.0


OWN_S = PROMPT[1] / RATE  # to compute the longest prompt
SCENES = {
    "rates are right": Scene({}),
    "one instance": Scene({"instances": 1}),
    "the pool is half as fast as it says": Scene({"said": 2.0}, late_s=8.0),  # so much is given to it in advance
    "four replicas share the pool": Scene({"replicas": 4}, late_s=12.0),  # none sees what the others just gave it
}


@pytest.mark.parametrize("load", [3.0, 4.0])
@pytest.mark.parametrize("name", SCENES)
def test_who_is_taken_is_served_in_time_and_the_others_hear_at_once(name, load):
    scene = SCENES[name]
    outcomes = run_counted(overload(load, **scene.change))
    shed = [one for one in outcomes if not one.first_token_s]
    assert len(shed) > 0.4 * len(outcomes)
    assert max(one.shed_s for one in shed) <= 0.1
    assert min(one.hint_s for one in shed) >= BOUND_S  # all that stands before it is still longer than that
    assert max(one.hint_s for one in shed) <= 2 * BOUND_S + scene.late_s
    assert max(one.first_token_s for one in outcomes) <= BOUND_S + OWN_S + scene.late_s
    computed = sum(one.tokens for one in outcomes if one.first_token_s and one.arrived_s < OVERLOAD_S)
    assert computed >= 0.9 * scene.change.get("instances", 2) * RATE * OVERLOAD_S
    assert all(one.first_token_s for one in outcomes if one.arrived_s > OVERLOAD_S + 15.0)


async def give_up_then_wait():
    """A turn that is given up leaves nobody waiting; ten minutes later the wait of the next one is as if new."""
    replica = Replica([Prefill("p0", RATE)], 1, RATE)
    turns, fleet = replica.turns, replica.fleet
    first = await turns.take("", 0, 100, 1, None)
    fleet.book("d", "1", 100)
    turns.placed(first)
    for pause_s in (600.0, 0.0):
        waiting = asyncio.create_task(turns.take("", 0, 100, 1, None))
        await asyncio.sleep(5.0)
        assert turns.waiting == 1
        if pause_s:
            fleet.close("d", "1")
            turns.leave(first)
            first = await waiting
            fleet.book("d", "1", 100)
            turns.placed(first)
            gone = asyncio.create_task(turns.take("", 0, 100, 1, None))
            await asyncio.sleep(1.0)
            gone.cancel()
            await asyncio.wait({gone})
        await asyncio.sleep(pause_s)
    return turns._pace.tokens_per_s


def test_who_gave_up_waiting_says_nothing_of_the_pace():
    assert run_counted(give_up_then_wait()) == inf


@pytest.mark.parametrize("load", [3.0, 4.0])
def test_seats_at_decode_bound_the_wait_as_well(load):
    outcomes = run_counted(overload(load, seats=4))
    served = [one for one in outcomes if one.first_token_s]
    assert max(one.first_token_s for one in served) <= BOUND_S + 2 * OWN_S
    known = [one for one in outcomes if not one.first_token_s and one.arrived_s > 3 * DECODE_S]
    assert sum(one.shed_s > 0.1 for one in known) <= 0.02 * len(outcomes)  # whose turn was a moment off
    assert len(served) >= 0.9 * OVERLOAD_S * 4 / (DECODE_S + 1.0)
    assert all(one.first_token_s for one in outcomes if one.arrived_s > OVERLOAD_S + 15.0)
