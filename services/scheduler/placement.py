"""Where work goes. Pure functions of plain data, so that the simulator runs the shipped policy.

**Prefill.** The cost of an instance is the predicted time to first token there, plus what the choice costs later
requests. Time to first token: ranks of an EP group move in lock-step, each step as long as its fullest rank, so work
waits `lockstep_s` (own queue and own tokens in chunks, and the last, partial chunk as long as the group's fullest).
Later requests: every second of computing that a cached prefix would have spared delays all that arrive until the
pool has caught up, which at utilisation rho and even arrivals is rho / (1 - rho) further seconds, and about
`later_weight` times that in bursts. This is what keeping a prefix where it is is worth, and why a busy pool follows
prefixes more than an idle one.

**Decode.** Lock-step ranks move at the pace of the fullest, so the choice is the smallest resulting *maximum* load
over the EP group, in tokens of latent read a step; a sequence itself costs as much as some tokens.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from common.errors import InvalidInput, NoInstance
from common.rpc.inference_data import Candidate, Placement


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """Constants of the two choices."""

    block_tokens: int = 64
    chunk_tokens: int = 512  # of one prefill step
    later_weight: float = 2.0  # 1 for Poisson arrivals; 2 did best on a recorded, bursty trace of conversations
    utilisation_limit: float = 0.9  # the estimate is cut here: 1 / (1 - rho) must stay finite
    sequence_cost_tokens: float = 2000.0  # a decode sequence costs as much as reading so many cached tokens
    transfer_cost_tokens_per_s: float = 20_000.0  # a second of exposed transfer counts as so much load
    retry_after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class PrefillState:
    """One prefill instance as placement sees it.

    `queued_tokens` are uncached tokens waiting or under way, `placed_tokens` all it was ever given, for ties.
    """

    instance: str
    group: str
    queued_tokens: float
    tokens_per_s: float
    total_blocks: int
    placed_tokens: float = 0.0
    works: int = 0  # pieces of work that it has


@dataclass(frozen=True, slots=True)
class DecodeState:
    """One decode instance. `running_tokens` are cached tokens of what runs and of what is on its way there."""

    instance: str
    group: str
    sequences: int
    running_tokens: float
    free_blocks: int
    total_blocks: int
    max_running: int
    exposed_transfer_s: float = 0.0  # recent average, of a transfer
    placed_tokens: float = 0.0


State = TypeVar("State", PrefillState, DecodeState)


def blocks_of(tokens: int, block_tokens: int) -> int:
    return -(-tokens // block_tokens)


def uncached_tokens(prompt_tokens: int, cached_blocks: int, block_tokens: int) -> int:
    """What is left to compute; a wholly cached prompt still computes its last token."""
    return max(1, prompt_tokens - cached_blocks * block_tokens)


def lockstep_s(own_tokens: float, longest_other_tokens: float, chunk_tokens: int, tokens_per_s: float) -> float:
    """Seconds until a rank with `own_tokens` to compute is done, in a group whose fullest other rank has so many."""
    whole = int(max(0.0, own_tokens - 1) // chunk_tokens)
    last = own_tokens - whole * chunk_tokens
    other = min(float(chunk_tokens), max(0.0, longest_other_tokens - whole * chunk_tokens))
    return (whole * chunk_tokens + max(last, other)) / tokens_per_s


def place_prefill(
    prompt_tokens: int,
    states: Sequence[PrefillState],
    cached_blocks: Mapping[str, int],
    utilisation: float,
    policy: PlacementPolicy,
    excluded: Collection[str] = (),
) -> Placement:
    """
    Args:
        cached_blocks: by instance, how many leading blocks of the prompt it holds; absent is none.
        utilisation: of the prefill pool, 0 to 1.
        excluded: instances that just failed this work; used only when nothing else is left.

    Raises:
        NoInstance
        InvalidInput: no instance's pool can ever hold the prompt.
    """
    states = _eligible(states, excluded, "prefill", policy)
    needed = blocks_of(prompt_tokens + 1, policy.block_tokens)
    fitting = [state for state in states if state.total_blocks >= needed]
    if not fitting:
        largest = max(state.total_blocks for state in states) * policy.block_tokens
        raise InvalidInput("prompt", f"{prompt_tokens} tokens", f"the largest prefill pool holds {largest} tokens")
    rho = min(max(utilisation, 0.0), policy.utilisation_limit)
    later = policy.later_weight * rho / (1 - rho)
    longest = _two_longest(states)
    scored = []
    for state in fitting:
        computed = uncached_tokens(prompt_tokens, cached_blocks.get(state.instance, 0), policy.block_tokens)
        other = longest[state.group][1 if longest[state.group][0][1] == state.instance else 0][0]
        rate = state.tokens_per_s
        total_s = lockstep_s(state.queued_tokens + computed, other, policy.chunk_tokens, rate)
        compute_s = computed / rate
        parts = {"queue_s": total_s - compute_s, "compute_s": compute_s, "later_s": compute_s * later}
        scored.append((sum(parts.values()), state.placed_tokens, Candidate(state.instance, sum(parts.values()), parts)))
    best = min(scored, key=lambda one: (one[0], one[1], one[2].instance))
    return Placement("prefill", best[2].instance, tuple(one[2] for one in scored))


def place_decode(
    sequence_tokens: int,
    states: Sequence[DecodeState],
    policy: PlacementPolicy,
    excluded: Collection[str] = (),
) -> Placement:
    """
    Args:
        sequence_tokens: cached tokens that the work brings along.

    Raises:
        NoInstance
        InvalidInput: no instance's pool can ever hold the sequence.
    """
    states = _eligible(states, excluded, "decode", policy)
    needed = blocks_of(sequence_tokens + 1, policy.block_tokens)
    fitting = [state for state in states if state.total_blocks >= needed]
    if not fitting:
        largest = max(state.total_blocks for state in states) * policy.block_tokens
        raise InvalidInput("prompt", f"{sequence_tokens} tokens", f"the largest decode pool holds {largest} tokens")
    roomy = [state for state in fitting if state.sequences < state.max_running and state.free_blocks >= needed]
    loads = {state.instance: _load(state, policy) for state in states}
    added = sequence_tokens + policy.sequence_cost_tokens
    scored = []
    for state in roomy or fitting:  # without room anywhere the work queues where it waits least
        group_max = max(loads[other.instance] for other in states if other.group == state.group)
        own = loads[state.instance] + added
        transfer = state.exposed_transfer_s * policy.transfer_cost_tokens_per_s
        parts = {"group_max_load": max(group_max, own), "transfer": transfer}
        cost = parts["group_max_load"] + transfer
        candidate = Candidate(state.instance, cost, {**parts, "own_load": own})
        scored.append((cost, own, state.placed_tokens, candidate))
    best = min(scored, key=lambda one: (one[0], one[1], one[2], one[3].instance))
    return Placement("decode", best[3].instance, tuple(one[3] for one in scored))


def _load(state: DecodeState, policy: PlacementPolicy) -> float:
    return state.running_tokens + state.sequences * policy.sequence_cost_tokens


def _two_longest(states: Sequence[PrefillState]) -> dict[str, list[tuple[float, str]]]:
    """By group the fullest two queues, so that the fullest *other* one is at hand for everybody."""
    longest: dict[str, list[tuple[float, str]]] = {}
    for state in states:
        longest.setdefault(state.group, [(0.0, "")]).append((state.queued_tokens, state.instance))
    return {group: sorted(queues, reverse=True)[:2] for group, queues in longest.items()}


def _eligible(
    states: Sequence[State], excluded: Collection[str], role: str, policy: PlacementPolicy
) -> Sequence[State]:
    if not states:
        raise NoInstance(f"no {role} instance is ready", policy.retry_after_s)
    return [state for state in states if state.instance not in excluded] or states
