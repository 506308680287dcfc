"""Rank of decode work and the room it keeps."""

from dataclasses import replace

from common.engine.decode_plan import WorkState, growth_blocks, rank, room_to_keep

PLAIN = WorkState("a", tokens=8, end_tokens=100, blocks=1, priority=0, resumed=False, order=0)


def test_resumed_precedes_priority_precedes_age() -> None:
    work = [
        replace(PLAIN, work_id="newest", order=9),
        replace(PLAIN, work_id="oldest", order=1),
        replace(PLAIN, work_id="urgent", order=8, priority=1),
        replace(PLAIN, work_id="resumed", order=7, resumed=True),
        replace(PLAIN, work_id="unimportant", order=0, priority=-1),
    ]
    assert rank(work) == ["resumed", "urgent", "oldest", "newest", "unimportant"]


def test_growth_is_counted_in_whole_blocks_beyond_those_held() -> None:
    assert growth_blocks(PLAIN, 0, 8) == 0
    assert growth_blocks(PLAIN, 1, 8) == 1
    assert growth_blocks(PLAIN, 8, 8) == 1
    assert growth_blocks(PLAIN, 9, 8) == 2
    assert growth_blocks(replace(PLAIN, blocks=5), 9, 8) == 0


def test_work_grows_no_further_than_its_end() -> None:
    assert growth_blocks(replace(PLAIN, end_tokens=10), 64, 8) == 1
    assert room_to_keep([PLAIN, replace(PLAIN, end_tokens=8)], 64, 8) == 8
