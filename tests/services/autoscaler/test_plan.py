"""The planner over load series: what it reaches, what it leaves alone, and what it never does."""

import itertools
import math
from dataclasses import replace

import pytest

from common.config.autoscaler import AutoscalerConfig
from services.autoscaler.demand import demand_of
from services.autoscaler.observation import GroupLoad, Observation, PoolObservation
from services.autoscaler.plan import Bounds, HoldGroup, Keep, SetGroups, plan
from services.autoscaler.plan_state import PlanState
from tests.services.autoscaler.world import World, stale

PATIENT = {"interval_s": 10.0, "hold_s": 30.0}  # fewer steps
CONFIG = AutoscalerConfig(**PATIENT)
IDLE_DECODE = PoolObservation((GroupLoad(0, 1, False, True, seats=10, total_blocks=10, free_blocks=10),), 1, 1, 8)


def steady(load):
    return lambda _now_s: load


def prefill(queued_tokens=0, busy=0.0, rate=1000.0, groups=2, **more):
    group = GroupLoad(0, 1, False, True, queued_tokens=queued_tokens, busy=busy, tokens_per_s=rate)
    return PoolObservation(tuple(replace(group, index=i) for i in range(groups)), groups, groups, 8, **more)


def decode(running=0, step_ms=10.0, used_blocks=0, groups=2, seats=10):
    group = GroupLoad(0, 1, False, True, running=running, seats=seats, total_blocks=100, free_blocks=100 - used_blocks)
    return PoolObservation(tuple(replace(group, index=i, step_ms=step_ms) for i in range(groups)), groups, groups, 8)


def test_prefill_needs_what_brings_the_first_token_in_time():
    seen = Observation(0.0, {"prefill": prefill(queued_tokens=2000)}, waiting_tokens=3000)
    demand = demand_of("prefill", seen, CONFIG)
    assert demand.predicted_s == (2000 * 2 + 3000) / 2000
    assert demand.groups == 2 * 3.5 / CONFIG.ttft_s
    assert demand_of("prefill", replace(seen, waiting_tokens=90_000), CONFIG).groups == 4  # twice what works
    within = demand_of("prefill", replace(seen, waiting_tokens=0, pools={"prefill": prefill(1000, busy=0.4)}), CONFIG)
    assert within.groups == pytest.approx(2 * 0.4 / 0.8)


def test_decode_needs_seats_blocks_and_steps_in_time():
    assert demand_of("decode", Observation(0.0, {"decode": decode(running=8)}), CONFIG).groups == pytest.approx(2.0)
    assert demand_of("decode", Observation(0.0, {"decode": decode(used_blocks=60)}), CONFIG).groups == pytest.approx(
        1.5
    )
    slow = demand_of("decode", Observation(0.0, {"decode": decode(step_ms=75.0)}), CONFIG)
    assert slow.groups == pytest.approx(3.0)
    assert "75.0 ms over 50 ms" in slow.reason


def test_what_waits_counts_where_it_is_stuck():
    full = Observation(0.0, {"prefill": prefill(), "decode": decode(running=10)}, 12, 9000)
    assert demand_of("decode", full, CONFIG).groups == pytest.approx(2 * 2)
    fewer = replace(full, waiting_requests=4)
    assert demand_of("decode", fewer, CONFIG).groups == pytest.approx(2 * 24 / 20 / 0.8)
    assert demand_of("prefill", full, CONFIG).groups == 0
    roomy = replace(full, pools={"prefill": prefill(), "decode": decode(running=5)})
    assert demand_of("decode", roomy, CONFIG).groups == pytest.approx(2 * 0.5 / 0.8)
    assert demand_of("prefill", roomy, CONFIG).predicted_s == 4.5


def test_step_up_and_down_again():
    world = World(CONFIG, lambda t: 3.0 if 300 < t < 2000 else 0.5, steady(0.5)).start(1, 1)
    world.run(300)
    assert world.changes == []
    world.run(1500)
    assert world.counts()[0] >= 4  # 3 / 0.8, and the queue that built up meanwhile
    assert world.counts()[1] == 1
    world.run(2000 + CONFIG.down_after_s - 20)
    assert world.counts()[0] == 4  # what the queue needed is given back, what the load needed is not
    world.run(8000)
    assert world.counts() == (1, 1)
    assert world.killed_work == 0
    downs = [at_s for at_s, role, _ in world.changes if role == "prefill" and at_s > 2000]
    assert all(later - earlier >= CONFIG.down_cooldown_s for earlier, later in itertools.pairwise(downs))


def test_decode_follows_whole_groups():
    world = World(CONFIG, steady(0.3), lambda t: 2.0 if t > 100 else 0.3).start(1, 1).run(1500)
    assert world.counts() == (1, 3)  # 2.0 / 0.8 = 2.5
    assert [groups for _, role, groups in world.changes if role == "decode"] == [2, 3]


@pytest.mark.parametrize("period_s", [25, 120, 400])
def test_a_swinging_load_does_not_flap(period_s):
    swing = lambda t: 1.5 + 0.7 * math.sin(2 * math.pi * t / period_s)  # noqa: E731
    world = World(CONFIG, swing, swing, start_s=20.0).start(2, 2).run(600)
    settled = len(world.changes)
    world.run(7200)
    assert world.changes[settled:] == []
    assert world.killed_work == 0


def test_minimum_and_maximum():
    world = World(CONFIG, steady(9.0), steady(9.0), {"prefill": Bounds(1, 3), "decode": Bounds(2, 4)}).start(1, 1)
    world.run(3000)
    assert world.counts() == (3, 4)
    assert world.changes[0] == (10.0, "decode", 2)  # at once
    world.bounds = {"prefill": Bounds(1, 2), "decode": Bounds(2, 4)}
    world.prefill_load = steady(0.1)
    world.run(6000)
    assert world.counts()[0] <= 2
    assert world.killed_work == 0


def test_a_group_with_work_is_never_taken():
    """Work that does not end: the drain is given up, and the group takes work again."""
    config = AutoscalerConfig(**PATIENT, drain_limit_s=600.0)
    world = World(config, steady(0.1), lambda t: 2.0 if t < 200 else 0.2).start(1, 3)
    world.pools["decode"][2].endless = 1.0
    world.run(4000)
    assert world.killed_work == 0
    assert world.counts()[1] == 3
    held = [any(isinstance(one, HoldGroup) for one in made.decisions) for made in world.plans]
    assert any(held)
    assert any("not idle within" in one.reason for made in world.plans for one in made.decisions)
    assert not all(held[-200:])


def test_the_load_comes_back_during_a_drain():
    world = World(CONFIG, steady(0.1), lambda t: 2.0 if t < 100 or t > 860 else 0.2, residence_s=300.0).start(1, 3)
    world.run(3000)
    assert any("came back" in one.reason for made in world.plans for one in made.decisions)
    assert world.counts()[1] == 3
    assert world.killed_work == 0


def test_stale_data_takes_nothing_away():
    world = World(CONFIG, steady(0.1), steady(0.1)).start(3, 3)
    world.change = lambda _now_s, seen: stale(seen, "prefill")
    world.run(5000)
    assert world.counts() == (3, 1)
    world.change = lambda _now_s, seen: replace(seen, complete=False)
    world.run(10000)
    assert world.counts() == (3, 1)
    assert any("not everything was freshly seen" in one.reason for one in world.plans[-1].decisions)


def test_stale_data_in_the_middle_of_a_drain_waits():
    world = World(CONFIG, steady(0.1), steady(0.1)).start(1, 2)
    while not any(isinstance(one, HoldGroup) for one in (world.plans[-1].decisions if world.plans else ())):
        world.step()
    world.change = lambda _now_s, seen: stale(seen, "decode")
    world.run(world.now_s + 300)
    assert world.counts()[1] == 2
    world.change = lambda _now_s, seen: seen
    world.run(world.now_s + 300)
    assert world.counts()[1] == 1


def test_disruption_budgets_hold():
    world = World(CONFIG, steady(0.1), steady(0.1)).start(4, 4)

    def budget(_now_s, seen):
        pools = dict(seen.pools)
        pools["prefill"] = replace(pools["prefill"], disruption_floor=3)
        pools["decode"] = replace(pools["decode"], disruptions_allowed=False)
        return replace(seen, pools=pools)

    world.change = budget
    world.run(8000)
    assert world.counts() == (3, 4)
    assert {one.reason.split(", but ")[1] for one in world.plans[-1].decisions} == {
        "3 groups are the least",
        "the disruption budget is spent",
    }


def test_a_dead_group_elsewhere_stops_the_shrinking():
    world = World(CONFIG, steady(0.1), steady(0.1)).start(1, 3)

    def without_group_0(_now_s, seen):
        pool = seen.pools["decode"]
        return replace(seen, pools={**seen.pools, "decode": replace(pool, groups=pool.groups[1:], ready_replicas=2)})

    world.change = without_group_0
    world.run(3000)
    assert world.counts()[1] == 3


def test_groups_that_never_came_up_are_taken_back():
    world = World(CONFIG, steady(0.1), lambda t: 0.9 if t < 400 else 0.1, start_s=1e9).start(1, 1).run(3000)
    assert [groups for _, role, groups in world.changes if role == "decode"] == [2, 1]


def test_growth_waits_for_groups_that_are_loading():
    world = World(CONFIG, steady(5.0), steady(0.1), start_s=2700.0).start(1, 1).run(2600)
    assert world.counts()[0] == 2  # twice what works; no stampede while weights load
    world.run(6000)
    assert world.counts()[0] >= 4


def test_the_ratio_moves_within_the_budget_and_stays():
    config = AutoscalerConfig(**PATIENT, gpus_limit=48)
    world = World(config, steady(1.3), lambda t: 3.0 if t > 100 else 1.0).start(4, 2).run(900)
    assert world.counts() == (2, 4)  # decode needs 3.75, prefill 1.625; before prefill proved to need less for long
    world.run(3000)
    assert world.counts() == (2, 4)
    assert sum(world.counts()) * 8 <= 48
    assert any("needed more by the other pool" in one.reason for made in world.plans for one in made.decisions)
    assert world.killed_work == 0
    world.run(9000)
    assert world.counts()[1] == 4


def test_the_ratio_moves_between_groups_of_different_size():
    config = AutoscalerConfig(**PATIENT, gpus_limit=64)
    world = World(config, steady(1.3), steady(2.5), gpus={"prefill": 8, "decode": 16}).start(4, 2).run(2500)
    assert world.counts() == (2, 3)
    assert world.killed_work == 0


def test_the_ratio_does_not_flap_when_both_lack():
    config = AutoscalerConfig(**PATIENT, gpus_limit=48, shift_cooldown_s=60.0, down_after_s=120.0)
    swing = lambda t: 2.6 + 0.3 * math.sin(t / 50)  # noqa: E731
    opposite = lambda t: 2.6 - 0.3 * math.sin(t / 50)  # noqa: E731
    world = World(config, swing, opposite).start(3, 3).run(7200)
    assert world.changes == []
    overload = World(config, lambda t: 0.6 + swing(t), lambda t: 0.6 + opposite(t)).start(3, 3).run(7200)
    assert [role for _, role, _ in overload.changes] == []
    assert overload.killed_work == 0


def test_a_pool_that_somebody_else_scales_is_seen_as_it_is():
    seen = Observation(0.0, {"prefill": prefill(groups=2), "decode": IDLE_DECODE})
    bounds = {"prefill": Bounds(1, 4), "decode": Bounds(1, 4)}
    state = PlanState()
    for second in range(0, 700, 5):
        made = plan(replace(seen, now_s=float(second)), state, bounds, CONFIG)
        state = made.state
    assert isinstance(made.decisions[0], HoldGroup)
    more = replace(seen, now_s=705.0, pools={**seen.pools, "prefill": prefill(groups=3)})
    made = plan(more, state, bounds, CONFIG)
    assert made.decisions[0] == Keep("prefill", "drain given up: group 1 is not the last any more")


def test_nothing_is_known_without_a_working_group():
    empty = PoolObservation((), 1, 0, 8)
    made = plan(
        Observation(0.0, {"prefill": empty, "decode": empty}),
        PlanState(),
        {"prefill": Bounds(1, 4), "decode": Bounds(2, 4)},
        CONFIG,
    )
    assert made.decisions == (
        Keep("prefill", "nothing is known of its load"),
        SetGroups("decode", 2, "1 groups, at least 2 are wanted"),
    )
    assert made.demands == {}
