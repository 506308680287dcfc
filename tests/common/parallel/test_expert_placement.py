import pytest

from common.errors import ConfigError
from common.parallel.expert_placement import ExpertPlacement


@pytest.mark.parametrize(("experts", "ranks"), [(16, 1), (16, 4), (256, 128), (10, 3), (2, 5)])
def test_contiguous_covers_every_expert_once(experts: int, ranks: int) -> None:
    placement = ExpertPlacement.contiguous(experts, ranks)
    assert [e for local in placement.by_rank for e in local] == list(range(experts))
    sizes = [len(local) for local in placement.by_rank]
    assert max(sizes) - min(sizes) <= 1


def test_copies_name_rank_and_index() -> None:
    placement = ExpertPlacement(3, ((2, 0), (1, 2)))
    assert placement.copies() == (((0, 1),), ((1, 0),), ((0, 0), (1, 1)))


@pytest.mark.parametrize(
    ("by_rank", "message"),
    [
        (((0, 1), (3,)), "rank 1 holds 3: must be below 3"),
        (((0, 1), (1, 1, 2)), "rank 1 holds an expert twice"),
        (((0, 1), ()), "expert 2 is on no rank"),
    ],
)
def test_impossible_tables_are_refused(by_rank: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ExpertPlacement(3, by_rank)
