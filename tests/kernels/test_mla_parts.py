"""FlashMLA's parts: every page once, in order, and no part longer than it must be."""

import pytest

from kernels.mla_parts import OVERHEAD, count_parts, plan_parts


def pieces_of(parts, total_lens):
    """(request, first page, page after the last, number of the piece) of every piece, part by part."""
    pages = [-(-n // 64) for n in total_lens]
    for first, last, first_page, end, piece, *_ in parts.tolist():
        yield [
            (r, first_page if r == first else 0, end if r == last else pages[r], piece if r == first else 0)
            for r in range(first, last + 1)
        ]


@pytest.mark.parametrize("parts", [1, 5, 33, 66])
@pytest.mark.parametrize("total_lens", [[5001] * 32, [1, 64, 65, 9000, 3], [700] * 128, [20000], [64] * 3, [5001] * 66])
def test_every_page_is_in_one_piece(total_lens, parts):
    plan, before = plan_parts(total_lens, parts)
    assert plan.shape == (parts, 8)
    seen = [piece for part in pieces_of(plan, total_lens) for piece in part]
    request, page, number, counted = 0, 0, 0, [0]
    for r, start, end, piece in seen:
        assert (r, start, piece) == (request, page, number)
        page, number = end, number + 1
        if page == -(-total_lens[r] // 64):
            counted.append(counted[-1] + number)
            request, page, number = request + 1, 0, 0
    assert request == len(total_lens)
    assert before.tolist() == counted


@pytest.mark.parametrize(("requests", "parts"), [(9, 4), (100, 66)])
def test_split_requests_are_marked(requests, parts):
    """FlashMLA merges what is marked: a part's first and last request, if another part has a share of it."""
    plan, before = plan_parts([5001] * requests, parts)
    shared = [n > 1 for n in (before[1:] - before[:-1]).tolist()]
    assert set(shared) == {True, False}
    for first, last, *_, begun, unfinished, _ in plan.tolist():
        if first <= last:
            assert (bool(begun), bool(unfinished)) == (shared[first], shared[last])


@pytest.mark.parametrize(
    ("requests", "parts", "longest"), [(16, 66, 20), (32, 66, 40), (64, 66, 79), (128, 66, 158), (128, 33, 316)]
)
def test_the_longest_part_is_short(requests, parts, longest):
    """79 pages each: a quarter, a half, one, two and four of them are a part."""
    total_lens = [5001] * requests
    plan, _ = plan_parts(total_lens, parts)
    assert max(sum(end - start for _, start, end, _ in part) for part in pieces_of(plan, total_lens)) == longest


def test_requests_stay_whole_where_that_is_cheap():
    for requests, parts in ((128, 33), (66, 66)):
        _, before = plan_parts([5001] * requests, parts)
        assert before.tolist() == list(range(requests + 1))
    _, before = plan_parts([5001] * 100, 66)
    assert int(before[-1]) > 100


def test_parts_of_the_chip():
    assert count_parts(132, 1, 128) == 66
    assert count_parts(132, 2, 128) == 33
    assert count_parts(4, 4, 128) == 1
    assert OVERHEAD > 0
