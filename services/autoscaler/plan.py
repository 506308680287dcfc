"""From an observation and what is remembered to decisions. Pure: no clock, no waiting, no Kubernetes.

A pool grows when it lacked groups without a break for `up_after_s`, and shrinks when one group less was enough without
a break for `down_after_s`, so a load that swings inside these times moves nothing. Shrinking is a drain of the last
group, the one that Kubernetes would take: schedulers give it nothing new, and only when it was idle for `idle_for_s`
is it taken away. What was not freshly seen takes nothing away. Moving GPUs between the pools is in ratio.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from common.config.autoscaler import AutoscalerConfig
from common.config.place import ROLES, Role
from services.autoscaler.demand import Demand, demand_of
from services.autoscaler.observation import Observation, PoolObservation
from services.autoscaler.plan_state import Drain, PlanState, PoolState
from services.autoscaler.ratio import consider_shift, shift_goes_on


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a pool, in groups."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class SetGroups:
    role: Role
    groups: int
    reason: str


@dataclass(frozen=True, slots=True)
class HoldGroup:
    """Ask schedulers to give the group no work, until the next plan says so again."""

    role: Role
    group: int
    reason: str


@dataclass(frozen=True, slots=True)
class Keep:
    role: Role
    reason: str


Decision = SetGroups | HoldGroup | Keep


@dataclass(frozen=True, slots=True)
class Plan:
    decisions: tuple[Decision, ...]
    state: PlanState
    demands: Mapping[Role, Demand]


def plan(observation: Observation, state: PlanState, bounds: Mapping[Role, Bounds], config: AutoscalerConfig) -> Plan:
    """One decision for each pool there is."""
    now_s = observation.now_s
    demands: dict[Role, Demand] = {}
    for role, pool in observation.pools.items():
        demand = demand_of(role, observation, config) if pool.fresh else None
        if demand is not None:
            demands[role] = demand
        keep_s = max(config.down_after_s, config.shift_after_s, config.up_after_s)
        remembered = state.of(role).remember(
            now_s, demand.groups if demand else None, keep_s, config.stale_after_s + config.interval_s
        )
        state = state.with_pool(role, remembered)
    floors = {role: max(bounds[role].low, pool.disruption_floor) for role, pool in observation.pools.items()}
    state = consider_shift(observation, state, floors, {role: one.high for role, one in bounds.items()}, config)

    decisions: list[Decision] = []
    room = _room(observation, config)
    for role in sorted(observation.pools, key=lambda one: -_pressure(one, observation, demands)):
        turn = _Turn(role, observation, bounds[role], floors[role], room, demands.get(role), config)
        decision, state = turn.decide(state)
        decisions.append(decision)
        if isinstance(decision, SetGroups):
            grown = max(0, decision.groups - observation.pools[role].replicas)
            room -= grown * observation.pools[role].gpus_per_group
    return Plan(tuple(sorted(decisions, key=lambda one: ROLES.index(one.role))), state, demands)


def _room(observation: Observation, config: AutoscalerConfig) -> float:
    """GPUs of the budget that no pool has; a group that is being drained still has its own."""
    if not config.gpus_limit:
        return math.inf
    return config.gpus_limit - sum(pool.replicas * pool.gpus_per_group for pool in observation.pools.values())


def _pressure(role: Role, observation: Observation, demands: Mapping[Role, Demand]) -> float:
    demand = demands.get(role)
    return demand.groups / max(observation.pools[role].replicas, 1) if demand else 0.0


@dataclass(frozen=True, slots=True)
class _Turn:
    """One pool's share of one plan."""

    role: Role
    observation: Observation
    bounds: Bounds
    floor: int
    room: float
    demand: Demand | None
    config: AutoscalerConfig

    @property
    def pool(self) -> PoolObservation:
        return self.observation.pools[self.role]

    def decide(self, state: PlanState) -> tuple[Decision, PlanState]:
        pool, mine, now_s = self.pool, state.of(self.role), self.observation.now_s
        if pool.replicas < self.bounds.low:
            groups = min(self.bounds.low, pool.replicas + self._fitting())
            if groups > pool.replicas:
                reason = f"{pool.replicas} groups, at least {self.bounds.low} are wanted"
                return self._set(state, replace(mine, drain=None), groups, reason)
            return self._keep(f"the GPU budget of {self.config.gpus_limit} has no room for the least"), state
        if mine.drain is not None:
            return self._drain(state, mine, mine.drain)
        wanted = self._wanted(mine)
        gives = state.shift is not None and state.shift.giver == self.role
        if wanted > pool.replicas and not gives:
            if now_s - mine.changed_s < self.config.up_cooldown_s:
                return self._keep(f"needs {wanted} groups, waits {self.config.up_cooldown_s:g} s after a change"), state
            groups = min(wanted, pool.replicas + self._fitting())
            if groups > pool.replicas:
                return self._set(state, mine, groups, self._why())
            return self._keep(f"needs {wanted} groups, the GPU budget of {self.config.gpus_limit} is spent"), state
        return self._shrink(state, mine, gives=gives)

    def _wanted(self, mine: PoolState) -> int:
        """By what was needed during the whole of `up_after_s`, inside the bounds."""
        needed = math.ceil(mine.at_least(self.observation.now_s, self.config.up_after_s) - 1e-9)
        return min(needed, self.bounds.high)

    def _shrink(self, state: PlanState, mine: PoolState, *, gives: bool) -> tuple[Decision, PlanState]:
        pool, now_s, config = self.pool, self.observation.now_s, self.config
        last, left = pool.replicas - 1, pool.replicas - 1
        if pool.replicas > self.bounds.high:
            reason = f"{pool.replicas} groups, at most {self.bounds.high} are wanted"
        elif gives:
            reason = "its GPUs are needed more by the other pool"
        elif mine.at_most(now_s, config.down_after_s) <= left:
            reason = f"{left} groups were enough for {config.down_after_s:g} s"
        else:
            return self._keep(self._why()), state
        for barrier in self._barriers(mine, gives=gives):
            return self._keep(f"{reason}, but {barrier}"), state
        drain = Drain(last, now_s, reason, for_other=gives)
        return HoldGroup(self.role, last, reason), state.with_pool(self.role, replace(mine, drain=drain))

    def _barriers(self, mine: PoolState, *, gives: bool) -> list[str]:
        """Why nothing may be taken away now."""
        pool, now_s, config = self.pool, self.observation.now_s, self.config
        working = {group.index for group in pool.working}
        found = []
        if pool.replicas <= self.floor:
            found.append(f"{self.floor} groups are the least")
        if not (pool.fresh and self.observation.complete):
            found.append("not everything was freshly seen")
        if not gives and now_s - mine.changed_s < config.down_cooldown_s:
            found.append(f"the last change is less than {config.down_cooldown_s:g} s ago")
        if not pool.disruptions_allowed:
            found.append("the disruption budget is spent")
        if pool.replicas - 1 in working and len(working) < pool.replicas:
            found.append("another group does not work")
        return found

    def _drain(self, state: PlanState, mine: PoolState, drain: Drain) -> tuple[Decision, PlanState]:
        """Go on with a drain that was begun, end it by taking the group away, or give it up."""
        pool, now_s, config = self.pool, self.observation.now_s, self.config
        left = pool.replicas - 1
        if drain.group != left:
            return self._give_up(state, mine, f"group {drain.group} is not the last any more")
        if drain.for_other and not shift_goes_on(self.observation, state, config):
            return self._give_up(state, mine, "the other pool lacks nothing any more")
        if not drain.for_other and left < self.bounds.high and mine.at_least(now_s, config.up_after_s) > left:
            return self._give_up(state, mine, f"the load came back: {self._why()}")
        if left < self.floor:
            return self._give_up(state, mine, f"{self.floor} groups are the least")
        if now_s - drain.since_s > config.drain_limit_s:
            return self._give_up(state, mine, f"group {drain.group} was not idle within {config.drain_limit_s:g} s")
        idle_since_s = (drain.idle_since_s if drain.idle_since_s is not None else now_s) if self._idle(left) else None
        if idle_since_s is None or now_s - idle_since_s < config.idle_for_s:
            waiting = replace(mine, drain=replace(drain, idle_since_s=idle_since_s))
            return HoldGroup(self.role, drain.group, drain.reason), state.with_pool(self.role, waiting)
        shift = state.shift
        if drain.for_other and shift is not None:
            state = replace(state, shift=replace(shift, left=shift.left - 1), shifted_s=now_s)
            if shift.left <= 1:
                state = replace(state, shift=None)
        return self._set(state, replace(mine, drain=None), left, f"group {drain.group} is idle: {drain.reason}")

    def _idle(self, index: int) -> bool:
        """Freshly seen without work by every scheduler, or seen by none because it is not there."""
        if not self.observation.complete:
            return False
        group = self.pool.group(index)
        return self.pool.ready_replicas < self.pool.replicas if group is None else group.idle

    def _give_up(self, state: PlanState, mine: PoolState, reason: str) -> tuple[Decision, PlanState]:
        if mine.drain is not None and mine.drain.for_other:
            state = replace(state, shift=None, shifted_s=self.observation.now_s)
        kept = replace(mine, drain=None, changed_s=self.observation.now_s)
        return self._keep(f"drain given up: {reason}"), state.with_pool(self.role, kept)

    def _set(self, state: PlanState, mine: PoolState, groups: int, reason: str) -> tuple[Decision, PlanState]:
        changed = replace(mine, changed_s=self.observation.now_s)
        return SetGroups(self.role, groups, reason), state.with_pool(self.role, changed)

    def _fitting(self) -> int:
        """Groups that the GPU budget has room for."""
        return 1 << 30 if math.isinf(self.room) else max(0, int(self.room // self.pool.gpus_per_group))

    def _keep(self, reason: str) -> Keep:
        return Keep(self.role, reason)

    def _why(self) -> str:
        return self.demand.reason if self.demand else "nothing is known of its load"
