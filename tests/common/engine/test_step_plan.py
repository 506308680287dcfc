"""Laying spans out as a ragged batch; plans travel."""

import pickle

import torch

from common.engine.step_plan import SequenceStep, Span, StepPlan, forward_batch
from common.model.batch import AttentionForm, Schedule


def test_spans_become_one_ragged_batch() -> None:
    batch = forward_batch([Span((5, 6, 7), 3, (9, 2, 4)), Span((8,), 0, (1,))], 4, torch.device("cpu"))
    assert batch.token_ids.tolist() == [5, 6, 7, 8]
    assert batch.positions.tolist() == [3, 4, 5, 0]
    assert batch.slots.tolist() == [9 * 4 + 3, 2 * 4, 2 * 4 + 1, 1 * 4]
    assert batch.query_tokens.tolist() == [3, 1]
    assert batch.total_tokens.tolist() == [6, 1]
    assert batch.block_tables.tolist() == [[9, 2], [1, 0]]


def test_a_rank_without_tokens_has_an_empty_batch() -> None:
    batch = forward_batch([], 4, torch.device("cpu"))
    assert (batch.tokens, batch.sequences, tuple(batch.block_tables.shape)) == (0, 0, (0, 0))


def test_a_plan_survives_pickling() -> None:
    steps = (SequenceStep((1, 2), 0, (3,), following=4), SequenceStep((1, 2), 7, (3, 4), drafts=1, propose_before=9))
    plan = StepPlan(3, steps, AttentionForm.ABSORBED, Schedule.DUAL_MICROBATCH, 1, 2)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert [step.draws for step in plan.sequences] == [0, 2]
