"""The two choices: closed forms, B1 and B2, and limits."""

import random
from collections import OrderedDict

import pytest

from common.errors import InvalidInput, NoInstance
from services.scheduler.placement import (
    DecodeState,
    PlacementPolicy,
    PrefillState,
    lockstep_s,
    place_decode,
    place_prefill,
    uncached_tokens,
)

POLICY = PlacementPolicy(block_tokens=64, chunk_tokens=512)


def prefill(name, queued=0.0, group="", placed=0.0, blocks=1000, rate=1000.0):
    return PrefillState(name, group or name, queued, rate, blocks, placed)


def decode(name, sequences=0, tokens=0.0, group="", blocks=1000, free=1000, max_running=64, exposed=0.0):
    return DecodeState(name, group or name, sequences, tokens, free, blocks, max_running, exposed)


@pytest.mark.parametrize(
    ("own", "other", "seconds"),
    [
        (100, 0, 0.1),  # alone in its step
        (100, 5000, 0.512),  # its step is as long as the other's chunk
        (600, 600, 0.6),
        (600, 5000, 1.024),
        (1024, 0, 1.024),
        (513, 100, 0.513),
    ],
)
def test_lock_step_waits_for_the_fullest(own, other, seconds):
    assert lockstep_s(own, other, 512, 1000.0) == pytest.approx(seconds)


def test_prefill_cost_is_the_sum_of_its_parts_and_all_candidates_are_told():
    placement = place_prefill(640, [prefill("a"), prefill("b", queued=2000)], {"b": 5}, 0.5, POLICY)
    costs = {c.instance: c for c in placement.candidates}
    assert costs["a"].parts == pytest.approx({"queue_s": 0.0, "compute_s": 0.64, "later_s": 1.28})
    assert costs["b"].parts == pytest.approx({"queue_s": 2.0, "compute_s": 0.32, "later_s": 0.64})
    assert all(c.cost == pytest.approx(sum(c.parts.values())) for c in placement.candidates)
    assert placement.chosen == "a"


def test_a_busy_pool_follows_prefixes_more_than_an_idle_one():
    states, cached = [prefill("empty"), prefill("holder", queued=1000)], {"holder": 10}
    assert place_prefill(700, states, cached, 0.0, POLICY).chosen == "empty"
    assert place_prefill(700, states, cached, 0.8, POLICY).chosen == "holder"


def test_the_queue_of_the_whole_group_counts():
    states = [prefill("a0", group="a"), prefill("a1", queued=5000, group="a"), prefill("b0", queued=100, group="b")]
    assert place_prefill(64, states, {}, 0.0, POLICY).chosen == "b0"


def test_a_wholly_cached_prompt_still_computes():
    assert uncached_tokens(128, 2, 64) == 1
    assert uncached_tokens(130, 1, 64) == 66


def test_misses_avoid_a_loaded_worker():
    """B1: A is busy with long unique prompts; of 200 short unique ones it gets at most 30 %."""
    queued = {"a": 40_000.0, "b": 0.0, "c": 0.0, "d": 0.0}
    placed = dict.fromkeys(queued, 0.0)
    got = dict.fromkeys(queued, 0)
    for _ in range(200):
        states = [prefill(name, queued[name], placed=placed[name]) for name in queued]
        chosen = place_prefill(100, states, {}, 0.5, POLICY).chosen
        got[chosen] += 1
        queued[chosen] += 100
        placed[chosen] += 100
        for name in queued:
            queued[name] = max(0.0, queued[name] - 25)
    assert got["a"] <= 0.3 * 200
    assert max(got["b"], got["c"], got["d"]) - min(got["b"], got["c"], got["d"]) <= 2


def test_exclusion_and_its_limits():
    states = [prefill("a"), prefill("b", queued=9000)]
    assert place_prefill(10, states, {}, 0.0, POLICY, {"a"}).chosen == "b"
    assert place_prefill(10, states, {}, 0.0, POLICY, {"a", "b"}).chosen == "a"  # better again than not at all
    with pytest.raises(NoInstance, match="no prefill instance"):
        place_prefill(10, [], {}, 0.0, POLICY)


def test_a_prompt_over_every_pool_is_refused_by_its_size():
    """C2, before any work."""
    with pytest.raises(InvalidInput, match="640 tokens"):
        place_prefill(1000, [prefill("a", blocks=10)], {}, 0.0, POLICY)
    with pytest.raises(InvalidInput, match="640 tokens"):
        place_decode(1000, [decode("a", blocks=10)], POLICY)
    assert place_prefill(639, [prefill("a", blocks=10)], {}, 0.0, POLICY).chosen == "a"


def test_decode_takes_the_smallest_resulting_maximum_of_the_group():
    states = [
        decode("a0", 0, 0, "a"),
        decode("a1", 10, 50_000, "a"),  # the group moves at a1's pace whatever a0 has
        decode("b0", 3, 9_000, "b"),
        decode("b1", 3, 8_000, "b"),
    ]
    placement = place_decode(1000, states, POLICY)
    assert placement.chosen == "b1"
    costs = {c.instance: c.cost for c in placement.candidates}
    assert costs == {"a0": 70_000, "a1": 73_000, "b0": 18_000, "b1": 17_000}


def test_within_a_group_of_equal_maximum_the_emptiest():
    states = [decode("a0", 1, 500, "a"), decode("a1", 10, 50_000, "a"), decode("a2", 0, 0, "a")]
    assert place_decode(1000, states, POLICY).chosen == "a2"


def test_decode_needs_room_and_a_seat():
    full, seatless, other = decode("a", free=5), decode("b", 64, 0.0), decode("c", 60, 90_000)
    assert place_decode(1000, [full, seatless, other], POLICY).chosen == "c"


def test_a_slow_link_loses_its_share():
    states = [decode("slow", exposed=2.0), decode("quick", 8, 8_000)]
    assert place_decode(1000, states, POLICY).chosen == "quick"


def test_hot_prefixes_spread_without_losing_their_hits():
    """B2 on a synthetic workload: block 0 is in every prompt, conversations grow, four workers at 70 % load.

    Ideal is the hit rate of one cache that sees everything.
    """
    rng = random.Random(11)
    block, workers, rate = 64, ["a", "b", "c", "d"], 1000.0
    policy = PlacementPolicy(block_tokens=block, chunk_tokens=512)
    prompts, conversations = [], []
    for number in range(3000):
        if conversations and rng.random() < 0.5:
            turn = rng.choice(conversations[-40:])
            turn.extend((number, i) for i in range(rng.randrange(2, 12)))
        else:
            turn = [(-1, 0), *((number, i) for i in range(rng.randrange(4, 40)))]
            conversations.append(turn)
        prompts.append(list(turn))
    ideal_cache, ideal, total = set(), 0, 0
    caches = {name: OrderedDict() for name in workers}
    work, free_at, hits = dict.fromkeys(workers, 0.0), dict.fromkeys(workers, 0.0), 0
    busy = 0.0
    mean_uncached = 0.63 * sum(map(len, prompts)) / len(prompts) * block
    gap_s = mean_uncached / rate / len(workers) / 0.7
    now = 0.0
    for prompt in prompts:
        now += rng.expovariate(1 / gap_s)
        total += len(prompt)
        ideal += held(ideal_cache, prompt)
        ideal_cache.update(prompt)
        cached = {name: held(caches[name], prompt) for name in workers}
        queued = {name: max(0.0, free_at[name] - now) * rate for name in workers}
        busy += 0.01 * (sum(q > 0 for q in queued.values()) / len(workers) - busy)
        states = [PrefillState(n, n, queued[n], rate, 10**6, work[n]) for n in workers]
        chosen = place_prefill(len(prompt) * block, states, cached, busy, policy).chosen
        hits += cached[chosen]
        computed = uncached_tokens(len(prompt) * block, cached[chosen], block)
        work[chosen] += computed
        free_at[chosen] = max(now, free_at[chosen]) + computed / rate
        caches[chosen].update(dict.fromkeys(prompt))
    assert max(work.values()) / (sum(work.values()) / len(workers)) <= 1.15
    assert hits / total >= 0.29 / 0.366 * ideal / total


def held(cache, prompt):
    return next((i for i, one in enumerate(prompt) if one not in cache), len(prompt))
