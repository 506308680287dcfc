"""All-to-all: copies, laws, and what stays at home."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.planner.communication import (
    Copies,
    Direction,
    Traffic,
    copies_per_token,
    exchange_us,
    reached,
    token_bytes,
)
from loadgen.planner.hardware import hardware
from loadgen.planner.stacks import committed_constants, exchanges_of

LIBRARIES = exchanges_of(committed_constants())
H100 = hardware("h100")
OUT, BACK = token_bytes(7168)


def traffic(tokens, ep, groups=(1, 1)):
    return Traffic(tokens, 8, ep, OUT, BACK, groups)


def test_token_bytes():
    assert (OUT, BACK) == (7168 + 224, 14336)


def test_copies_per_expert_leave_the_node_in_proportion():
    local, remote = copies_per_token(Copies.EXPERT, traffic(1, 128), H100)
    assert local == pytest.approx(8 * 7 / 128)
    assert remote == pytest.approx(8 * 120 / 128)
    assert copies_per_token(Copies.EXPERT, traffic(1, 8), H100)[1] == 0


def test_a_token_reaches_few_nodes_when_groups_are_limited():
    # Four of eight groups, two groups a node at EP32: a node is missed with probability 15/70.
    assert reached(traffic(1, 32, (4, 8)), 4) == pytest.approx(4 * (1 - 15 / 70))
    assert reached(traffic(1, 64, (4, 8)), 8) == pytest.approx(4)
    # Free routing over two ranks: missed with probability 2^-8.
    assert reached(traffic(1, 2), 2) == pytest.approx(2 * (1 - 2**-8))


@given(
    name=st.sampled_from(sorted(LIBRARIES)),
    tokens=st.floats(0, 5000),
    more=st.floats(0, 500),
    ep=st.sampled_from([2, 8, 16, 32, 64, 128]),
    way=st.sampled_from(list(Direction)),
)
@settings(max_examples=60, deadline=None)
def test_more_tokens_never_take_less_time(name, tokens, more, ep, way):
    few = exchange_us(LIBRARIES[name], traffic(tokens, ep), H100, way)[0]
    many = exchange_us(LIBRARIES[name], traffic(tokens + more, ep), H100, way)[0]
    assert many >= few * (1 - 1e-9)


@pytest.mark.parametrize("name", sorted(LIBRARIES))
def test_one_rank_exchanges_nothing(name):
    assert exchange_us(LIBRARIES[name], traffic(256, 1), H100, Direction.DISPATCH) == (0.0, 0.0)


def test_a_third_of_infiniband_is_the_mean_of_the_kernels_own_table():
    """128 tokens, dispatch of pplx-kernels over EP16, 32, 64, 128."""
    shares = [
        128 * 8 * (ep - 8) / ep * OUT / (us * 1e-6) / 50e9 for ep, us in ((16, 622), (32, 428), (64, 317), (128, 308))
    ]
    assert sum(shares) / 4 == pytest.approx(1 / 3, rel=0.06)


def test_the_reports_share_of_infiniband():
    """593 and 1012 us for 256 tokens over 128 ranks is half of 50 GB/s, not a third."""
    for us, each in ((593, OUT), (1012, BACK)):
        share = 256 * 8 * (120 / 128) * each / (us * 1e-6) / 50e9
        assert 0.45 < share < 0.56
