"""When the GPU budget is spent: whether groups of one pool are worth more as groups of the other. Pure.

A pool's pressure is the groups that it needs over those that it has. GPUs move when the greater of the two pressures
falls by `_GAIN` at least, by what held during the whole of `shift_after_s`. The way back would raise it, so a load that
stays moves nothing a second time.
"""

from collections.abc import Mapping
from dataclasses import replace

from common.config.autoscaler import AutoscalerConfig
from common.config.place import Role
from services.autoscaler.observation import Observation
from services.autoscaler.plan_state import PlanState, Shift

_GAIN = 0.2
_PAIRS: tuple[tuple[Role, Role], ...] = (("prefill", "decode"), ("decode", "prefill"))


def consider_shift(
    observation: Observation,
    state: PlanState,
    floors: Mapping[Role, int],
    ceilings: Mapping[Role, int],
    config: AutoscalerConfig,
) -> PlanState:
    """The state with a shift begun, ended, or as it was."""
    if state.shift is not None:
        begun = state.of(state.shift.giver).drain is not None
        return state if begun or shift_goes_on(observation, state, config) else replace(state, shift=None)
    if not config.gpus_limit or len(observation.pools) < 2:
        return state
    if observation.now_s - state.shifted_s < config.shift_cooldown_s:
        return state
    for giver, taker in _PAIRS:
        groups = _groups_to_give(giver, taker, observation, state, floors[giver], config)
        busy_otherwise = state.of(giver).drain is not None or state.of(taker).drain is not None
        at_ceiling = observation.pools[taker].replicas >= ceilings[taker]
        if groups and not busy_otherwise and not at_ceiling:
            return replace(state, shift=Shift(giver, taker, groups))
    return state


def shift_goes_on(observation: Observation, state: PlanState, config: AutoscalerConfig) -> bool:
    """Whether the taker still lacks groups; what it needs counts, not a moment's swing."""
    shift = state.shift
    if shift is None:
        return False
    needed = state.of(shift.taker).at_most(observation.now_s, config.up_after_s)
    return needed > observation.pools[shift.taker].replicas


def _groups_to_give(
    giver: Role, taker: Role, observation: Observation, state: PlanState, floor: int, config: AutoscalerConfig
) -> int:
    """How many groups of the giver make room for one more of the taker, if that is worth it; else 0."""
    gives, takes, now_s = observation.pools[giver], observation.pools[taker], observation.now_s
    lacking = state.of(taker).at_least(now_s, config.shift_after_s)
    spent = gives.replicas * gives.gpus_per_group + takes.replicas * takes.gpus_per_group
    missing = takes.gpus_per_group - (config.gpus_limit - spent)
    if lacking <= takes.replicas or missing <= 0:
        return 0
    groups = -(-missing // gives.gpus_per_group)
    left = gives.replicas - groups
    if left < max(floor, 1):
        return 0
    before = lacking / max(takes.replicas, 1)
    after = max(lacking / (takes.replicas + 1), state.of(giver).at_most(now_s, config.shift_after_s) / left)
    return groups if after <= before * (1 - _GAIN) else 0
