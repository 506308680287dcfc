"""Which question is asked, and which options it reads."""

import pytest

from common.errors import InvalidInput
from loadgen.planner.question import Question, question


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, Question.SWEEP),
        ({"gpus": 64, "json": "x"}, Question.SWEEP),
        ({"ep": 8, "tp": 2}, Question.DEPLOYMENT),
        ({"workload": "chat", "rate": 4.0, "ttft": "2s"}, Question.WORKLOAD),
        ({"figures": "out", "tables": "results"}, Question.FIGURES),
        ({"fit": True}, Question.FIT),
        ({"write_docs": "docs"}, Question.DOCUMENTS),
    ],
)
def test_options_say_which_question_it_is(given, asked):
    assert question(given) is asked


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ep": 8, "fit": True}, "ep = 8: not together with fit"),
        ({"batch": 4}, "batch = 4: not with a sweep; only --ep reads it"),
        ({"ep": 8, "ttft": "2s"}, "ttft = 2s: not with --ep; only --workload reads it"),
        ({"workload": "chat", "rate": 1.0, "gpus": 9}, "gpus = 9: not together with rate"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(given, words):
    with pytest.raises(InvalidInput, match=words):
        question(given)
