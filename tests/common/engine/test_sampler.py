"""What changes logits before a draw, and log-probabilities, in closed form."""

import math

import pytest
import torch

from common.engine.draw_rule import DrawRule
from common.engine.sampler import DrawRow, Sampler
from common.request import Sampling
from tests.fakes.engines import make_work

VOCAB = 16
CPU = torch.device("cpu")


def rule(prompt: tuple[int, ...] = (1,), *, prompt_tokens: int | None = None, **rest: object) -> DrawRule:
    limits = {key: rest.pop(key) for key in ("stop", "min_tokens", "logprobs") if key in rest}
    sampling = Sampling(**{"temperature": 0.0, **rest})
    return DrawRule(make_work(prompt, 9, sampling=sampling, prompt_tokens=prompt_tokens, **limits), VOCAB, CPU)


def logits(**values: float) -> torch.Tensor:
    out = torch.zeros(1, VOCAB)
    for token, value in values.items():
        out[0, int(token[1:])] = value
    return out


def drawn(draw_rule: DrawRule, values: torch.Tensor, position: int = 1, ahead: tuple[int, ...] = ()) -> int:
    return int(Sampler().draw(values, [DrawRow(draw_rule, position, ahead)]).token_ids[0])


def test_presence_counts_once_and_frequency_every_time() -> None:
    presence, frequency = rule(presence_penalty=1.0), rule(frequency_penalty=1.0)
    for each in (presence, frequency):
        each.append((3, 3, 3))
    values = logits(t3=3.5, t4=2.2)
    assert torch.equal(presence.alter(values[0], 4, ()), logits(t3=2.5, t4=2.2)[0])
    assert torch.equal(frequency.alter(values[0], 4, ()), logits(t3=0.5, t4=2.2)[0])
    assert (drawn(presence, values), drawn(frequency, values)) == (3, 4)


def test_presence_and_frequency_leave_the_prompt_alone_and_repetition_does_not() -> None:
    values = logits(t5=2.0, t6=1.5)
    assert drawn(rule((5, 5), presence_penalty=2.0, frequency_penalty=2.0), values) == 5
    assert drawn(rule((5, 5), repetition_penalty=2.0), values) == 6


def test_repetition_divides_positive_and_multiplies_negative_logits() -> None:
    values = logits(t5=3.0, t6=-1.0, t7=-1.0)
    altered = rule((5, 6), repetition_penalty=2.0).alter(values[0], 2, ())
    assert altered[[5, 6, 7]].tolist() == [1.5, -2.0, -1.0]


def test_a_resumed_attempt_counts_what_was_already_sent() -> None:
    fresh = rule((1, 2), frequency_penalty=0.5)
    fresh.append((3, 3))
    resumed = rule((1, 2, 3, 3), prompt_tokens=2, frequency_penalty=0.5)
    values = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    assert torch.equal(fresh.alter(values, 4, ()), resumed.alter(values, 4, ()))


def test_drafts_ahead_count_for_their_row_only() -> None:
    penalized = rule(frequency_penalty=1.0, presence_penalty=0.5, repetition_penalty=1.5)
    counted = rule(frequency_penalty=1.0, presence_penalty=0.5, repetition_penalty=1.5)
    counted.append((7,))
    values = torch.randn(VOCAB, generator=torch.Generator().manual_seed(2))
    assert torch.equal(penalized.alter(values, 2, (7,)), counted.alter(values, 2, ()))
    assert not torch.equal(penalized.alter(values, 1, ()), counted.alter(values, 1, ()))


def test_bias_moves_a_token_and_keeps_the_rest() -> None:
    assert drawn(rule(logit_bias={9: 5.0}), logits(t3=4.0)) == 9
    assert drawn(rule(logit_bias={3: -5.0}), logits(t3=4.0, t2=1.0)) == 2


def test_stop_ids_are_never_drawn_before_min_tokens() -> None:
    held = rule((1, 1), stop=frozenset({3}), min_tokens=2)
    values = logits(t3=9.0, t4=1.0)
    assert [drawn(held, values, position) for position in (2, 3, 4)] == [4, 4, 3]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 100.0])
def test_ids_without_a_token_are_never_drawn(temperature: float) -> None:
    undrawable = torch.zeros(VOCAB, dtype=torch.bool)
    undrawable[8:] = True
    sampler = Sampler(undrawable)
    values = logits(t12=50.0, t3=1.0).expand(200, VOCAB).contiguous()
    any_rule = rule(temperature=temperature, logit_bias={15: 90.0})
    token_ids = sampler.draw(values, [DrawRow(any_rule, position) for position in range(1, 201)]).token_ids
    assert int(token_ids.max()) < 8


def test_logprobs_are_the_models_own_whatever_else_is_asked() -> None:
    asked = rule(temperature=0.3, logit_bias={9: 50.0}, presence_penalty=1.0, logprobs=3)
    values = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(3))
    (logprobs,) = Sampler().draw(values, [DrawRow(asked, 1)]).logprobs
    assert logprobs is not None
    exact = values[0].double().log_softmax(-1)
    assert logprobs.chosen == pytest.approx(float(exact[9]), abs=1e-5)
    order = exact.argsort(descending=True)[:3].tolist()
    assert [token for token, _ in logprobs.top] == order
    assert [value for _, value in logprobs.top] == pytest.approx([float(exact[i]) for i in order], abs=1e-5)


def test_logprobs_of_zero_alternatives_carry_the_chosen_one() -> None:
    drawn_rows = Sampler().draw(torch.zeros(2, VOCAB), [DrawRow(rule(logprobs=0), 1), DrawRow(rule(), 1)])
    first, second = drawn_rows.logprobs
    assert first is not None
    assert (first.top, second) == ((), None)
    assert first.chosen == pytest.approx(-math.log(VOCAB))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_cannot_be_drawn_from_is_told_apart_and_harms_no_other(bad: float) -> None:
    values = torch.stack([torch.full((VOCAB,), bad), logits(t3=1.0)[0]])
    out = Sampler().draw(values, [DrawRow(rule(), 1), DrawRow(rule(temperature=1.0), 1)])
    alone = Sampler().draw(values[1:], [DrawRow(rule(temperature=1.0), 1)])
    assert out.possible == (False, True)
    assert out.token_ids[1] == alone.token_ids[0]
