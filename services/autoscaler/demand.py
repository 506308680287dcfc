"""How many groups the load needs. Pure functions of one observation.

Prefill: the share of time that its groups work, over `prefill_busy_limit`; and once the predicted wait for a first
token, queued tokens over the pool's rate, is longer than `ttft_s`, as many groups as work that off within `ttft_s`.

Decode: seats and blocks in use over `decode_use_limit`; and once a step takes longer than `itl_ms`, groups by the ratio
of both. What waits in the schedulers counts for decode when decode has no seat left, else for prefill.

No demand is over `_GROWTH` times the groups that work: a queue says that there are too few, not how many too few, and
groups that are still loading have not been judged yet.
"""

from dataclasses import dataclass, replace

from common.config.autoscaler import AutoscalerConfig
from common.config.place import Role
from services.autoscaler.observation import Observation, PoolObservation

_GROWTH = 2
_FULL = 0.95  # of decode's seats: placement then waits for decode


@dataclass(frozen=True, slots=True)
class Demand:
    """
    Attributes:
        groups: needed, not rounded.
        reason: what needs them.
        predicted_s: prefill: wait for a first token; decode: one step.
        use: of the groups that work, 0 to 1: time for prefill, seats or blocks for decode.
    """

    groups: float
    reason: str
    predicted_s: float = 0.0
    use: float = 0.0


def demand_of(role: Role, observation: Observation, config: AutoscalerConfig) -> Demand | None:
    """None: no group works, so nothing is known."""
    pool = observation.pools.get(role)
    if pool is None or not pool.working:
        return None
    decode_full = _decode_is_full(observation.pools.get("decode"))
    if role == "prefill":
        demand = _prefill(pool, 0 if decode_full else observation.waiting_tokens, config)
    else:
        demand = _decode(pool, observation.waiting_requests if decode_full else 0, config)
    return replace(demand, groups=min(demand.groups, float(_GROWTH * len(pool.working))))


def _prefill(pool: PoolObservation, waiting_tokens: int, config: AutoscalerConfig) -> Demand:
    rate = sum(group.tokens_per_s for group in pool.working)
    queued = sum(group.queued_tokens for group in pool.groups) + waiting_tokens
    wait_s = queued / max(rate, 1.0)
    busy = sum(group.busy for group in pool.groups)
    use = sum(group.busy for group in pool.working) / len(pool.working)
    by_time = busy / config.prefill_busy_limit
    by_wait = len(pool.working) * wait_s / config.ttft_s if wait_s > config.ttft_s else 0.0
    if by_wait > by_time:
        return Demand(by_wait, f"predicted TTFT {wait_s:.2f} s over {config.ttft_s:g} s", wait_s, use)
    return Demand(by_time, f"busy {use:.0%} of the time", wait_s, use)


def _decode(pool: PoolObservation, waiting: int, config: AutoscalerConfig) -> Demand:
    working = pool.working
    count, seats = len(working), sum(group.seats for group in working)
    blocks = sum(group.total_blocks for group in working)
    taken = sum(group.running + group.queued for group in pool.groups) + waiting
    blocks_used = sum(group.total_blocks - group.free_blocks for group in pool.groups)
    seats_used, blocks_use = taken / max(seats, 1), blocks_used / max(blocks, 1)
    step_ms = sum(group.step_ms for group in working) / count
    over = step_ms / config.itl_ms
    needs = (
        (count * seats_used / config.decode_use_limit, f"{seats_used:.0%} of seats"),
        (count * blocks_use / config.decode_use_limit, f"{blocks_use:.0%} of blocks"),
        (count * over if over > 1 else 0.0, f"steps of {step_ms:.1f} ms over {config.itl_ms:g} ms"),
    )
    groups, reason = max(needs)
    return Demand(groups, reason, step_ms / 1000, max(seats_used, blocks_use))


def _decode_is_full(pool: PoolObservation | None) -> bool:
    if pool is None or not pool.working:
        return False
    seats = sum(group.seats for group in pool.working)
    return sum(group.running + group.queued for group in pool.working) >= _FULL * seats
