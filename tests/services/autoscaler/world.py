"""A small closed world for the planner: offered load in, groups that load, work, empty and vanish, observations out."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from common.config.autoscaler import AutoscalerConfig
from services.autoscaler.observation import GroupLoad, Observation, PoolObservation
from services.autoscaler.plan import Bounds, HoldGroup, Plan, SetGroups, plan
from services.autoscaler.plan_state import PlanState

RATE = 10_000.0  # prompt tokens a second of one prefill group
SEATS = 100
BLOCKS = 1000
MAX_WAIT_S = 30.0


@dataclass
class Group:
    index: int
    ready_s: float
    held: bool = False
    tokens: float = 0.0  # prefill: queued
    running: float = 0.0  # decode: sequences
    busy: float = 0.0
    endless: float = 0.0  # decode: sequences that do not end


@dataclass
class World:
    """One step is one planning interval. `prefill_load(t)` is in groups' worth of tokens, `decode_load(t)` likewise of
    sequences; sequences stay `residence_s`."""

    config: AutoscalerConfig
    prefill_load: Callable[[float], float]
    decode_load: Callable[[float], float]
    bounds: dict[str, Bounds] = field(default_factory=lambda: {"prefill": Bounds(1, 8), "decode": Bounds(1, 8)})
    start_s: float = 60.0
    residence_s: float = 30.0
    gpus: dict[str, int] = field(default_factory=lambda: {"prefill": 8, "decode": 8})
    now_s: float = 0.0
    state: PlanState = field(default_factory=PlanState)
    changes: list[tuple[float, str, int]] = field(default_factory=list)
    killed_work: float = 0.0
    change: Callable[[float, Observation], Observation] = lambda _now_s, seen: seen
    pools: dict[str, list[Group]] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)

    def start(self, prefill: int, decode: int) -> "World":
        self.pools = {
            "prefill": [Group(i, 0.0) for i in range(prefill)],
            "decode": [Group(i, 0.0) for i in range(decode)],
        }
        return self

    def counts(self) -> tuple[int, int]:
        return len(self.pools["prefill"]), len(self.pools["decode"])

    def run(self, until_s: float) -> "World":
        while self.now_s < until_s:
            self.step()
        return self

    def step(self) -> None:
        step_s = self.config.interval_s
        self.now_s += step_s
        self._work("prefill", step_s)
        self._work("decode", step_s)
        made = plan(self.change(self.now_s, self.observe()), self.state, self.bounds, self.config)
        self.state = made.state
        self.plans.append(made)
        for pool in self.pools.values():
            for group in pool:
                group.held = False
        for decision in made.decisions:
            pool = self.pools[decision.role]
            if isinstance(decision, HoldGroup):
                pool[decision.group].held = True
            elif isinstance(decision, SetGroups):
                self.changes.append((self.now_s, decision.role, decision.groups))
                while len(pool) > decision.groups:
                    gone = pool.pop()
                    self.killed_work += gone.tokens + gone.running
                while len(pool) < decision.groups:
                    pool.append(Group(len(pool), self.now_s + self.start_s))

    def _work(self, role: str, step_s: float) -> None:
        groups = [group for group in self.pools[role] if group.ready_s <= self.now_s]
        takers = [group for group in groups if not group.held]
        if role == "prefill":
            for group in takers:
                offered = group.tokens + self.prefill_load(self.now_s) * RATE * step_s / len(takers)
                group.tokens = min(offered, RATE * MAX_WAIT_S)  # the rest is shed at the front door
            for group in groups:
                done = min(group.tokens, RATE * step_s)
                group.tokens -= done
                group.busy += 0.3 * (done / (RATE * step_s) - group.busy)
            return
        for group in groups:
            group.running *= math.exp(-step_s / self.residence_s)
            if group.held and group.running < 1:
                group.running = 0.0
            group.running = max(group.running, group.endless)
        lacking = max(0.0, self.decode_load(self.now_s) * SEATS - sum(group.running for group in groups))
        for group in takers:
            group.running = min(float(SEATS), group.running + lacking / len(takers))

    def observe(self) -> Observation:
        pools = {}
        for role, groups in self.pools.items():
            up = [group for group in groups if group.ready_s <= self.now_s]
            loads = tuple(
                GroupLoad(
                    index=group.index,
                    ready=0 if group.held else 4,
                    resting=group.held,
                    fresh=True,
                    running=round(group.running),
                    queued_tokens=round(group.tokens),
                    seats=SEATS,
                    free_blocks=BLOCKS - round(BLOCKS * group.running / SEATS / 2),
                    total_blocks=BLOCKS,
                    step_ms=20.0,
                    tokens_per_s=RATE if role == "prefill" else 0.0,
                    busy=group.busy,
                )
                for group in up
            )
            pools[role] = PoolObservation(loads, len(groups), len(up), self.gpus[role])
        return Observation(self.now_s, pools)


def stale(seen: Observation, role: str) -> Observation:
    """The same with old reports of one pool."""
    pool = seen.pools[role]
    groups = tuple(replace(group, fresh=False) for group in pool.groups)
    return replace(seen, pools={**seen.pools, role: replace(pool, groups=groups)})
