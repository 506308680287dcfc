"""The loop of the replica that leads: look, plan, act. What fails is tried again with the next look."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace

from common.bus.messages import HoldNotice
from common.bus.subjects import Subjects
from common.config.cluster import ClusterConfig
from common.config.place import ROLES, Role, parallel_of
from common.errors import DependencyUnavailable, TandemError
from common.telemetry.logs import get_log
from services.autoscaler.disruption import allowed, floor_of
from services.autoscaler.fleet_view import FleetView
from services.autoscaler.kubernetes_api import DISRUPTION_BUDGETS, Object
from services.autoscaler.observation import Observation, PoolObservation
from services.autoscaler.plan import Bounds, Decision, HoldGroup, Plan, SetGroups, plan
from services.autoscaler.plan_state import PlanState
from services.autoscaler.surroundings import Surroundings
from services.autoscaler.workloads import PoolObject

log = get_log(__name__)


class Controller:
    """Plans begin anew with each time that this replica leads: what another one did meanwhile is not remembered."""

    def __init__(self, config: ClusterConfig, around: Surroundings) -> None:
        self._cluster = config
        self._config = config.autoscaler
        self._around = around
        self._subjects = Subjects(config.cluster)
        self._bounds = {role: bounds_of(config, role) for role in ROLES}
        self._said: dict[Role, Decision] = {}
        self.state = PlanState()

    @property
    def ready(self) -> bool:
        """Whether it knows the pools as they are now, leading or not."""
        return self._around.picture.age_s <= 2 * self._config.stale_after_s

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.tick()
            await asyncio.sleep(self._config.interval_s)

    async def tick(self) -> None:
        """One look and what follows from it."""
        around = self._around
        around.metrics.leads.set(around.leadership.leads())
        around.metrics.picture_age_seconds.set(min(around.picture.age_s, 1e9))
        if not around.leadership.leads():
            self.state, self._said = PlanState(), {}
            return
        try:
            pools, view, observation = await self._look()
        except TandemError as error:
            log.warning("nothing decided", why=str(error))
            around.metrics.count_failure(error)
            return
        made = plan(observation, self.state, self._bounds, self._config)
        self._show(observation, made, view)
        for decision in made.decisions:
            try:
                await self._act(decision, pools, view)
            except TandemError as error:
                log.warning("could not act", role=decision.role, decision=decision, why=str(error))
                around.metrics.count_failure(error)
                made = replace(made, state=undone(made.state, self.state, decision))
        self.state = made.state

    async def _look(self) -> tuple[dict[Role, PoolObject], FleetView, Observation]:
        picture = self._around.picture
        if picture.age_s > self._config.stale_after_s:
            raise DependencyUnavailable(f"the pools were last seen {picture.age_s:.1f} s ago")
        view, (budgets, _) = await asyncio.gather(
            self._around.schedulers.look(), asyncio.to_thread(self._around.api.list, DISRUPTION_BUDGETS)
        )
        if not view.answers:
            raise DependencyUnavailable("no scheduler answers")
        pools = picture.pools()
        seen = {role: self._pool(pool, view, budgets) for role, pool in pools.items()}
        now_s = self._around.clock.now_s()
        return pools, view, Observation(now_s, seen, view.waiting_requests, view.waiting_tokens, view.complete)

    def _pool(self, pool: PoolObject, view: FleetView, budgets: Sequence[Object]) -> PoolObservation:
        groups = view.groups(pool.role, self._config.stale_after_s)
        return PoolObservation(
            groups=tuple(group for group in groups if group.index < pool.replicas),
            replicas=pool.replicas,
            ready_replicas=pool.ready_replicas,
            gpus_per_group=parallel_of(self._cluster, pool.role).ep,
            disruption_floor=floor_of(pool, budgets),
            disruptions_allowed=allowed(pool, budgets),
        )

    async def _act(self, decision: Decision, pools: dict[Role, PoolObject], view: FleetView) -> None:
        around = self._around
        if isinstance(decision, SetGroups):
            pool = pools[decision.role]
            await asyncio.to_thread(
                around.workloads.set_groups, around.api, pool, decision.groups, around.leadership.leads
            )
        elif isinstance(decision, HoldGroup) and around.leadership.leads():
            for one in view.of_group(decision.role, decision.group):
                notice = HoldNotice(one.instance, one.incarnation, self._config.hold_s)
                if not await around.bus.publish(self._subjects.hold(one.instance), notice):
                    raise DependencyUnavailable(f"NATS is away: {one.instance} is not held")
        if isinstance(decision, SetGroups) or type(decision) is not type(self._said.get(decision.role)):
            log.info(type(decision).__name__, **asdict(decision))
        self._said[decision.role] = decision

    def _show(self, observation: Observation, made: Plan, view: FleetView) -> None:
        metrics = self._around.metrics
        metrics.schedulers.set(view.answers)
        for decision in made.decisions:
            metrics.pools[decision.role].decisions[type(decision).__name__].inc()
        for role, pool in observation.pools.items():
            shown, demand = metrics.pools[role], made.demands.get(role)
            shown.groups.set(pool.replicas)
            shown.ready_groups.set(pool.ready_replicas)
            shown.draining.set(made.state.of(role).drain is not None)
            if demand is not None:
                shown.needed_groups.set(demand.groups)
                shown.predicted_seconds.set(demand.predicted_s)
                shown.use.set(demand.use)


def bounds_of(config: ClusterConfig, role: Role) -> Bounds:
    """The file's, inside the groups that its pools know."""
    scaling = config.autoscaler.prefill if role == "prefill" else config.autoscaler.decode
    high = scaling.max_groups or parallel_of(config, role).groups
    return Bounds(min(scaling.min_groups, high), high)


def undone(state: PlanState, before: PlanState, decision: Decision) -> PlanState:
    """What was to be done was not: the change did not happen, and a drain goes on as it was."""
    mine, past = state.of(decision.role), before.of(decision.role)
    restored = state.with_pool(decision.role, replace(mine, changed_s=past.changed_s, drain=past.drain))
    return replace(restored, shift=before.shift, shifted_s=before.shifted_s)
