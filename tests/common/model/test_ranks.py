"""One model over many ranks: experts spread, heads split, ranks without tokens, all schedules. Exact tokens."""

from collections.abc import Sequence

import pytest
import torch

from common.errors import ConfigError
from common.model.batch import AttentionForm, Schedule
from common.model.load import load_model
from common.parallel.expert_placement import ExpertPlacement
from common.parallel.groups import Topology
from tests.oracle.rank_group import RankGroup, Span, prompt
from tests.oracle.zoo import Zoo

NEW_TOKENS = 8
PROMPT_TOKENS = (1, 19, 34, 50)


def greedy(
    group: RankGroup,
    prompts: Sequence[Sequence[list[int]]],
    *,
    prefill: Schedule,
    decode: Schedule,
    tokens: int = NEW_TOKENS,
) -> list[list[list[int]]]:
    """Continue each instance's prompts: prefill in two chunks, then token by token."""
    out: list[list[list[int]]] = [[list(p) for p in own] for own in prompts]
    done = [[0] * len(own) for own in prompts]
    steps = [(AttentionForm.MULTI_HEAD, prefill)] * 2 + [(AttentionForm.ABSORBED, decode)] * (tokens - 1)
    for number, (form, schedule) in enumerate(steps):
        work = []
        for i, own in enumerate(out):
            spans = []
            for j, ids in enumerate(own):
                end = len(prompts[i][j]) // 2 if number == 0 else len(ids)
                spans.append(Span(f"{j}", ids[done[i][j] : end], done[i][j]))
                done[i][j] = end
            work.append(spans)
        logits = group.logits(work, form=form, schedule=schedule)
        for i, own in enumerate(out):
            row = -1
            for j, ids in enumerate(own):
                row += len(work[i][j].token_ids)
                if number > 0:
                    ids.append(int(logits[i][row].argmax()))
    return [[ids[len(p) :] for ids, p in zip(o, own, strict=True)] for o, own in zip(out, prompts, strict=True)]


def spread(prompts: Sequence[list[int]], instances: int) -> list[list[list[int]]]:
    """To instances in turn, but the last instance gets none when there is more than one."""
    busy = max(1, instances - 1)
    return [[p for i, p in enumerate(prompts) if i % busy == instance] for instance in range(instances)]


# (world, tp, prefill's schedule, decode's): every pair of values occurs.
LAYOUTS = [
    (1, 1, Schedule.NONE, Schedule.DUAL_MICROBATCH),
    (1, 1, Schedule.DUAL_MICROBATCH, Schedule.DISPATCH_OVERLAP),
    (2, 1, Schedule.DISPATCH_OVERLAP, Schedule.NONE),
    (2, 2, Schedule.DUAL_MICROBATCH, Schedule.DUAL_MICROBATCH),
    (4, 1, Schedule.DUAL_MICROBATCH, Schedule.DUAL_MICROBATCH),
    (4, 2, Schedule.NONE, Schedule.DISPATCH_OVERLAP),
]


@pytest.mark.parametrize(("world", "tp", "prefill", "decode"), LAYOUTS)
def test_exact_tokens(zoo: Zoo, world: int, tp: int, prefill: Schedule, decode: Schedule) -> None:
    directory = zoo.checkpoint("six_heads" if tp == 2 else "base")
    oracle = zoo.oracle(directory)
    prompts = [prompt(n) for n in PROMPT_TOKENS]
    placed = spread(prompts, world // tp)
    ours = greedy(RankGroup(directory, world=world, tp=tp), placed, prefill=prefill, decode=decode)
    assert ours == [[oracle.greedy(p, NEW_TOKENS) for p in own] for own in placed]


@pytest.mark.parametrize("form", AttentionForm)
@pytest.mark.parametrize(("world", "tp"), [(1, 1), (2, 2)])
def test_a_sequence_cut_in_two_microbatches(zoo: Zoo, world: int, tp: int, form: AttentionForm) -> None:
    """The second half needs the first half's latent of the same layer, and the first must not see the second."""
    directory, tokens = zoo.checkpoint("base"), prompt(37)
    group = RankGroup(directory, world=world, tp=tp)
    rows = [
        group.logits([[Span("a", tokens[start:end], start)]], form=form, schedule=Schedule.DUAL_MICROBATCH)[0]
        for start, end in ((0, 16), (16, 37))
    ]
    torch.testing.assert_close(torch.cat(rows), zoo.oracle(directory).logits(tokens), rtol=0, atol=1e-4)


def test_exact_tokens_over_128_ranks(zoo: Zoo) -> None:
    """Two experts a rank; three ranks have tokens, all take part."""
    directory = zoo.checkpoint("ep128")
    oracle = zoo.oracle(directory)
    placed: list[list[list[int]]] = [[] for _ in range(128)]
    placed[0], placed[77], placed[127] = [prompt(9), prompt(1)], [prompt(17)], [prompt(5)]
    ours = greedy(
        RankGroup(directory, world=128),
        placed,
        prefill=Schedule.NONE,
        decode=Schedule.DUAL_MICROBATCH,
        tokens=2,
    )
    assert ours == [[oracle.greedy(p, 2) for p in own] for own in placed]


def test_redundant_experts_change_nothing(zoo: Zoo) -> None:
    directory, tokens = zoo.checkpoint("base"), prompt(30)
    placement = ExpertPlacement(16, ((3, 0, 1, 2, 4, 5), (7, 6, 8, 3), (9, 10, 11, 12, 13, 14, 15, 3, 0)))
    group = RankGroup(directory, world=3, placement=placement)
    ours = group.logits([[Span("a", tokens)], [], [Span("b", tokens[:7])]])
    reference = zoo.oracle(directory).logits(tokens)
    torch.testing.assert_close(ours[0], reference, rtol=0, atol=1e-4)
    torch.testing.assert_close(ours[2], reference[:7], rtol=0, atol=1e-4)


@pytest.mark.parametrize("schedule", Schedule)
def test_waits_depend_on_the_schedule_alone(zoo: Zoo, schedule: Schedule) -> None:
    """A rank without tokens must wait exactly as often as a busy one, or processes would hang."""
    group = RankGroup(zoo.checkpoint("base"))

    def waits(spans: list[Span]) -> int:
        batch = group.instances[0].batch(spans)
        work = group.models[0].hidden_states(batch, group.caches[0], form=AttentionForm.ABSORBED, schedule=schedule)
        count = 0
        while True:
            try:
                next(work)
            except StopIteration:
                return count
            count += 1

    # Three expert layers, two receives a layer and microbatch.
    expected = 3 * 2 * (2 if schedule is Schedule.DUAL_MICROBATCH else 1)
    assert {waits([]), waits([Span("a", [5])]), waits([Span("b", prompt(40)), Span("c", prompt(3))])} == {expected}


@pytest.mark.parametrize("schedule", Schedule)
def test_counts_ride_on_the_first_exchange(zoo: Zoo, schedule: Schedule) -> None:
    group = RankGroup(zoo.checkpoint("base"), world=4, tp=2)
    group.hidden_states([[Span("a", prompt(3))], []], schedule=schedule, announce=[5, 0])
    assert [model.announced for model in group.models] == [(5, 5, 0, 0)] * 4
    group.hidden_states([[], []], schedule=schedule, announce=[0, 0])
    assert [model.announced for model in group.models] == [(0, 0, 0, 0)] * 4


@pytest.mark.parametrize("schedule", Schedule)
def test_mtp_over_ranks(zoo: Zoo, schedule: Schedule) -> None:
    directory, tokens = zoo.checkpoint("base"), prompt(21)
    group = RankGroup(directory, world=4, tp=2)
    hidden = group.hidden_states([[Span("a", tokens[:-1])], []], schedule=schedule)
    out = group.mtp_hidden_states([[Span("a", tokens[1:])], []], hidden, schedule=schedule)
    reference = zoo.oracle(directory).mtp_logits(tokens)
    torch.testing.assert_close(group.models[0].mtp_logits(out[0]), reference, rtol=0, atol=1e-4)


def test_a_step_is_repeatable_to_the_last_bit(zoo: Zoo) -> None:
    """Sums over ranks are in rank order, so nothing depends on who was faster."""
    runs = []
    for _ in range(2):
        group = RankGroup(zoo.checkpoint("base"), world=4)
        runs.append(group.logits([[Span("a", prompt(20))], [Span("b", prompt(33))], [], [Span("c", prompt(2))]]))
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


def test_ranks_read_only_what_they_own(zoo: Zoo) -> None:
    group = RankGroup(zoo.checkpoint("six_heads"), world=4, tp=2)
    weights = [model._weights for model in group.models]  # type: ignore[attr-defined]
    assert [w.layers[1].mlp.gate_up.shape[0] for w in weights] == [4, 4, 4, 4]
    assert [w.layers[0].attention.k_b.shape[0] for w in weights] == [3, 3, 3, 3]
    assert not torch.equal(weights[0].layers[0].attention.k_b, weights[1].layers[0].attention.k_b)
    assert torch.equal(weights[0].layers[0].attention.k_b, weights[2].layers[0].attention.k_b)
    assert weights[0].mtp.embedding is weights[0].embedding
    assert weights[0].mtp.head is weights[0].head


def test_heads_that_tp_does_not_divide(zoo: Zoo) -> None:
    with pytest.raises(ConfigError, match="tp = 4: must divide num_attention_heads = 6"):
        RankGroup(zoo.checkpoint("six_heads"), world=4, tp=4)
    with pytest.raises(ConfigError, match="world = 2: more than one rank needs an exchange"):
        load_model(zoo.checkpoint("base"), topology=Topology(0, 2, 1))
