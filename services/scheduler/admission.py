"""Who is taken, who waits and who is shed. Pure functions of plain data; `turns.py` acts on them."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import Overloaded
from services.scheduler.placement import DecodeState, PrefillState
from services.scheduler.settings import AdmissionPolicy


@dataclass(frozen=True, slots=True)
class Backlog:
    """What stands before a request that arrives now."""

    live: int  # requests of this replica
    waiting: int  # of them, without their turn yet
    waiting_tokens: float  # prompt tokens of these
    unplaced_tokens: float  # given their turn, not yet at an instance
    unplaced: int
    on_the_way: int  # pieces of work in prefill that will need a seat at decode
    tokens_per_s: float  # of waiting prompts that got their turn lately; infinite when not known
    residence_s: float  # from a request's turn to its end, recent average
    fullest_tenant_waiting: float  # by weight
    tenant_waiting: float  # of the arriving request's tenant, by weight


def may_dispatch(
    prefill: Sequence[PrefillState], decode: Sequence[DecodeState], backlog: Backlog, policy: AdmissionPolicy
) -> bool:
    """Whether the next request in line can go to an instance now.

    Work is kept here, where it is fair between tenants, until some prefill instance runs low and decode has a seat. An
    instance runs low when its queue is short in time, or in number: a few long prompts are no reason to keep short
    ones from an engine that can interleave them.
    """
    if not prefill or not decode:
        return False
    unplaced_each = backlog.unplaced_tokens / len(prefill)
    unplaced_works_each = backlog.unplaced / len(prefill)
    low = any(
        state.works + unplaced_works_each < policy.dispatch_works
        or (state.queued_tokens + unplaced_each) / state.tokens_per_s <= policy.dispatch_ahead_s
        for state in prefill
    )
    seats = sum(max(0, state.max_running - state.sequences) for state in decode) - backlog.unplaced - backlog.on_the_way
    return low and seats > 0


def predicted_wait_s(prefill: Sequence[PrefillState], decode: Sequence[DecodeState], backlog: Backlog) -> float:
    """Until a request that arrives now is computed: the slower of prefill's backlog and decode's seats.

    What waits here goes as fast as the instances say they compute, or as turns were seen to come when that is slower:
    other schedulers feed the same instances.
    """
    rate = sum(state.tokens_per_s for state in prefill)
    given = backlog.unplaced_tokens + sum(state.queued_tokens for state in prefill)
    prefill_s = given / rate + backlog.waiting_tokens / min(rate, backlog.tokens_per_s) if rate else 0.0
    seats = sum(max(0, state.max_running - state.sequences) for state in decode) - backlog.unplaced - backlog.on_the_way
    missing = backlog.waiting + 1 - seats
    total = sum(state.max_running for state in decode)
    decode_s = missing * backlog.residence_s / total if missing > 0 and total else 0.0
    return max(prefill_s, decode_s)


def admit(
    prompt_tokens: int,
    budget_s: float | None,
    prefill: Sequence[PrefillState],
    decode: Sequence[DecodeState],
    backlog: Backlog,
    policy: AdmissionPolicy,
) -> bool:
    """Take a request that arrives now, or shed it at once with a hint: when all that stands before it now is done.

    Returns:
        True when there is room; False when it takes the place of the last one of the tenant that waits most.

    Raises:
        Overloaded
    """
    wait_s = predicted_wait_s(prefill, decode, backlog)
    if backlog.live >= policy.max_live:
        what = f"{backlog.live} live requests, the most this replica takes"
        raise Overloaded(what, max(policy.retry_after_s, wait_s))
    rate = max((state.tokens_per_s for state in prefill), default=0.0)
    first_token_s = wait_s + (prompt_tokens / rate if rate and not backlog.waiting else 0.0)
    if budget_s is not None and wait_s > budget_s:
        what = f"a first token is predicted in {first_token_s:.1f} s, the deadline leaves {budget_s:.1f} s"
        raise Overloaded(what, max(policy.retry_after_s, wait_s))
    if backlog.waiting < policy.max_waiting and wait_s <= policy.max_wait_s:
        return True
    if backlog.tenant_waiting + 1 < backlog.fullest_tenant_waiting:
        return False
    what = f"{backlog.waiting} requests wait, predicted for {wait_s:.1f} s"
    raise Overloaded(what, max(policy.retry_after_s, wait_s))
