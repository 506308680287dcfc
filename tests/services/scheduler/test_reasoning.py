"""Reasoning tokens (pitfall D2): up to and including `</think>`, wherever it stands."""

import pytest

from services.scheduler.reasoning import ReasoningCount

START, END = 100, 101


@pytest.mark.parametrize(
    ("prompt", "generated", "reasoning"),
    [
        ([1, START], [5, 6, END, 7], 3),
        ([1, START, 9], [END, 7], 1),  # as the first token, straight from prefill
        ([1], [START, 5, END, 7], 3),
        ([1], [END], 1),
        ([1, START], [5, 6], 2),  # cut off while thinking
        ([1], [START, 5], 2),
        ([1, START, 2, END], [5, 6], 0),
        ([1], [5, 6], 0),
        ([1], [5, START, 6], 0),
    ],
)
def test_counts(prompt, generated, reasoning):
    count = ReasoningCount(prompt, START, END)
    for token in generated:
        count.feed(token)
    assert count.tokens == reasoning


def test_a_model_without_the_tokens_has_none():
    count = ReasoningCount([1, 2], None, None)
    count.feed(3)
    assert count.tokens == 0
