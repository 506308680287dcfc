from hypothesis import given, settings
from hypothesis import strategies as st

from common.transfer.runs import runs


def test_neighbours_on_both_sides_are_joined():
    assert runs([(4, 0), (5, 1), (7, 2), (8, 4), (9, 5), (10, 6)]) == [(4, 0, 2), (7, 2, 1), (8, 4, 3)]
    assert runs([]) == []


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_runs_cover_exactly_the_pairs(pairs):
    covered = [(source + i, slot + i) for source, slot, length in runs(pairs) for i in range(length)]
    assert covered == pairs
