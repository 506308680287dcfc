import pytest
import torch

from common.errors import ConfigError, InternalError
from common.parallel.groups import Topology, tensor_group
from common.parallel.in_process import InProcessTransport
from common.parallel.waits import run, run_together
from tests.fakes.mailboxes import undelivered


def test_collectives_of_two_instances_stay_apart() -> None:
    transports = InProcessTransport.group(4)
    groups = [tensor_group(Topology(rank, 4, 2), transport) for rank, transport in enumerate(transports)]
    assert [group.rank for group in groups] == [0, 1, 0, 1]
    x = [torch.full((3, 2), 10.0**rank) for rank in range(4)]
    sums = run_together([g.reduce_scatter(part, [2, 1]) for g, part in zip(groups, x, strict=True)])
    assert [s.tolist() for s in sums] == [
        [[11, 11], [11, 11]],
        [[11, 11]],
        [[1100, 1100], [1100, 1100]],
        [[1100, 1100]],
    ]
    gathered = run_together([g.all_gather(s, [2, 1]) for g, s in zip(groups, sums, strict=True)])
    assert [g.shape for g in gathered] == [(3, 2)] * 4
    told = run_together([g.broadcast(part) for g, part in zip(groups, x, strict=True)])
    assert [t[0, 0].item() for t in told] == [1, 1, 100, 100]
    objects = run_together([g.broadcast_object({"rank": rank}) for rank, g in enumerate(groups)])
    assert objects == [{"rank": 0}, {"rank": 0}, {"rank": 2}, {"rank": 2}]
    assert undelivered(transports[0]) == 0


def test_no_rows_at_all() -> None:
    groups = [tensor_group(Topology(r, 2, 2), t) for r, t in enumerate(InProcessTransport.group(2))]
    sums = run_together([g.reduce_scatter(torch.empty(0, 4), [0, 0]) for g in groups])
    assert [s.shape for s in sums] == [(0, 4), (0, 4)]


def test_one_rank_is_the_identity() -> None:
    (transport,) = InProcessTransport.group(1)
    group, x = tensor_group(Topology(), transport), torch.randn(3, 2)
    assert run(group.reduce_scatter(x, [3])) is x
    assert run(group.all_gather(x, [3])) is x
    assert run(group.broadcast(x)) is x
    assert run(group.broadcast_object(x)) is x


def test_sizes_that_do_not_fit_are_found() -> None:
    groups = [tensor_group(Topology(r, 2, 2), t) for r, t in enumerate(InProcessTransport.group(2))]
    with pytest.raises(InternalError, match="3 rows where the ranks' sizes say 4"):
        run(groups[0].reduce_scatter(torch.empty(3, 4), [2, 2]))
    with pytest.raises(InternalError, match="rank 0 broadcasts"):
        run_together([g.broadcast(torch.empty(2 + r)) for r, g in enumerate(groups)])


@pytest.mark.parametrize("place", [(4, 4, 1), (-1, 4, 1), (0, 4, 3), (0, 0, 1), (0, 2, 0)])
def test_impossible_places_are_refused(place: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError):
        Topology(*place)


def test_places() -> None:
    place = Topology(rank=6, world=8, tp=4)
    assert (place.instance, place.instances, place.tp_rank, place.tp_ranks) == (1, 2, 2, range(4, 8))
