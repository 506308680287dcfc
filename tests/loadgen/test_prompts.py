from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import InvalidInput
from loadgen.prompts import SharedPrefix, Vocabulary, block_ids, prompt_ids, scaled_row
from loadgen.traces.row import Row
from loadgen.workload import NO_PREFIX, Shaping, Target, schedule, synthetic_rows

VOCABULARY = Vocabulary.of(2040)


def ids(row: Row, index: int = 0, seed: int = 0, shared: SharedPrefix = NO_PREFIX) -> list[int]:
    return prompt_ids(row, index, seed, VOCABULARY, shared)


def common_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_equal_hashes_are_equal_text_and_others_part_at_once() -> None:
    first = ids(Row(1200, 1, hash_ids=(0, 5, 6), hash_block_tokens=512), index=1)
    second = ids(Row(1100, 1, hash_ids=(0, 5, 7), hash_block_tokens=512), index=2)
    assert (len(first), len(second)) == (1200, 1100)
    assert common_prefix(first, second) == 1024
    assert ids(Row(1200, 1, hash_ids=(0, 5, 6), hash_block_tokens=512), index=9) == first


def test_a_shorter_last_block_is_a_prefix_of_the_longer() -> None:
    short = ids(Row(600, 1, hash_ids=(0, 5), hash_block_tokens=512))
    assert ids(Row(1000, 1, hash_ids=(0, 5), hash_block_tokens=512))[:600] == short


def test_prompts_without_hashes_share_nothing() -> None:
    a, b = ids(Row(100, 1), index=1), ids(Row(100, 1), index=2)
    assert common_prefix(a, b) <= 1


def test_prompts_of_a_group_share_exactly_the_prefix() -> None:
    shared = SharedPrefix(tokens=64, groups=2)
    prompts = [ids(Row(100, 1), index=i, shared=shared) for i in range(20)]
    heads = {tuple(prompt[:64]) for prompt in prompts}
    assert len(heads) == 2
    assert len({tuple(prompt) for prompt in prompts}) == 20
    assert all(len(prompt) == 100 for prompt in prompts)


def test_ids_stay_clear_of_the_ends_of_the_vocabulary() -> None:
    drawn = block_ids(VOCABULARY, 0, 3, 20_000)
    assert (min(drawn), max(drawn)) == (127, 1912)
    with pytest.raises(InvalidInput):
        Vocabulary.of(8)


def test_a_negative_hash_is_a_name_like_any_other() -> None:
    assert block_ids(VOCABULARY, 0, -5, 8) != block_ids(VOCABULARY, 0, 5, 8)


def test_scaling_keeps_the_share_of_repeated_text() -> None:
    row = Row(6758, 500, hash_ids=tuple(range(14)), hash_block_tokens=512)
    scaled = scaled_row(row, Fraction(1, 64))
    # 13 whole blocks of 8 and 102 tokens over, which scale to 2.
    assert (scaled.hash_block_tokens, scaled.prompt_tokens, scaled.output_tokens) == (8, 106, 8)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5000), st.integers(0, 3000), st.fractions(Fraction(1, 600), Fraction(2)))
def test_scaled_prompts_are_never_empty_and_fit_their_hashes(prompt: int, output: int, scale: Fraction) -> None:
    hashes = tuple(range(-(-prompt // 512)))
    scaled = scaled_row(Row(prompt, output, hash_ids=hashes, hash_block_tokens=512), scale)
    assert 1 <= scaled.prompt_tokens <= len(hashes) * scaled.hash_block_tokens
    assert scaled.output_tokens >= 1
    assert len(ids(scaled)) == scaled.prompt_tokens


def test_rows_that_do_not_fit_the_context_are_left_out_and_counted() -> None:
    rows = [*synthetic_rows(2, 10, 5), Row(95, 6), Row(94, 6)]
    planned = schedule(rows, [0.0, 1.0, 2.0, 3.0], Target("m", 2040, 100), Shaping())
    assert planned.too_long == 1
    assert [(r.index, r.at_s, r.prompt_tokens) for r in planned.requests] == [(0, 0.0, 10), (1, 1.0, 10), (3, 3.0, 94)]
