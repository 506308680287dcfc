"""Decode alone: who gets in, who gives way, when blocks come back. Latent is written as a prefill would."""

import random
from dataclasses import replace

import pytest

from common.engine.events import Failed, Preempted, Reserved, Tokens
from common.engine.settings import DecodeSettings, EngineShape
from common.errors import (
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    DuplicateRequest,
    InternalError,
    InvalidInput,
    Overloaded,
    TransferTimeout,
)
from common.parallel.waits import run
from common.request import FinishReason, GeneratedToken, Handoff, Work
from tests.fakes.engines import MakePair, Pair, make_work, prompt
from tests.fakes.scripted_model import ScriptedModel


class Decode:
    """Drives the decode half of a pair; `land` does the prefill's and the reader's part."""

    def __init__(self, pair: Pair, model: ScriptedModel) -> None:
        self.pair, self.model, self.engine = pair, model, pair.decode
        self.reserved: dict[str, Reserved] = {}
        self.tokens: dict[str, list[int]] = {}
        self.finish: dict[str, FinishReason | None] = {}

    def step(self, seconds: float = 0.01) -> list:
        self.pair.clock.advance(seconds)
        events = run(self.engine.step())
        for event in events:
            if isinstance(event, Reserved):
                self.reserved[event.work_id] = event
            if isinstance(event, Tokens):
                self.tokens[event.work_id] += [token.token_id for token in event.tokens]
                self.finish[event.work_id] = event.finish_reason
        return events

    def land(self, work: Work) -> bool:
        reserved = self.reserved[work.work_id]
        blocks = reserved.blocks
        for index in range(reserved.cached_blocks, len(blocks)):
            for offset in range(min(8, len(work.token_ids) - index * 8)):
                position = index * 8 + offset
                for layer in range(2):
                    row = self.engine.runner.pool.tensor[blocks[index], layer, offset]
                    row[0] = (*work.token_ids, 0)[position + layer]
                    row[1] = position
        first = self.model.greedy(work.token_ids, 1)[0]
        last = (len(work.token_ids) - 1) % 8
        self.engine.runner.pool.tensor[blocks[-1], 1, last, 0] = first
        self.tokens[work.work_id] = [first]
        return self.engine.landed(work.work_id, Handoff(GeneratedToken(len(work.token_ids), first)))

    def start(self, work: Work) -> None:
        self.engine.admit(work)
        self.step()
        assert self.land(work)

    def finish_all(self, steps: int = 2000) -> None:
        for _ in range(steps):
            if not self.engine.has_work():
                return
            for event in self.step():
                assert not isinstance(event, Failed)
        raise AssertionError("decode did not come to its end")


def make(make_pair: MakePair, **settings: object) -> Decode:
    model = settings.pop("model", None) or ScriptedModel()
    return Decode(make_pair(model, **settings), model)


def test_work_is_queued_reserved_landed_run(make_pair: MakePair) -> None:
    decode = make(make_pair)
    work = make_work(prompt(20), 6)
    assert decode.engine.admit(work) == 0
    (reserved,) = decode.step()
    assert len(reserved.blocks) == 3
    assert decode.step() == []
    assert decode.land(work)
    decode.finish_all()
    assert decode.tokens[work.work_id] == decode.model.greedy(work.token_ids, 6)
    assert decode.finish[work.work_id] is FinishReason.LENGTH


def test_admission_leaves_room_for_growth_of_those_who_run(make_pair: MakePair) -> None:
    decode = make(make_pair, decode_blocks=9, growth=16)
    first = make_work(prompt(16), 30)
    decode.start(first)
    # It holds 3 blocks of 9 and keeps 2; the second takes 2 and keeps 2 itself, so nothing is left for a third.
    second, third = make_work(prompt(16, 1), 30), make_work(prompt(8, 2), 2)
    decode.engine.admit(second)
    assert any(isinstance(event, Reserved) for event in decode.step())
    decode.engine.admit(third)
    assert not any(isinstance(event, Reserved) for event in decode.step())
    assert decode.engine.load().queued == 2
    decode.engine.cancel(second.work_id)
    decode.engine.reader_stopped(second.work_id)
    assert any(isinstance(event, Reserved) and event.work_id == third.work_id for event in decode.step())
    decode.land(third)
    decode.finish_all()


def test_small_new_work_does_not_pass_large_work_that_waits(make_pair: MakePair) -> None:
    decode = make(make_pair, decode_blocks=8, growth=8)
    running, large, small = make_work(prompt(24), 20), make_work(prompt(40, 1), 5), make_work(prompt(4, 2), 2)
    decode.start(running)
    decode.engine.admit(large)
    decode.engine.admit(small)
    order = []
    while len(order) < 2:
        for event in decode.step():
            if isinstance(event, Reserved):
                order.append(event.work_id)
                decode.land(next(w for w in (large, small) if w.work_id == event.work_id))
    assert order == [large.work_id, small.work_id]
    decode.finish_all()


def test_resumed_then_important_work_leaves_the_queue_first(make_pair: MakePair) -> None:
    decode = make(make_pair, running=1)
    running = make_work(prompt(8), 4)
    decode.start(running)
    plain, urgent = make_work(prompt(8, 1), 2), make_work(prompt(8, 2), 2, priority=5)
    resumed = make_work(prompt(8, 3), 5, prompt_tokens=6)
    for work in (plain, urgent, resumed):
        decode.engine.admit(work)
    order = []
    while len(order) < 3:
        for event in decode.step():
            if isinstance(event, Reserved):
                order.append(event.work_id)
                decode.land(next(w for w in (plain, urgent, resumed) if w.work_id == event.work_id))
    assert order == [resumed.work_id, urgent.work_id, plain.work_id]
    decode.finish_all()


def test_the_newest_and_least_important_gives_way(make_pair: MakePair) -> None:
    decode = make(make_pair, decode_blocks=12, growth=0, context=64)
    important = make_work(prompt(16, 1), 30, priority=1)
    old, new = make_work(prompt(16, 2), 30), make_work(prompt(16, 3), 30)
    for work in (old, new, important):
        decode.start(work)
    preempted = []
    while decode.engine.has_work():
        preempted += [event.work_id for event in decode.step() if isinstance(event, Preempted)]
    assert preempted[:1] == [new.work_id]
    assert important.work_id not in preempted
    for work in (important, old):
        assert decode.tokens[work.work_id] == decode.model.greedy(work.token_ids, 30)


@pytest.mark.parametrize("drafts", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_exactly_max_tokens_come_out(make_pair: MakePair, drafts: int, count: int) -> None:
    """D1."""
    decode = make(make_pair, drafts=drafts)
    work = make_work(prompt(9), count)
    decode.engine.admit(work)
    decode.step()
    if count == 1:  # prefill's token was the last: decode has nothing to say
        first = GeneratedToken(9, 1)
        assert decode.engine.landed(work.work_id, Handoff(first, (), FinishReason.LENGTH))
        assert decode.step() == []
        return
    decode.land(work)
    decode.finish_all()
    assert decode.tokens[work.work_id] == decode.model.greedy(work.token_ids, count)


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_the_context_limit_ends_work_with_length(make_pair: MakePair, drafts: int) -> None:
    decode = make(make_pair, drafts=drafts, context=32)
    work = make_work(prompt(20), 1000)
    decode.start(work)
    decode.finish_all()
    assert len(decode.tokens[work.work_id]) == 12
    assert decode.finish[work.work_id] is FinishReason.LENGTH


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_a_stop_id_ends_the_text_inside_accepted_drafts_too(make_pair: MakePair, drafts: int) -> None:
    for seed in range(12):
        decode = make(make_pair, drafts=drafts)
        token_ids = prompt(9, seed)
        stop = decode.model.greedy(tuple(token_ids), 3 + seed % 4)[-1]
        work = make_work(token_ids, 40, stop=frozenset({stop}))
        decode.start(work)
        decode.finish_all()
        expected = decode.model.greedy(work.token_ids, 40, frozenset({stop}))
        if len(expected) > 1:  # else prefill's token had been the stop
            assert decode.tokens[work.work_id] == expected
            assert decode.finish[work.work_id] is FinishReason.STOP


@pytest.mark.parametrize("phase", ["queued", "landing", "running"])
def test_cancel_in_each_phase(make_pair: MakePair, phase: str) -> None:
    decode = make(make_pair, running=1)
    other = make_work(prompt(8, 7), 40)
    work = make_work(prompt(20), 40)
    if phase == "queued":
        decode.start(other)
    decode.engine.admit(work)
    decode.step()
    if phase == "running":
        decode.land(work)
        decode.step()
    free = decode.engine.load().free_blocks
    assert decode.engine.cancel(work.work_id)
    assert not decode.engine.cancel(work.work_id)
    failed = [event for event in decode.step() if isinstance(event, Failed)]
    assert [(event.work_id, type(event.error)) for event in failed] == [(work.work_id, Cancelled)]
    if phase == "landing":  # the reader may still write
        assert decode.engine.load().free_blocks == free
        assert not decode.land(work)
    assert decode.engine.load().free_blocks == (free if phase == "queued" else free + 3)
    decode.finish_all()


def test_blocks_of_a_cancelled_transfer_wait_for_the_reader(make_pair: MakePair) -> None:
    decode = make(make_pair, decode_blocks=4)
    work, next_work = make_work(prompt(24), 4), make_work(prompt(16, 1), 4)
    decode.engine.admit(work)
    decode.step()
    decode.engine.cancel(work.work_id)
    decode.engine.admit(next_work)
    assert not any(isinstance(event, Reserved) for event in decode.step())
    assert decode.engine.reader_stopped(work.work_id)
    assert not decode.engine.reader_stopped(work.work_id)
    assert any(isinstance(event, Reserved) for event in decode.step())
    decode.land(next_work)
    decode.finish_all()


def test_a_failed_transfer_ends_its_work_and_frees_its_blocks(make_pair: MakePair) -> None:
    decode = make(make_pair)
    work = make_work(prompt(24), 4)
    decode.engine.admit(work)
    decode.step()
    decode.engine.transfer_failed(work.work_id, TransferTimeout("too slow"))
    (failed,) = decode.step()
    assert isinstance(failed.error, TransferTimeout)
    decode.engine.check_idle()


def test_a_handoff_for_another_position_is_refused(make_pair: MakePair) -> None:
    decode = make(make_pair)
    work = make_work(prompt(24), 4)
    decode.engine.admit(work)
    decode.step()
    assert not decode.engine.landed(work.work_id, Handoff(GeneratedToken(23, 1)))
    (failed,) = decode.step()
    assert isinstance(failed.error, InternalError)


def test_deadlines_end_work_in_each_phase(make_pair: MakePair) -> None:
    decode = make(make_pair, running=2)
    running, landing, queued = (make_work(prompt(8, i), 50, deadline_s=1.0) for i in range(3))
    decode.start(running)
    decode.engine.admit(landing)
    decode.step()
    decode.engine.admit(queued)
    decode.step()
    ended = {e.work_id: type(e.error) for e in decode.step(2.0) if isinstance(e, Failed)}
    assert ended == dict.fromkeys((running.work_id, landing.work_id, queued.work_id), DeadlineExceeded)
    decode.engine.reader_stopped(landing.work_id)


def test_a_full_queue_refuses(make_pair: MakePair) -> None:
    decode = make(make_pair, queued=1)
    decode.engine.admit(make_work(prompt(20), 4))
    with pytest.raises(Overloaded, match="1 pieces of work wait"):
        decode.engine.admit(make_work(prompt(20, 1), 4))
    decode.engine.fail_all(Cancelled("the test is over"))


def test_work_that_can_never_run_is_refused_naming_the_limit(make_pair: MakePair) -> None:
    decode = make(make_pair, decode_blocks=4, context=64)
    with pytest.raises(InvalidInput, match=r"max_tokens = 13: .* need 5 blocks of 8, this instance has 4"):
        decode.engine.admit(make_work(prompt(20), 13))
    work = make_work(prompt(20), 12)
    decode.start(work)
    with pytest.raises(DuplicateRequest):
        decode.engine.admit(work)
    decode.finish_all()
    assert len(decode.tokens[work.work_id]) == 12


def test_a_batch_never_exceeds_its_bound(make_pair: MakePair) -> None:
    decode = make(make_pair, running=3, drafts=2, step_tokens=9)
    works = [make_work(prompt(8, i), 12) for i in range(9)]
    for work in works:
        decode.engine.admit(work)
    while decode.engine.has_work():
        for event in decode.step():
            if isinstance(event, Reserved):
                decode.land(next(w for w in works if w.work_id == event.work_id))
    assert max(batch.tokens for batch in decode.model.batches) == 9
    with pytest.raises(ConfigError, match="up to 9 tokens, over max_step_tokens = 8"):
        DecodeSettings(EngineShape(8, 64, max_running=3, max_step_tokens=8, draft_tokens=2))


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize(("answer", "cached"), [(20, 4), (21, 5)])
def test_the_next_turn_finds_prompt_and_answer_in_the_cache(
    make_pair: MakePair, drafts: int, answer: int, cached: int
) -> None:
    """The last token's latent was never computed: its block is not in the cache even if it is the block's last."""
    decode = make(make_pair, drafts=drafts)
    first = make_work(prompt(20), answer)
    decode.start(first)
    decode.finish_all()
    turn = make_work((*first.token_ids, *decode.tokens[first.work_id], *prompt(9, 1)), 10)
    decode.start(turn)
    assert decode.reserved[turn.work_id].cached_blocks == cached
    decode.finish_all()
    assert decode.tokens[turn.work_id] == decode.model.greedy(turn.token_ids, 10)


def test_shared_prefixes_are_not_written_and_not_copied_twice(make_pair: MakePair) -> None:
    decode = make(make_pair, drafts=1)
    prefix = prompt(16)
    works = [make_work([*prefix, *prompt(5, i)], 12) for i in range(4)]
    decode.start(works[0])
    for work in works[1:]:
        decode.start(work)
        assert decode.reserved[work.work_id].cached_blocks == 2
        assert decode.reserved[work.work_id].blocks[:2] == decode.reserved[works[0].work_id].blocks[:2]
    decode.finish_all()
    for work in works:
        assert decode.tokens[work.work_id] == decode.model.greedy(work.token_ids, 12)


def test_a_step_that_fails_ends_its_work_typed(make_pair: MakePair) -> None:
    errors = [RuntimeError("out of memory")]
    decode = make(make_pair, model=ScriptedModel(step_error=lambda batch: errors.pop() if errors else None))
    work = make_work(prompt(9), 5)
    decode.start(work)
    (failed,) = decode.step()
    assert isinstance(failed.error, InternalError)
    again = replace(work, work_id="again")
    decode.start(again)
    decode.finish_all()
    assert decode.tokens["again"] == decode.model.greedy(work.token_ids, 5)


def test_random_lives_leave_nothing_behind(make_pair: MakePair) -> None:
    """Admissions, landings, cancels, failures and preemptions in any order; texts stay right."""
    for seed in range(4):
        rng = random.Random(seed)
        decode = make(make_pair, decode_blocks=14, drafts=seed % 3, growth=4, context=80)
        live: dict[str, Work] = {}
        for _ in range(400):
            action = rng.random()
            if action < 0.2:
                work = make_work(prompt(rng.randint(1, 40), rng.randrange(5)), rng.randint(2, 30))
                live[work.work_id] = work
                decode.engine.admit(work)
            elif action < 0.5 and decode.reserved:
                work_id = rng.choice(sorted(decode.reserved))
                if rng.random() < 0.15:
                    decode.engine.transfer_failed(work_id, TransferTimeout("slow"))
                else:
                    decode.land(live[work_id])
                del decode.reserved[work_id]
            elif action < 0.55 and live:
                decode.engine.cancel(rng.choice(sorted(live)))
            else:
                for event in decode.step():
                    if isinstance(event, Tokens) and event.finish_reason is not None:
                        work = live.pop(event.work_id)
                        assert decode.tokens[work.work_id] == decode.model.greedy(
                            work.token_ids, work.limits.max_tokens
                        )
            decode.pair.decode.pool.check()
        for work_id in sorted(live):
            decode.engine.cancel(work_id)
            decode.engine.reader_stopped(work_id)
        decode.step()
