"""Prefill alone: what it announces, when it frees, whom it serves first."""

import pytest

from common.engine.events import BlocksReady, Failed, FirstToken, HandoffReady, Started
from common.errors import (
    Cancelled,
    DeadlineExceeded,
    DuplicateRequest,
    InternalError,
    InvalidInput,
    LeaseLost,
    Overloaded,
)
from common.parallel.waits import run
from common.request import FinishReason, Sampling
from tests.fakes.engines import MakePair, Pair, make_work, prompt
from tests.fakes.scripted_model import ScriptedModel


def step(pair: Pair, seconds: float = 0.01) -> list:
    pair.clock.advance(seconds)
    return run(pair.prefill.step())


def until_idle(pair: Pair, steps: int = 500) -> list:
    events = []
    for _ in range(steps):
        if not pair.prefill.has_work():
            return events
        events.extend(step(pair))
    raise AssertionError("prefill did not come to its end")


def free(pair: Pair) -> int:
    return pair.prefill.load().free_blocks


def test_events_of_one_prompt_in_order(make_pair: MakePair) -> None:
    pair = make_pair(drafts=1, chunk=16)
    work = make_work(prompt(37), 5)
    pair.prefill.submit(work, True)
    steps = [step(pair) for _ in range(3)]
    assert [type(event) for event in steps[0]] == [Started, BlocksReady]
    assert [type(event) for event in steps[1]] == [BlocksReady]
    assert [type(event) for event in steps[2]] == [FirstToken, BlocksReady, HandoffReady]
    ready = [block for events in steps for e in events if isinstance(e, BlocksReady) for block in e.blocks]
    assert [(block.index, block.tokens, len(block.chain_hash)) for block in ready] == [
        (0, 8, 16),
        (1, 8, 16),
        (2, 8, 16),
        (3, 8, 16),
        (4, 5, 0),
    ]
    assert len({block.tag for block in ready}) == 5
    assert steps[0][0].blocks == 5
    pair.prefill.release_lease(work.work_id)


def test_the_first_token_does_not_wait_for_drafts(make_pair: MakePair) -> None:
    model = ScriptedModel()
    pair = make_pair(model, drafts=2)
    seen: list[tuple[str, int]] = []
    draft_passes = [0]
    original = model.mtp_logits

    def counting(hidden):
        draft_passes[0] += 1
        return original(hidden)

    model.mtp_logits = counting
    pair.prefill.early = lambda events: seen.extend((type(event).__name__, draft_passes[0]) for event in events)
    work = make_work(prompt(5), 5)
    pair.prefill.submit(work, True)
    late = step(pair)
    assert seen == [("Started", 0), ("FirstToken", 0)]
    assert draft_passes[0] == 2
    assert [type(event) for event in late] == [BlocksReady, HandoffReady]
    pair.prefill.release_lease(work.work_id)


@pytest.mark.parametrize(("length", "cached"), [(7, 0), (8, 0), (9, 8), (16, 8), (17, 16), (40, 32)])
def test_a_cached_prompt_still_computes_its_last_token(make_pair: MakePair, length: int, cached: int) -> None:
    model = ScriptedModel()
    pair = make_pair(model)
    tags = []
    for expected in (0, cached):
        work = make_work(prompt(length), 5)
        pair.prefill.submit(work, True)
        events = []
        for _ in range(5):
            events += step(pair)
        started = next(event for event in events if isinstance(event, Started))
        first = next(event for event in events if isinstance(event, FirstToken))
        assert started.cached_tokens == expected
        assert first.token.token_id == model.greedy(work.token_ids, 1)[0]
        tags.append([b.tag for event in events if isinstance(event, BlocksReady) for b in event.blocks if b.chain_hash])
        pair.prefill.release_lease(work.work_id)
    assert tags[0] == tags[1]


def test_tenants_never_share_blocks(make_pair: MakePair) -> None:
    pair = make_pair()
    cached = []
    for tenant in ("t1", "t2", "t1"):
        pair.prefill.submit(make_work(prompt(20), 5, tenant=tenant), False)
        cached += [event.cached_tokens for event in until_idle(pair) if isinstance(event, Started)]
    assert cached == [0, 0, 16]


def test_without_a_reader_blocks_are_free_at_the_end(make_pair: MakePair) -> None:
    pair = make_pair(drafts=1)
    pair.prefill.submit(make_work(prompt(20), 1), False)
    events = until_idle(pair)
    assert [type(event) for event in events] == [Started, FirstToken]
    assert events[1].finish_reason is FinishReason.LENGTH
    pair.check_idle()


def test_a_lease_keeps_blocks_until_released(make_pair: MakePair) -> None:
    pair = make_pair(lease_s=5)
    before = free(pair)
    work = make_work(prompt(20), 5)
    pair.prefill.submit(work, True)
    for _ in range(3):
        step(pair)
    assert free(pair) == before - 3
    assert pair.prefill.release_lease(work.work_id)
    assert free(pair) == before
    assert not pair.prefill.release_lease(work.work_id)


def test_a_lease_expires_by_the_clock_alone_and_renewal_puts_it_off(make_pair: MakePair) -> None:
    pair = make_pair(lease_s=5)
    work = make_work(prompt(20), 5)
    pair.prefill.submit(work, True)
    for _ in range(3):
        step(pair)
    step(pair, 4)
    assert pair.prefill.renew_lease(work.work_id)
    assert step(pair, 4) == []
    (failed,) = step(pair, 1.5)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, LeaseLost)
    assert not pair.prefill.renew_lease(work.work_id)
    pair.prefill.check_idle()


def test_a_leases_time_starts_with_the_last_block(make_pair: MakePair) -> None:
    pair = make_pair(chunk=4, lease_s=5)
    work = make_work(prompt(20), 5)
    pair.prefill.submit(work, True)
    events = [event for _ in range(5) for event in step(pair, 3)]
    assert isinstance(events[-1], HandoffReady)
    assert step(pair, 4.9) == []
    assert isinstance(step(pair, 0.2)[0], Failed)


def test_a_reader_that_gives_up_early_leaves_the_first_token(make_pair: MakePair) -> None:
    pair = make_pair(chunk=8)
    work = make_work(prompt(20), 5)
    pair.prefill.submit(work, True)
    step(pair)
    assert pair.prefill.release_lease(work.work_id)
    assert any(isinstance(event, FirstToken) for event in until_idle(pair))
    pair.check_idle()


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_cancel_returns_blocks_at_once_in_every_phase(make_pair: MakePair, steps: int) -> None:
    pair = make_pair(chunk=8)
    work = make_work(prompt(20), 5)
    pair.prefill.submit(work, True)
    for _ in range(steps):
        step(pair)
    assert pair.prefill.cancel(work.work_id)
    assert not pair.prefill.cancel(work.work_id)
    assert free(pair) == 64
    (failed,) = step(pair)
    assert isinstance(failed.error, Cancelled)
    pair.prefill.check_idle()


def test_deadlines_are_checked_each_step_in_queue_and_computation(make_pair: MakePair) -> None:
    pair = make_pair(running=1, chunk=4)
    computing = make_work(prompt(40), 5, deadline_s=1.0)
    queued = make_work(prompt(40), 5, deadline_s=0.5)
    pair.prefill.submit(computing, True)
    step(pair)
    pair.prefill.submit(queued, True)
    ended = [(event.work_id, type(event.error)) for event in step(pair, 0.6) if isinstance(event, Failed)]
    assert ended == [(queued.work_id, DeadlineExceeded)]
    ended = [(event.work_id, type(event.error)) for event in step(pair, 0.6) if isinstance(event, Failed)]
    assert ended == [(computing.work_id, DeadlineExceeded)]
    pair.prefill.check_idle()


def test_work_that_can_never_run_is_refused_naming_the_limit(make_pair: MakePair) -> None:
    pair = make_pair(prefill_blocks=4, context=48)
    for token_ids in (prompt(48), prompt(33), [1, 97], [-1]):
        with pytest.raises(InvalidInput, match="token_ids = "):
            pair.prefill.submit(make_work(token_ids, 5), True)
    with pytest.raises(InvalidInput, match=r"logit_bias = 97"):
        pair.prefill.submit(make_work([1], 5, sampling=Sampling(logit_bias={97: 1.0})), True)
    with pytest.raises(InvalidInput, match=r"seed = "):
        pair.prefill.submit(make_work([1], 5, sampling=Sampling(seed=1 << 63)), True)
    with pytest.raises(InvalidInput, match=r"max_tokens = 2: must exceed the 2 tokens"):
        pair.prefill.submit(make_work([1, 2, 3], 2, prompt_tokens=1), True)
    pair.prefill.submit(make_work(prompt(32), 5), False)
    assert any(isinstance(event, FirstToken) for event in until_idle(pair))


def test_a_full_queue_refuses_and_takes_again(make_pair: MakePair) -> None:
    pair = make_pair(running=1, queued=2)
    for seed in range(2):
        pair.prefill.submit(make_work(prompt(20, seed), 1), False)
    with pytest.raises(Overloaded, match="2 pieces of work wait"):
        pair.prefill.submit(make_work(prompt(20, 3), 1), False)
    step(pair)
    pair.prefill.submit(make_work(prompt(20, 4), 1), False)
    assert len([event for event in until_idle(pair) if isinstance(event, FirstToken)]) == 3


def test_an_id_is_known_until_its_lease_ends(make_pair: MakePair) -> None:
    pair = make_pair()
    work = make_work(prompt(5), 5)
    pair.prefill.submit(work, True)
    with pytest.raises(DuplicateRequest):
        pair.prefill.submit(work, True)
    step(pair)
    with pytest.raises(DuplicateRequest):
        pair.prefill.submit(work, True)
    pair.prefill.release_lease(work.work_id)
    pair.prefill.submit(work, False)
    until_idle(pair)


def test_a_prompt_that_does_not_fit_now_waits_for_blocks(make_pair: MakePair) -> None:
    pair = make_pair(prefill_blocks=6)
    first, second = make_work(prompt(40), 5), make_work(prompt(30, 1), 5)
    pair.prefill.submit(first, True)
    events = [event for _ in range(4) for event in step(pair)]
    pair.prefill.submit(second, True)
    assert step(pair) == []
    assert pair.prefill.load().queued_tokens == 30
    pair.prefill.release_lease(first.work_id)
    assert isinstance(step(pair)[0], Started)
    assert sum(isinstance(event, Started) for event in events) == 1
    pair.prefill.cancel(second.work_id)
    until_idle(pair)


def test_a_prompt_starts_when_it_is_computed_and_not_before(make_pair: MakePair) -> None:
    """Blocks of prompts that only wait would be missing elsewhere, and decode would reserve for them too early."""
    pair = make_pair(chunk=16, step_tokens=32)
    works = [make_work(prompt(40, i), 2) for i in range(4)]
    for work in works:
        pair.prefill.submit(work, False)
    first = step(pair)
    assert [event.work_id for event in first] == [work.work_id for work in works[:2]]
    assert pair.prefill.load().queued == 2
    assert free(pair) == 64 - 2 * 5
    until_idle(pair)


def test_two_long_prompts_hold_fifty_short_ones_up_for_two_steps_at_most(make_pair: MakePair) -> None:
    """B6: the head of the queue never blocks those behind it."""
    pair = make_pair(prefill_blocks=600, context=2048, running=64, chunk=64, step_tokens=128, aging_tokens_per_s=100.0)
    longs = [make_work(prompt(1600, i), 2) for i in range(2)]
    for work in longs:
        pair.prefill.submit(work, False)
    for _ in range(3):
        step(pair)
    arrivals = {}
    firsts = {}
    shorts = [make_work(prompt(5, i), 2) for i in range(50)]
    number = 0
    while shorts or pair.prefill.has_work():
        if shorts:
            work = shorts.pop()
            arrivals[work.work_id] = number
            pair.prefill.submit(work, False)
        number += 1
        for event in step(pair):
            if isinstance(event, FirstToken):
                firsts[event.work_id] = number
    assert max(firsts[work_id] - arrived for work_id, arrived in arrivals.items()) == 1
    assert all(work.work_id in firsts for work in longs)


def test_a_long_prompt_overtakes_a_stream_of_short_ones_once_it_has_waited(make_pair: MakePair) -> None:
    pair = make_pair(prefill_blocks=64, chunk=16, step_tokens=16, aging_tokens_per_s=100.0)
    long = make_work(prompt(200), 2)
    pair.prefill.submit(long, False)
    for number in range(1000):
        for i in range(2):  # as many tokens as a step has, every step
            pair.prefill.submit(make_work(prompt(8, 2 * number + i), 2), False)
        if any(isinstance(event, FirstToken) and event.work_id == long.work_id for event in step(pair)):
            break
    # It is first after 200 / 100 s = 2 s = 200 steps at the latest; its own 13 steps follow, and those it passed by.
    assert number < 250
    until_idle(pair, 3000)


def test_a_step_that_fails_ends_its_work_typed_and_the_next_goes_on(make_pair: MakePair) -> None:
    errors = [RuntimeError("out of memory")]
    pair = make_pair(ScriptedModel(step_error=lambda batch: errors.pop() if errors else None))
    work = make_work(prompt(5), 5)
    pair.prefill.submit(work, True)
    events = step(pair)
    assert [type(event) for event in events] == [Started, Failed]
    assert isinstance(events[1].error, InternalError)
    pair.prefill.check_idle()
    pair.prefill.submit(make_work(prompt(5), 5), False)
    assert any(isinstance(event, FirstToken) for event in until_idle(pair))


def test_logits_without_a_number_fail_their_own_work_only(make_pair: MakePair) -> None:
    model = ScriptedModel()
    pair = make_pair(model)
    good, bad = make_work(prompt(5), 5), make_work(prompt(6), 5)
    state = 0
    for token in bad.token_ids:
        state = (state * 31 + token + 1) % 65_521
    model.poisoned.add(state)
    pair.prefill.submit(good, False)
    pair.prefill.submit(bad, False)
    events = step(pair)
    assert [(type(e), e.work_id) for e in events[2:]] == [(FirstToken, good.work_id), (Failed, bad.work_id)]
    pair.prefill.check_idle()


def test_fail_all_ends_every_phase(make_pair: MakePair) -> None:
    pair = make_pair(running=1, chunk=8)
    held, computing, queued = (make_work(prompt(20, i), 5) for i in range(3))
    for work in (held, computing, queued):
        pair.prefill.submit(work, True)
    for _ in range(4):
        step(pair)
    events = pair.prefill.fail_all(InternalError("broken"))
    assert sorted(event.work_id for event in events) == sorted(w.work_id for w in (held, computing, queued))
    pair.prefill.check_idle()
