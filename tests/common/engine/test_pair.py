"""Both engines together over the scripted model: the text is right whatever the schedule of work."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from common.engine.events import FirstToken, Preempted, Reserved, Tokens
from common.errors import PeerDisconnected
from common.request import Sampling
from tests.fakes.engines import Journey, MakePair, make_work, prompt
from tests.fakes.scripted_model import ScriptedModel

LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 40, 64, 65)


@pytest.mark.parametrize("drafts", [0, 1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_greedy_text_is_the_models_own(make_pair: MakePair, drafts: int, chunk: int) -> None:
    model = ScriptedModel()
    pair = make_pair(model, drafts=drafts, chunk=chunk)
    journeys = [pair.submit(make_work(prompt(length), 20)) for length in LENGTHS]
    pair.run()
    for journey in journeys:
        assert journey.token_ids == model.greedy(journey.work.token_ids, 20)
        assert (journey.accepted > 0) == (drafts > 0)


def pattern(name: str) -> Callable[[int], bool]:
    """Whether the draft for a position is wrong."""
    return {
        "none accepted": lambda position: True,
        "all accepted": lambda position: False,
        "alternating": lambda position: position % 2 == 0,
        "one of three": lambda position: position % 3 != 0,
        "irregular": lambda position: (position * position) % 7 < 3,
    }[name]


@pytest.mark.parametrize("drafts", [1, 2, 3])
@pytest.mark.parametrize("accepted", ["none accepted", "all accepted", "alternating", "one of three", "irregular"])
def test_forced_acceptance_never_changes_greedy_text(make_pair: MakePair, drafts: int, accepted: str) -> None:
    """D4, 15 x 900 tokens."""
    model = ScriptedModel(wrong_draft=pattern(accepted))
    pair = make_pair(model, drafts=drafts, prefill_blocks=64, decode_blocks=256, context=512)
    journeys = [pair.submit(make_work(prompt(5 + 3 * i), 180)) for i in range(5)]
    pair.run()
    for journey in journeys:
        assert journey.token_ids == model.greedy(journey.work.token_ids, 180)
    share = sum(j.accepted for j in journeys) / sum(j.drafted for j in journeys)
    assert {"none accepted": share == 0, "all accepted": share > 0.98}.get(accepted, 0 < share < 1)


SAMPLED = Sampling(temperature=0.7, top_p=0.95, top_k=40, seed=11)
PENALIZED = Sampling(
    temperature=0.9, presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.2, logit_bias={5: 1.5}, seed=3
)


@pytest.mark.parametrize("sampling", [SAMPLED, PENALIZED])
def test_the_same_seed_gives_the_same_text_everywhere(make_pair: MakePair, sampling: Sampling) -> None:
    """Alone and in a batch, with any number of drafts right or wrong, from the cache, and resumed anywhere."""
    token_ids = prompt(20)
    texts = []
    for drafts, others, wrong in (
        (0, 0, "all accepted"),
        (0, 6, "all accepted"),
        (1, 3, "irregular"),
        (3, 6, "irregular"),
    ):
        pair = make_pair(ScriptedModel(wrong_draft=pattern(wrong)), drafts=drafts)
        for i in range(others):
            pair.submit(make_work(prompt(3 + i), 30, sampling=Sampling(temperature=1.0, seed=i)))
        journeys = [pair.submit(make_work(token_ids, 40, sampling=sampling, min_tokens=20, stop=frozenset({9})))]
        pair.run()
        journeys += [pair.submit(make_work(token_ids, 40, sampling=sampling, min_tokens=20, stop=frozenset({9})))]
        pair.run()
        texts += [journey.token_ids for journey in journeys]
        for sent in (1, 13, 39):
            if sent < len(texts[0]):
                resumed = Journey(journeys[0].work, journeys[0].tokens[:sent])
                pair.resume(resumed)
                pair.run()
                texts.append(resumed.token_ids)
    assert all(text == texts[0] for text in texts)
    assert len(set(texts[0])) > 5


def test_penalties_see_drafts_that_stand_before_a_position(make_pair: MakePair) -> None:
    """Six tokens only, so that a token is often drawn right after itself."""
    texts = []
    for drafts in (0, 3):
        pair = make_pair(ScriptedModel(vocab_size=6), drafts=drafts)
        journeys = [
            pair.submit(make_work([1, 2, i % 6], 60, sampling=replace(PENALIZED, frequency_penalty=0.05, seed=i)))
            for i in range(8)
        ]
        pair.run()
        texts.append([journey.token_ids for journey in journeys])
    assert texts[0] == texts[1]


class FewStates(ScriptedModel):
    """The state after a position is one of four, so that draws from one distribution are many."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._table[hidden[:, 0].long() % 4].clone()

    def state(self, token_ids: tuple[int, ...]) -> int:
        state = 0
        for token in token_ids:
            state = (state * 31 + token + 1) % 65_521
        return state


def chi_square_p(statistic: float, degrees: int) -> float:
    """Upper tail, by Wilson and Hilferty's normal approximation."""
    z = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    return 0.5 * math.erfc(z / math.sqrt(2))


@pytest.mark.parametrize("drafts", [0, 2])
def test_draws_follow_the_models_distribution_with_and_without_drafts(make_pair: MakePair, drafts: int) -> None:
    """D5: 2,000 tails of 10 tokens at temperature 0.7 against the softmax itself."""
    vocab = 12
    model = FewStates(vocab_size=vocab, spread=5.0)
    pair = make_pair(
        model, drafts=drafts, running=64, step_tokens=256, prefill_blocks=400, decode_blocks=400, queued=2000
    )
    journeys = [
        pair.submit(make_work([1, 2, 3], 10, sampling=Sampling(temperature=0.7, seed=10_000 * drafts + i)))
        for i in range(2000)
    ]
    pair.run()
    counts = torch.zeros(4, vocab)
    for journey in journeys:
        tokens = (1, 2, 3, *journey.token_ids)
        for position in range(3, 13):
            counts[model.state(tokens[:position]) % 4, tokens[position]] += 1
    assert counts.sum() == 20_000
    expected = (model._table[:4] / 0.7).softmax(-1) * counts.sum(1, keepdim=True)
    kept = expected > 5
    statistic = float((((counts - expected) ** 2 / expected) * kept).sum())
    assert chi_square_p(statistic, int(kept.sum()) - 4) > 0.01
    if drafts:
        assert sum(journey.accepted for journey in journeys) > 5000


@pytest.mark.parametrize("drafts", [0, 1, 2])
def test_preempted_work_resumes_to_the_same_text(make_pair: MakePair, drafts: int) -> None:
    model = ScriptedModel(wrong_draft=pattern("irregular"))
    pair = make_pair(model, drafts=drafts, decode_blocks=14, growth=0, context=100, prefill_blocks=40)
    journeys = [pair.submit(make_work(prompt(10 + 5 * i), 50)) for i in range(5)]
    pair.run()
    assert sum(journey.preemptions for journey in journeys) > 2
    for journey in journeys:
        assert journey.token_ids == model.greedy(journey.work.token_ids[: journey.work.prompt_tokens], 50)


@pytest.mark.parametrize("drafts", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_exactly_max_tokens_come_out_of_both_together(make_pair: MakePair, drafts: int, count: int) -> None:
    """D1."""
    model = ScriptedModel()
    pair = make_pair(model, drafts=drafts)
    journeys = [pair.submit(make_work(prompt(length), count)) for length in LENGTHS]
    pair.run()
    for journey in journeys:
        assert journey.token_ids == model.greedy(journey.work.token_ids, count)
        assert journey.finish == "length"


def test_a_prompt_one_short_of_the_context_gives_one_token(make_pair: MakePair) -> None:
    """A4."""
    for drafts in (0, 2):
        pair = make_pair(drafts=drafts, context=64)
        journey = pair.submit(make_work(prompt(63), 50))
        pair.run()
        assert (len(journey.tokens), journey.finish) == (1, "length")


def test_min_tokens_hold_stop_ids_back_across_a_resume(make_pair: MakePair) -> None:
    model = ScriptedModel()
    everything = frozenset(range(97)) - {4, 8}
    pair = make_pair(model, drafts=2)
    journey = pair.submit(make_work(prompt(9), 30, stop=everything, min_tokens=12))
    pair.run()
    assert set(journey.token_ids[:12]) <= {4, 8}
    assert journey.finish == "stop"
    resumed = Journey(journey.work, journey.tokens[:5])
    pair.resume(resumed)
    pair.run()
    assert resumed.token_ids == journey.token_ids


def test_logprobs_come_with_every_token_and_do_not_depend_on_drafts(make_pair: MakePair) -> None:
    model = ScriptedModel()
    seen = []
    for drafts in (0, 2):
        pair = make_pair(model, drafts=drafts)
        journey = pair.submit(make_work(prompt(9), 20, logprobs=2, sampling=SAMPLED))
        pair.run()
        seen.append([(t.logprobs.chosen, t.logprobs.top) for t in journey.tokens if t.logprobs is not None])
        assert len(seen[-1]) == 20
    assert seen[0] == seen[1]


def test_cancel_in_the_gap_between_prefill_and_decode(make_pair: MakePair) -> None:
    """C1, 1,000 times: the client leaves after prefill, before decode has read anything."""
    pair = make_pair(prefill_blocks=16, decode_blocks=16)
    pair.hold = lambda work_id: True
    for i in range(1000):
        journey = pair.submit(make_work(prompt(20, i), 5))
        while not journey.tokens:
            pair.step()
        pair.forget(journey.work.work_id)
        pair.settle()
        assert pair.prefill.load().free_blocks == 16
        assert pair.decode.load().free_blocks == 16


def test_prefill_is_lost_in_the_middle_of_a_transfer(make_pair: MakePair) -> None:
    """C3, 50 times, decode's side: the reader has given up, the reserved blocks are free and the work is told."""
    model = ScriptedModel()
    pair = make_pair(model, decode_blocks=16)
    pair.hold = lambda work_id: True
    for i in range(50):
        journey = pair.submit(make_work(prompt(20, i), 5))
        while not any(isinstance(event, Reserved) for event in pair.events):
            pair.step()
        pair.events.clear()
        assert pair.decode.load().free_blocks < 16
        pair.decode.transfer_failed(journey.work.work_id, PeerDisconnected("p0 is gone"))
        pair.settle()
        assert isinstance(journey.error, PeerDisconnected)
        assert pair.decode.load().free_blocks == 16
        assert pair.prefill.load().free_blocks == 64
    pair.hold = lambda work_id: False
    journey = pair.submit(make_work(prompt(20), 12))
    pair.run(journey)
    assert journey.token_ids == model.greedy(journey.work.token_ids, 12)


def test_decode_that_ends_early_and_blocks_reused_at_once_harm_nobody(make_pair: MakePair) -> None:
    """C4 as far as engines go: cancelled work's blocks go to the next one only when the reader has stopped."""
    model = ScriptedModel()
    pair = make_pair(model, decode_blocks=6, context=48)
    for i in range(20):
        cancelled = pair.submit(make_work(prompt(20, i), 20))
        for _ in range(1 + i % 5):
            pair.step()
        pair.forget(cancelled.work.work_id)
        journey = pair.submit(make_work(prompt(21, i), 12))
        pair.run(journey)
        assert journey.token_ids == model.greedy(journey.work.token_ids, 12)


def test_every_piece_of_work_ends_exactly_once(make_pair: MakePair) -> None:
    pair = make_pair(decode_blocks=14, growth=0, context=100, drafts=1)
    for i in range(8):
        pair.submit(make_work(prompt(10 + 5 * i), 3 + 9 * i % 40))
    pair.run()
    ends: dict[str, int] = {}
    for event in pair.events:
        if isinstance(event, Preempted) or (isinstance(event, FirstToken | Tokens) and event.finish_reason is not None):
            ends[event.work_id] = ends.get(event.work_id, 0) + 1
    assert set(ends.values()) == {1}


def test_load_tells_what_is_there(make_pair: MakePair) -> None:
    pair = make_pair(chunk=8)
    pair.hold = lambda work_id: True
    journey = pair.submit(make_work(prompt(20), 5))
    assert (pair.prefill.load().queued, pair.prefill.load().queued_tokens) == (1, 20)
    pair.step()
    load = pair.prefill.load()
    assert (load.queued, load.running, load.queued_tokens, load.running_tokens) == (0, 1, 12, 8)
    waiting = pair.decode.load()
    assert (waiting.queued, waiting.queued_tokens, waiting.total_blocks) == (1, 20, 64)
    pair.hold = lambda work_id: False
    pair.run(journey)
    assert pair.decode.load().free_blocks == 64
